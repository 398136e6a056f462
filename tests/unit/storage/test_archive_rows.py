"""Text and HTML inside archives: read as a stream, and what is hostile or broken is counted and never followed."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from gristmill.storage.compression import DamagedArchiveError
from gristmill.storage.files import list_files
from gristmill.storage.formats import EXTENSIONS, format_of
from gristmill.storage.partitions import make_partitions
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.row_formats import archive_rows, file_rows, reading_of

MEMBERS = {
    "docs/a.txt": b"first text",
    "docs/b.md": b"# second",
    "img/c.png": b"\x89PNG",
    "docs/index.html": b"<p>page",
}


def tar_of(members: dict[str, bytes], *more: tarfile.TarInfo) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in more:
            archive.addfile(info)
    return target.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


def read(path: Path, *, strict: bool = False, **options: Any) -> tuple[list[dict[str, Any]], list[tuple[str, str]]]:
    """The rows of an archive, and what was broken: cause and detail."""
    files = list_files(path, extensions=EXTENSIONS["archive"])
    (partition,) = make_partitions(files, format="archive", reading=reading_of("archive", options))
    blocks = list(read_row_blocks(partition, strict=strict))
    numbers = sorted(
        [*(row for block in blocks for row in block.rows), *(bad.row for block in blocks for bad in block.bad)]
    )
    assert numbers == list(range(len(numbers)))
    rows = [row for block in blocks for row in block.table.to_pylist()]
    return rows, [(bad.cause, bad.told) for block in blocks for bad in block.bad]


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.tar.zst", "a.ZIP"])
def test_text_members_are_documents(tmp_path: Path, name: str) -> None:
    plain = zip_of(MEMBERS) if name == "a.ZIP" else tar_of(MEMBERS)
    packed = {"gz": gzip.compress, "tgz": gzip.compress, "zst": zstandard.compress}.get(name.rpartition(".")[2])
    (tmp_path / name).write_bytes(packed(plain) if packed else plain)
    assert format_of(name) == "archive"
    rows, bad = read(tmp_path / name)
    shown = [f"{name}/docs/a.txt", f"{name}/docs/b.md"]
    assert [(row["id"], row["file_name"], row["text"]) for row in rows] == [
        (shown[0], shown[0], "first text"), (shown[1], shown[1], "# second"),
    ]  # fmt: skip
    assert bad == []
    rows, bad = read(tmp_path / name, content="html")
    assert [(row["id"], row["html"]) for row in rows] == [(f"{name}/docs/index.html", b"<p>page")]


def test_names_as_tar_writes_them_and_hidden_ones(tmp_path: Path) -> None:
    members = {
        "./a.txt": b"one",
        "./sub//b.txt": b"two",
        "./.hidden/c.txt": b"no",
        "_d.txt": b"no",
        "__MACOSX/._a.txt": b"",
    }
    (tmp_path / "a.tar").write_bytes(tar_of(members))
    rows, bad = read(tmp_path / "a.tar")
    assert [(row["id"], row["text"]) for row in rows] == [("a.tar/a.txt", "one"), ("a.tar/sub/b.txt", "two")]
    assert bad == []


def test_the_first_member_that_is_data_decides_and_units_are_those_of_text(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_bytes(tar_of({"README.md": b"about", "p.html": b"<p>", "x.txt": b"no"}))
    assert [row["html"] for row in read(tmp_path / "a.tar")[0]] == [b"<p>"]
    (tmp_path / "b.zip").write_bytes(zip_of({"a.txt": "eins\nzwölf\n".encode("latin-1")}))
    rows, _ = read(tmp_path / "b.zip", document="line", encoding="latin-1", text_field="body")
    assert [(row["id"], row["body"]) for row in rows] == [("b.zip/a.txt#0", "eins"), ("b.zip/a.txt#1", "zwölf")]


def test_paths_and_links_that_lead_out_are_counted_and_never_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    links = []
    for name, target, kind in [
        ("link.txt", str(secret), tarfile.SYMTYPE),
        ("hard.txt", "../secret.txt", tarfile.LNKTYPE),
    ]:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        links.append(info)
    pipe = tarfile.TarInfo("pipe.txt")
    pipe.type = tarfile.FIFOTYPE
    members = {"/etc/a.txt": b"x", "../b.txt": b"y", "good.txt": b"good", "c/../../d.txt": b"z"}
    (tmp_path / "a.tar").write_bytes(tar_of(members, *links, pipe))
    rows, bad = read(tmp_path / "a.tar")
    assert [row["text"] for row in rows] == ["good"]
    assert [cause for cause, _ in bad] == ["unsafe_member"] * 6
    told = " ".join(told for _, told in bad)
    for words in (
        "'/etc/a.txt' has an absolute path",
        "'../b.txt' has a path that leads out",
        "is a link to",
        "a pipe",
    ):
        assert words in told
    link = zipfile.ZipInfo("link.txt")
    link.create_system, link.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        archive.writestr(link, str(secret))
        archive.writestr("..\\x.txt", "out")
        archive.writestr("good.txt", "good")
    rows, bad = read(tmp_path / "b.zip")
    assert [row["text"] for row in rows] == ["good"]
    assert [cause for cause, _ in bad] == ["unsafe_member"] * 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tar", "b.zip", "secret.txt"]


def test_data_inside_and_archives_without_text_are_told(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zip_of({"a.txt": b"text", "b.jsonl": b"{}", "c.csv": b"a,b"}))
    rows, bad = read(tmp_path / "a.zip")
    assert len(rows) == 1
    assert [cause for cause, _ in bad] == ["other_format"] * 2
    assert "a.zip/b.jsonl is a data file, which is not read inside an archive: unpack" in bad[0][1]
    (tmp_path / "b.zip").write_bytes(zip_of({"a.png": b"x", "b.png": b"y", "c": b""}))
    rows, bad = read(tmp_path / "b.zip")
    assert (rows, [cause for cause, _ in bad]) == ([], ["other_format"])
    assert "it holds 2 × .png, 1 × (none)" in bad[0][1]


@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_bombs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(archive_rows, "_FREE_BYTES", 1 << 20)
    monkeypatch.setattr(archive_rows, "_MOST_TIMES", 100)
    members = {f"{n}.txt": b"\0" * (1 << 20) for n in range(4)}
    content = zip_of(members) if kind == "zip" else gzip.compress(tar_of(members))
    (tmp_path / f"a.{kind}").write_bytes(content)
    rows, bad = read(tmp_path / f"a.{kind}")
    assert [cause for cause, _ in bad] == ["corrupt_archive"]
    assert "times its own size" in bad[0][1]
    assert len(rows) < 4


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_a_member_over_the_limit_is_one_bad_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    for function in (file_rows.read_whole, file_rows.page_of):
        monkeypatch.setitem(function.__kwdefaults__, "most", 1 << 20)
    monkeypatch.setitem(archive_rows.documents_of.__kwdefaults__, "most", 1 << 20)
    members = {"a.txt": b"x" * (3 << 20), "b.txt": b"small"}
    (tmp_path / f"a.{kind}").write_bytes(zip_of(members) if kind == "zip" else tar_of(members))
    rows, bad = read(tmp_path / f"a.{kind}")
    assert [row["text"] for row in rows] == ["small"]
    assert [cause for cause, _ in bad] == ["record_too_large"]


def test_a_damaged_member_of_a_zip_is_one_record_and_a_damaged_tar_is_a_damaged_file(tmp_path: Path) -> None:
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr("a.txt", "first" * 100)
        archive.writestr("b.txt", "second")
    content = bytearray(plain.getvalue())
    content[content.index(b"first") + 3] ^= 1
    (tmp_path / "a.zip").write_bytes(content)
    rows, bad = read(tmp_path / "a.zip", strict=True)
    assert [row["text"] for row in rows] == ["second"]
    assert "Bad CRC-32" in bad[0][1]
    whole = tar_of({f"{n}.txt": b"text" * 500 for n in range(50)})
    for name, broken in {
        "cut.tar": whole[:30_000],
        "header.tar": whole[:51200] + b"garbage!" * 64 + whole[51200 + 512 :],
        "cut.tar.gz": gzip.compress(whole)[:-300],
        "zeros.tar": whole[:100],
        "bad.zip": b"PK\3\4" + b"x" * 100,
    }.items():
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(DamagedArchiveError, match=r"is damaged|stops before its end"):
            read(tmp_path / name, strict=True)
        rows, bad = read(tmp_path / name)
        assert len(bad) == 1, name
        assert all(row["text"] == "text" * 500 for row in rows)


def test_a_header_that_claims_gigabytes_is_refused(tmp_path: Path) -> None:
    info = tarfile.TarInfo("x")
    info.type, info.size = tarfile.XHDTYPE, (1 << 33) - 1
    (tmp_path / "a.tar").write_bytes(tar_of({"a.txt": b"text"})[:1024] + info.tobuf() + b"\0" * 1024)
    rows, bad = read(tmp_path / "a.tar")
    assert [row["text"] for row in rows] == ["text"]
    assert "a header claims a size of" in bad[0][1]
