"""Archives of arXiv: papers of every packing become documents, everything else is quarantined with its cause."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.text.download.arxiv import (
    ArxivDownloader,
    ArxivDownloadExtractStage,
    ArxivExtractor,
    ArxivIterator,
)
from gristmill.stages.text.download.arxiv.papers import Paper, papers
from gristmill.stages.text.download.base import DocumentDownloadExtractStage, URLGenerator
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.storage.row_formats import Broken
from tests.http_server import WebServer, web_server

DATA = Path(__file__).parents[4] / "data" / "latex"
SINGLE = rb"\documentclass{article}\begin{document}\section{One} Alone.\end{document}"
BOMB = rb"\def\a{xxxxxxxxxx}" + b"".join(
    b"\\def\\%c{%s}" % (98 + n, b"\\%c" % (97 + n) * 10) for n in range(12)
)  # fmt: skip


def tar_of(files: dict[str, bytes | tarfile.TarInfo]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for name, content in files.items():
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def archive() -> bytes:
    """What a file of arXiv holds, and what one must not hold."""
    several = {"ms.tex": rb"\documentclass{article}\begin{document}\input{body}\end{document}", "body.tex": b"Body."}
    return tar_of(
        {
            "2101/2101.00001.gz": gzip.compress(SINGLE),
            "2101/2101.00002.gz": gzip.compress(tar_of({**several, "figure.png": b"\x89PNG\0"})),
            "2101/2101.00003.pdf": b"%PDF-1.5 ...",
            "2101/astro-ph0001001.gz": gzip.compress(SINGLE),
            "2101/2101.00004.gz": gzip.compress(SINGLE)[:-12],
            "2101/2101.00005.gz": b"\x1f\x8b\x08nonsense",
            "/etc/passwd": b"root",
            "../up.gz": gzip.compress(SINGLE),
            "2101/link.gz": link("2101/link.gz", "/etc/passwd"),
            "2101/hard.gz": link("2101/hard.gz", "2101/2101.00001.gz", tarfile.LNKTYPE),
            "2101/pipe": link("2101/pipe", "", tarfile.FIFOTYPE),
            "2101/2101.00006.gz": gzip.compress(tar_of({**several, "x.tex": link("x.tex", "../../secret.tex")})),
            "2101/2101.00007.gz": gzip.compress(b"%auto-ignore\nwithdrawn"),
            "2101/2101.00008.gz": gzip.compress(b""),
            "2101/2101.00009.gz": gzip.compress(tar_of({"readme.txt": b"only this"})),
            "2101/2101.00010.gz": gzip.compress(BOMB + rb"\begin{document}\m\end{document}"),
            "2101/2101.00011.gz": gzip.compress(rb"\documentclass{article}\begin{document}\end{document}"),
            "2101/2101.00012.gz": gzip.compress(tar_of(several)[:700] + b"\xff" * 600),
        }
    )


def found_in(content: bytes) -> tuple[list[Paper], list[tuple[str, str]]]:
    found = list(papers(io.BytesIO(content)))
    broken = [(one.cause, one.detail) for one in found if isinstance(one, Broken)]
    return [one for one in found if isinstance(one, Paper)], broken


def test_every_packing_is_read_and_nothing_is_followed() -> None:
    """Single files and tars are papers; links, pipes and paths that lead outside are named and left."""
    good, broken = found_in(archive())
    assert [paper.id for paper in good] == [
        "2101.00001", "2101.00002", "astro-ph/0001001", "2101.00006", "2101.00010", "2101.00011",
    ]  # fmt: skip
    assert set(good[1].files) == {"ms.tex", "body.tex"}
    causes = [cause for cause, _ in broken]
    assert causes == [
        "no_latex", "truncated_file", "corrupt_archive", *["unsafe_member"] * 6, "no_latex", "no_latex", "no_latex",
        "corrupt_archive",
    ]  # fmt: skip
    assert "PdfReader" in broken[0][1]
    assert "withdrawn" in broken[9][1]


@pytest.mark.parametrize(
    ("content", "cause"), [(b"\0" * 1000, None), (b"no tar at all" * 100, "corrupt_archive"), (b"", "corrupt_archive")]
)
def test_what_is_no_archive(content: bytes, cause: str | None) -> None:
    """Zeros are an empty archive; anything else is damaged."""
    good, broken = found_in(content)
    assert (good, [found for found, _ in broken]) == ([], [cause] if cause else [])


def test_a_cut_archive_gives_what_lies_before_the_cut() -> None:
    """The rest is one broken piece."""
    whole = archive()
    good, broken = found_in(whole[: 512 * 5 + 100])
    assert [paper.id for paper in good] == ["2101.00001", "2101.00002"][: len(good)]
    assert broken[-1][0] == "truncated_file"


def test_real_sources_keep_their_words(tmp_path: Path) -> None:
    """Documents of journals: nearly every word of the running text comes through, no command does."""
    sources = sorted(DATA.glob("*.tex.gz"))
    assert len(sources) == 2
    for path in sources:
        content = gzip.decompress(path.read_bytes())
        file = tmp_path / "arXiv_src_2101_001.tar"
        file.write_bytes(tar_of({"2101/2101.00001.gz": gzip.compress(content)}))
        (record,) = ArxivIterator().iterate(str(file))
        assert isinstance(record, dict)
        document = ArxivExtractor().extract(record)
        assert document is not None
        wanted = json.loads(path.with_suffix("").with_suffix(".json").read_text())
        assert document["title"] == wanted["title"]
        for passage in wanted["passages"]:
            assert passage in document["text"]
        for passage in wanted["gone"]:
            assert passage not in document["text"]


class Listed(URLGenerator):
    def __init__(self, urls: list[str]) -> None:
        self.urls = urls

    def generate_urls(self) -> list[str]:
        return self.urls


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        server.files["/src/arXiv_src_2101_001.tar"] = archive()
        yield server


def test_an_archive_becomes_documents(web: WebServer, tmp_path: Path) -> None:
    """Downloaded, read and committed; every member of the archive is accounted for."""
    stage = DocumentDownloadExtractStage(
        Listed([web.url + path for path in web.files]),
        ArxivDownloader(str(tmp_path / "downloads")),
        ArxivIterator(),
        ArxivExtractor(),
    )
    out = tmp_path / "out"
    report = Pipeline("arxiv", stages=[stage, JsonlWriter(str(out))]).run(progress=False, error_budget=1.0).report
    (written,) = out.glob("*.jsonl")
    documents = [json.loads(line) for line in written.read_text().splitlines()]
    assert [document["id"] for document in documents] == ["2101.00001", "2101.00002", "astro-ph/0001001", "2101.00006"]
    assert documents[0] == {
        "id": "2101.00001",
        "source_id": "arXiv_src_2101_001.tar",
        "title": "",
        "text": "## One\n\nAlone.",
        "file_name": "arXiv_src_2101_001.tar",
    }
    causes = [entry.record.cause for entry in read_quarantine(RunFolder(str(out)))]
    assert sorted(set(causes)) == [
        "corrupt_archive", "extraction_failed", "no_latex", "truncated_file", "unsafe_member",
    ]  # fmt: skip
    assert (report.rows_read, report.rows_written) == (19, 4)
    assert verify(str(out)).ok
    assert [path.name for path in (tmp_path / "downloads").iterdir() if path.name[0] != "."] == [
        "arXiv_src_2101_001.tar"
    ]


def test_the_stage_has_the_parts_of_arxiv() -> None:
    """And says its columns before anything is downloaded."""
    stage = ArxivDownloadExtractStage("downloads/", record_limit=5, log_frequency=10)
    assert stage.outputs()[1] == ["id", "source_id", "title", "text", "file_name"]
    assert stage.iterator.log_frequency == 10


def test_archives_of_this_machine_are_read_where_they_are(tmp_path: Path) -> None:
    """Nothing is downloaded, copied or removed."""
    (tmp_path / "in").mkdir()
    for number in (1, 2):
        content = tar_of({f"2101/2101.0000{number}.gz": gzip.compress(SINGLE)})
        (tmp_path / "in" / f"arXiv_src_2101_00{number}.tar").write_bytes(content)
    out = tmp_path / "out"
    stage = ArxivDownloadExtractStage(str(tmp_path / "downloads"), archives=str(tmp_path / "in"))
    report = Pipeline("arxiv", stages=[stage, JsonlWriter(str(out))]).run(progress=False).report
    assert (report.partitions, report.rows_written) == (2, 2)
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out", "out.gristmill"}
    assert len(list((tmp_path / "in").iterdir())) == 2
    assert verify(str(out)).ok
