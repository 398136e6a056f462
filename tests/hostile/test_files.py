"""Input files that are bombs, broken, or not files: counted, quarantined or refused, in little memory."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import random
import shutil
import socket
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.ledger.ask.lookup import source_record
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.storage.files import survey
from tests.hostile.attempt import FULL
from tests.hostile.commands import Commands, serving
from tests.hostile.desk import GOOD, MB, RUN, Fate, fates, lay_out, run_and_verify

Note = Callable[[str, object], None]
ONE = Fate(1, 0, {})
DEEP = 100_000


@pytest.fixture(scope="module")
def run() -> Iterator[Commands]:
    with serving() as commands:
        yield commands


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "desk"
    # Folders that are too deep for Python's own way to remove them, which pytest would use.
    subprocess.run(["rm", "-rf", tmp_path / "desk"], check=True)


def line(**values: object) -> bytes:
    return json.dumps(values).encode() + b"\n"


def bad(**causes: int) -> dict[str, int]:
    return causes


TEXT = {"text": "Some words of a text."}
BROKEN: dict[str, tuple[bytes, Fate]] = {
    "NULs": (b"\0" * MB, Fate(0, 0, bad(nul_byte=1))),
    "NULs between": (GOOD + b"\0\0\n" * 1000 + GOOD, Fate(2, 0, bad(nul_byte=1000))),
    "byte order mark": (b"\xef\xbb\xbf" + GOOD, ONE),
    "byte order marks": (b"\xef\xbb\xbf" * 2 + GOOD + b"\xef\xbb\xbf" + GOOD, Fate(0, 0, bad(malformed_json=2))),
    "line ends": (GOOD[:-1] + b"\r\n" + GOOD[:-1] + b"\n\r" + GOOD + b"\r\r\n" + GOOD, Fate(4, 0, {})),
    "carriage returns alone": (GOOD.replace(b"\n", b"\r") * 3, Fate(0, 0, bad(malformed_json=1))),
    "array": (b"[" + b",".join([GOOD] * 5) + b"]", Fate(5, 0, {})),
    "array of anything": (
        b'[{"text":"a b c d"},1,"x",null,[],{"text":"a b c d"}] and {"text":"a b c"}',
        Fate(2, 0, bad(not_an_object=4, malformed_json=1)),
    ),
    "duplicate keys": (b'{"text":"a b c","text":"x"}\n{"text":"x","text":"a b c"}\n', Fate(1, 1, {})),
    "numbers": (
        b"".join(
            b'{"text":"a b c d","n":%b}\n' % number
            for number in (b"9" * DEEP, b"1e999999", b"-0." + b"0" * 5000 + b"1", b"NaN", b"-Infinity", b"01", b"0x1")
        ),
        Fate(3, 0, bad(malformed_json=4)),
    ),
    "ids": (
        b"".join(
            line(id=one, url=one, **TEXT)
            for one in ("../../etc/passwd", "/etc/passwd", "a\0b", "x" * DEEP, "", {"a": 1}, None, 10**400, "$(id)")
        ),
        Fate(9, 0, {}),
    ),
    "text of any kind": (
        line(text={"a": 1}) + line(text=["a", "b"]) + line(text=7) + line(text=None) + line(other=1) + GOOD,
        Fate(1, 5, {}),
    ),
    "text of numbers": (line(text=7) + line(text=8), Fate(0, 2, {})),
    "halves of pairs": (
        b'{"text":"a b \\ud800 c"}\n{"text":"a b \\udfff\\ud800 c"}\n{"te\\u0078t":"a \\u0000 b c"}\n',
        Fate(3, 0, {}),
    ),
    "invalid UTF-8": (
        b"".join(b'{"text":"a b %b c"}\n' % wrong for wrong in (b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90"))
        + b'{"\xff":1,"text":"a b c"}\n',
        Fate(0, 0, bad(invalid_utf8=5)),
    ),
    "more behind": (b'{"text":"a b c"} x\n{"text":"a b c"}{"text":"a"}\n{},\n', Fate(0, 0, bad(malformed_json=3))),
    "control characters": (b'{"text":"a b\tc"}\n{"text":"a b\x01c"}\n', Fate(0, 0, bad(malformed_json=2))),
    "cut": (GOOD + GOOD[:20], Fate(1, 0, bad(malformed_json=1))),
    "one brace": (b"{", Fate(0, 0, bad(malformed_json=1))),
    "nothing": (b"", Fate(0, 0, {})),
    "deep arrays": (
        b'{"text":"a b c","x":' + b"[" * DEEP + b"]" * DEEP + b"}\n" + GOOD,
        Fate(1, 0, bad(malformed_json_too_deep=1)),
    ),
    "deep objects": (b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"\n" + GOOD, Fate(1, 0, bad(malformed_json_too_deep=1))),
    "open objects": (b'{"a":' * DEEP + b"\n" + GOOD, Fate(1, 0, bad(malformed_json_too_deep=1))),
    "many keys": (
        b"{" + b"".join(b'"k%d":%d,' % (n, n) for n in range(10 * DEEP if FULL else DEEP // 5)) + b'"text":"a b c"}\n',
        ONE,
    ),
}


def test_broken_content_is_accounted_for_by_file(run: Commands, desk: Path, record_property: Note) -> None:
    """24 kinds of broken JSONL, from NULs to 100,000 levels: bad lines quarantined by cause, good ones kept."""
    lay_out(desk, {f"{name}.jsonl": content for name, (content, _) in BROKEN.items()})
    answer = run_and_verify(run, desk, peak=600 * MB)
    assert answer.code == 3
    assert fates(desk) == {f"{name}.jsonl": fate for name, (_, fate) in BROKEN.items()}
    record_property("tried", len(BROKEN))


REFUSED: dict[str, tuple[str, bytes, str]] = {
    "UTF-16": ("a.jsonl", GOOD.decode().encode("utf-16"), "text in UTF-16"),
    "UTF-16, no mark": ("a.jsonl", GOOD.decode().encode("utf-16-le"), "text in UTF-16"),
    "UTF-32": ("a.jsonl", GOOD.decode().encode("utf-32"), "text in UTF-32"),
    "array of arrays": ("a.json", b"[" * MB, "a JSON array of values that are not objects"),
    "gzip in gzip": ("a.jsonl.gz", gzip.compress(gzip.compress(GOOD)), "gzip-compressed twice"),
    "zstd in gzip": ("a.jsonl.gz", gzip.compress(zstandard.compress(GOOD)), "zstd-compressed"),
    "not gzip": ("a.jsonl.gz", GOOD, "not compressed"),
    "Parquet": ("a.jsonl", b"PAR1", "Parquet"),
}


@pytest.mark.parametrize("name", list(REFUSED) if FULL else ["UTF-16", "array of arrays", "gzip in gzip"])
def test_files_that_are_something_else_are_refused(run: Commands, desk: Path, name: str) -> None:
    """Files whose content does not match their names: rejected before the run, with a sentence that names the file."""
    file, content, says = REFUSED[name]
    answer = run_and_verify(run, lay_out(desk, {file: content, "good.jsonl": GOOD}))
    assert answer.code == 1
    assert says in answer.said
    assert f"{desk / 'in' / file}" in answer.said
    assert not (desk / "out").exists()


SIZE = 1000 * MB if FULL else 32 * MB


def repeated(part: bytes, size: int) -> Iterator[bytes]:
    piece = part * (MB // len(part))
    for _ in range(size // len(piece)):
        yield piece


def gzip_of(pieces: Iterator[bytes]) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0) as file:
        for piece in pieces:
            file.write(piece)
    return packed.getvalue()


def packed_by(compressor: bz2.BZ2Compressor | lzma.LZMACompressor, pieces: Iterator[bytes]) -> bytes:
    return b"".join([*map(compressor.compress, pieces), compressor.flush()])


def zstd_of(pieces: Iterator[bytes]) -> bytes:
    stream = zstandard.ZstdCompressor(level=19, write_checksum=True).compressobj()
    return b"".join([*map(stream.compress, pieces), stream.flush()])


PACKERS: dict[str, Callable[[Iterator[bytes]], bytes]] = {
    "gz": gzip_of,
    "zst": zstd_of,
    "bz2": lambda pieces: packed_by(bz2.BZ2Compressor(), pieces),
    "xz": lambda pieces: packed_by(lzma.LZMACompressor(preset=1), pieces),
}
BOMBS = {"spaces": (b" ", Fate(0, 0, {})), "one line": (b"x", Fate(0, 0, bad(record_too_large=1))),
         "empty lines": (b"\n", Fate(0, 0, {}))}  # fmt: skip


@pytest.mark.parametrize("codec", list(PACKERS) if FULL else ["gz", "zst"])
@pytest.mark.parametrize("filling", list(BOMBS) if FULL else ["one line"])
def test_archives_that_explode(run: Commands, desk: Path, codec: str, filling: str) -> None:
    """Archives that expand 1,000 times to 1 GB: read to the end within 900 MB, the good file next to them kept."""
    part, fate = BOMBS[filling]
    packed = PACKERS[codec](repeated(part, SIZE))
    assert len(packed) * 900 < SIZE
    lay_out(desk, {f"a.jsonl.{codec}": packed, "good.jsonl": GOOD})
    if not FULL:  # so that the smaller line is as much too large as the other
        (desk / "r.yaml").write_text((desk / "r.yaml").read_text().replace("in}", "in, max_record_bytes: 8MB}"))
    run_and_verify(run, desk, peak=900 * MB)
    assert fates(desk) == {f"a.jsonl.{codec}": fate, "good.jsonl": ONE}


@pytest.mark.parametrize("size", [200, 500] if FULL else [30])
def test_a_line_of_hundreds_of_megabytes(run: Commands, desk: Path, size: int) -> None:
    """Lines of 200 MB and 500 MB among good ones: read, or quarantined as too large, within 900 MB."""
    lay_out(desk, {})
    with open(desk / "in" / "a.jsonl", "wb") as file:
        file.write(GOOD + b'{"text":"')
        file.writelines(repeated(b"a b ", size * MB))
        file.write(b'"}\n' + GOOD)
    run_and_verify(run, desk, peak=900 * MB)
    total = [sum(numbers) for numbers in zip(*(fate[:2] for fate in fates(desk).values()), strict=True)]
    causes = [fate.quarantined for fate in fates(desk).values() if fate.quarantined]
    assert total == ([2, 0] if size == 500 else [2, 1])  # WordCountFilter drops what has more than 100,000 words
    assert causes == ([bad(record_too_large=1)] if size == 500 else [])


def test_millions_of_empty_lines(run: Commands, desk: Path) -> None:
    """Twenty million empty lines: skipped within 900 MB, the documents around them kept."""
    lay_out(desk, {"a.jsonl": GOOD + b"\n" * (20 * MB if FULL else MB) + GOOD})
    run_and_verify(run, desk, peak=900 * MB)
    assert fates(desk) == {"a.jsonl": Fate(2, 0, {})}


@pytest.mark.skipif(not FULL, reason="takes a minute: make test-hostile")
def test_millions_of_bad_lines(run: Commands, desk: Path) -> None:
    """Five million bad lines in 10 MB: 200,000 quarantined, the others counted, good ones kept, within 900 MB."""
    lines = 5 * MB
    lay_out(desk, {"a.jsonl": GOOD + b"x\n" * lines + line(id="last", **TEXT), "good.jsonl": GOOD})
    answer = run(desk, *RUN)
    assert answer.held(900 * MB), answer
    assert answer.code == 3
    quarantined = bad(malformed_json=200_000, too_many_bad_lines=1)
    assert fates(desk) == {"a.jsonl": Fate(2, 0, quarantined, lost=lines - 200_001), "good.jsonl": ONE}
    assert "not verified" in run(desk, "verify", "out").said
    assert f"read as row {lines + 1}" in run(desk, "why", "out", "last").said
    entry = Manifest(RunFolder(desk / "out")).get("a")
    assert entry is not None
    again = source_record(entry, lines + 1)
    assert again is not None
    assert again["id"] == "last"
    limited = run(desk, *RUN[:-2], "--fresh")
    assert limited.code == 1
    assert f"{lines} of {lines + 2} records could not be processed" in limited.said


NAMES = (
    "a\nb", "a\x1b[2Jb", "a'\"b", "\u202egnp", "ünï漢", "u\u0308", "x" * 249, "-rf", "--help", "a*b?[c]", "a b",
    "%2e%2e%2f", "$(id)", "~", "~root", "a\\b", "a:b", "con", "A", "a", "a~gz", "a#b", "{x}", "s3:::x", "é" * 120,
    b"bad\xff\xfe", "a\tb\r", "a.", "a.jsonl", "漢" * 80, "${HOME}", "<b>&amp;",
)  # fmt: skip


def test_names_of_files(run: Commands, desk: Path, record_property: Note) -> None:
    """File names with newlines, escapes, quotes, globs, dashes, invalid UTF-8, or 255 bytes: all read."""
    lay_out(desk, {f"{os.fsdecode(name)}.jsonl": line(id=str(n), **TEXT) for n, name in enumerate(NAMES)})
    run_and_verify(run, desk)
    assert fates(desk) == {f"{os.fsdecode(name)}.jsonl": ONE for name in NAMES}
    written = [path.read_bytes() for path in (desk / "out").iterdir()]
    assert sorted(written) == sorted(line(id=str(n), **TEXT) for n in range(len(NAMES)))
    assert sorted(path.name for path in desk.iterdir()) == ["in", "out", "out.gristmill", "r.yaml"]
    for number in range(len(NAMES)) if FULL else (0, 9, 25):
        answer = run(desk, "why", "out", str(number))
        assert answer.held(400 * MB), answer
        assert answer.said.startswith(f"{number}: kept")
    record_property("tried", len(NAMES))


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"/proc/self/fd/{os.open(path.parent, os.O_RDONLY)}/{path.name}")


SPECIAL: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is not a regular file"),
    "socket": (a_socket, "is not a regular file"),
    "link to a device": (lambda path: path.symlink_to("/dev/zero"), "is not a regular file"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "is a link to a file that does not exist"),
    "link to itself": (lambda path: path.symlink_to(path.name), "is a link to a link that leads back to itself"),
}


@pytest.mark.parametrize("name", SPECIAL if FULL else ["pipe", "link to itself"])
def test_what_is_no_file(run: Commands, desk: Path, name: str) -> None:
    """Pipes, sockets, devices and broken or circular links, named like data: rejected by name, never opened."""
    make, says = SPECIAL[name]
    make(lay_out(desk, {"good.jsonl": GOOD}) / "in" / "a.jsonl")
    answer = run_and_verify(run, desk, seconds=60)
    assert answer.code == 1
    assert says in answer.said
    assert f"'{desk}/in/a.jsonl'" in answer.said


def test_folders_named_like_files_and_links(run: Commands, desk: Path) -> None:
    """A folder named x.jsonl, links to outside files, parent folders and /proc: each read once, or left out."""
    folder = lay_out(desk, {"good.jsonl": GOOD}) / "in"
    (folder / "x.jsonl").mkdir()
    (folder / "x.jsonl" / "y.jsonl").write_bytes(GOOD)
    (folder / "empty.jsonl").mkdir()
    (folder / "x.jsonl" / "above").symlink_to("../..")
    (folder / "loop").symlink_to("loop")
    (desk / "outside.jsonl").write_bytes(GOOD)
    (folder / "link.jsonl").symlink_to("../outside.jsonl")
    (folder / "environ.jsonl").symlink_to("/proc/self/environ")
    run_and_verify(run, desk)
    found = fates(desk)
    assert found.pop("environ.jsonl") == Fate(0, 0, {})
    # The folder above is searched too: what lies there is reached by its own paths.
    assert found.pop("x.jsonl/above/outside.jsonl") == ONE
    assert found == {"good.jsonl": ONE, "x.jsonl/y.jsonl": ONE, "link.jsonl": ONE}


def test_links_that_multiply(desk: Path) -> None:
    """25 folders with two links each, 33 million paths to one file: rejected within seconds."""
    folder = lay_out(desk, {"good.jsonl": GOOD})
    for number in range(25):
        (folder / f"d{number}").mkdir()
        for name in "ab":
            (folder / f"d{number}" / name).symlink_to(f"../d{number + 1}")
    (folder / "d25").mkdir()
    (folder / "d25" / "x.jsonl").write_bytes(GOOD)
    (folder / "in" / "start").symlink_to("../d0")
    with pytest.raises(Exception, match=r"lead to the folder '.*' in more than 100 ways"):
        survey(folder / "in")


@pytest.mark.parametrize("depth", [1500, 4000] if FULL else [1100])
@pytest.mark.parametrize("top", ["d", "_hidden"])
def test_folders_in_folders(desk: Path, depth: int, top: str) -> None:
    """Folders 1,500 and 4,000 levels deep: searched, or rejected where the path is longer than the system allows."""
    lay_out(desk, {"good.jsonl": GOOD})
    at = os.open(desk / "in", os.O_RDONLY)
    for number in range(depth):
        name = top if not number else "d"
        os.mkdir(name, dir_fd=at)
        below = os.open(name, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(os.open("x.jsonl", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    if top == "d" and depth > 2000:
        with pytest.raises(Exception, match="cannot be searched: File name too long"):
            survey(desk / "in")
    else:
        found = survey(desk / "in")
        assert len(found.files) == (2 if top == "d" else 1)


def parquet_file() -> bytes:
    rows = range(300)
    table = pa.table({
        "id": [f"{n}" for n in rows],
        "text": [f"Some words of text {n}." for n in rows],
        "more": [[n, n] for n in rows],
    })  # fmt: skip
    target = io.BytesIO()
    pq.write_table(table, target, row_group_size=100)
    return target.getvalue()


def mutated(good: bytes, count: int, *, head: int = 0, tail: int) -> Iterator[tuple[str, bytes]]:
    """The bytes with bits flipped anywhere behind `head` and in the last `tail` bytes, and cut there."""
    rng = random.Random(7)
    for number in range(count):
        changed = bytearray(good)
        for _ in range(rng.choice([1, 1, 3, 10])):
            changed[rng.randrange(len(good) - tail if number % 2 else head, len(good))] ^= 1 << rng.randrange(8)
        yield f"flip {number}", bytes(changed)
        if number % 4 == 0:
            yield f"cut {number}", good[: rng.randrange(head, len(good))]


def check_mutants(
    run: Commands, desk: Path, name: str, mutants: list[tuple[str, bytes]], good: bytes, rows: int
) -> None:
    """Each mutant beside a good file: no crash, every row explained, the good file kept whole."""
    for what, content in mutants:
        (desk / "in" / name).write_bytes(content)
        (desk / "in" / f"good {name}").write_bytes(good)
        answer = run(desk, *RUN, "--fresh", seconds=60)
        assert answer.held(600 * MB), (what, answer)
        if answer.code in (0, 3):
            found = fates(desk)
            assert found[f"good {name}"].kept == rows, (what, answer)
            assert found[name].quarantined or found[name].kept + found[name].dropped or not content, (what, found)
        else:
            assert name in answer.said, (what, answer)


def test_mutated_parquet(run: Commands, desk: Path, record_property: Note) -> None:
    """Parquet with flipped bits, truncated, with false footers or Thrift bombs: quarantined as damaged, or read."""
    good = parquet_file()
    size = struct.unpack("<I", good[-8:-4])[0]
    mutants = list(mutated(good, 200 if FULL else 3, tail=size + 8))
    lengths = [0, 1, size - 1, size + 1, len(good), 2**31 - 1, 2**32 - 1]
    mutants += [(f"length {n}", good[:-8] + struct.pack("<I", n) + b"PAR1") for n in lengths[:: 1 if FULL else 4]]
    thrift = {"deep": b"\x1c" * 200_000, "list": b"\x15\x02\x19\xfc\xff\xff\xff\xff\x07" + bytes(50),
              "string": b"\x18\xff\xff\xff\xff\x07" + bytes(50)}  # fmt: skip
    mutants += [(f"thrift {name}", b"PAR1" + it + struct.pack("<I", len(it)) + b"PAR1") for name, it in thrift.items()]
    mutants += [("column", good[: -size - 8] + good[-size - 8 :].replace(b"\x04text", b"\x04te\xf4t"))]
    lay_out(desk, {}, format="Parquet")
    check_mutants(run, desk, "a.parquet", mutants, good, 300)
    record_property("tried", len(mutants))


@pytest.mark.parametrize("codec", list(PACKERS) if FULL else ["gz", "zst"])
def test_mutated_archives(run: Commands, desk: Path, codec: str, record_property: Note) -> None:
    """Archives with flipped bits or truncated: nothing of a damaged one is kept, the good one next to it is."""
    rng = random.Random(3)
    text = b"".join(line(id=n, text=f"Some {rng.random()} words of text {rng.random()}.") for n in range(200))
    good = PACKERS[codec](iter([text]))
    mutants = [content for _, content in mutated(good, 100 if FULL else 8, head=10, tail=12)]
    names = [f"a{number}.jsonl.{codec}" for number in range(len(mutants))]
    lay_out(desk, {**dict(zip(names, mutants, strict=True)), "good.jsonl": GOOD})
    answer = run(desk, *RUN)
    assert answer.held(600 * MB), answer
    found = fates(desk)
    assert found.pop("good.jsonl") == ONE
    assert sorted(found) == sorted(names)
    assert sum(bool(fate.quarantined) for fate in found.values()) > len(names) // 2
    for name, fate in found.items():
        output = desk / "out" / name.removesuffix(f".{codec}")
        kept = output.read_bytes() if output.exists() else b""
        assert kept == (text if fate.kept else b""), name  # bits that say nothing may change
    record_property("tried", len(mutants))


@pytest.mark.skipif(not FULL, reason="takes minutes: make test-hostile")
def test_a_hundred_thousand_tiny_files(run: Commands, desk: Path) -> None:
    """100,000 files of one document, 4,000 per partition: read within 900 MB and five minutes, all counted."""
    folder = lay_out(desk, {}) / "in"
    for number in range(100_000):
        below = folder / f"{number % 100}"
        if number < 100:
            below.mkdir()
        (below / f"{number}.jsonl").write_bytes(GOOD)
    (desk / "r.yaml").write_text(
        (desk / "r.yaml").read_text().replace("file_paths: in", "file_paths: in, files_per_partition: 4000")
    )
    answer = run(desk, *RUN, seconds=300)
    assert answer.held(900 * MB), answer
    assert "100,000 documents in, 100,000 kept" in answer.said
    assert run(desk, "verify", "out").code == 0
    shutil.rmtree(desk / "in")
