"""What the web sends that is broken or meant to harm: set aside with place and cause, and the run goes on."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.extraction import HtmlExtractor
from gristmill.stages.text.io import DocumentReader, JsonlWriter
from tests.unit.storage.warc_files import record, response, stored

GOOD = "A mill grinds grain between two stones, as it did long ago."
PAGE = f"<html><body><main><p>{GOOD}</p></main></body></html>".encode()


def run(source: Path, output: Path) -> tuple[list[str], dict[str, int], Any]:
    """The texts that come out, what was set aside by cause, and the report."""
    extract = [] if source.suffix in (".xml", ".tar") else [HtmlExtractor("fast")]
    stages = [DocumentReader(str(source)), *extract, JsonlWriter(str(output))]
    pipeline = Pipeline("bad", stages=stages)
    report = pipeline.run(LocalExecutor({"num_cpus": 0}), progress=False, report=False, error_budget=None).report
    assert verify(str(output)).problems == []
    texts = [
        json.loads(line)["text"] for path in sorted(output.glob("*.jsonl")) for line in path.read_text().splitlines()
    ]
    causes: dict[str, int] = {}
    for stage in report.stages:
        for cause, number in stage.quarantined.items():
            causes[cause] = causes.get(cause, 0) + number
    return texts, causes, report


def members(*blocks: bytes) -> list[bytes]:
    return stored([record(number, block) for number, block in enumerate(blocks)], "gz")


def in_a_crawl(folder: Path, *pages: bytes, headers: bytes = b"Content-Type: text/html") -> Path:
    path = folder / "crawl.warc.gz"
    path.write_bytes(b"".join(members(*(response(page, headers) for page in pages))))
    return path


def test_a_truncated_gzip_member(tmp_path: Path) -> None:
    path = tmp_path / "crawl.warc.gz"
    first, cut, last = members(*(response(PAGE, b"Content-Type: text/html") for _ in range(3)))
    path.write_bytes(first + cut[: len(cut) // 2] + last)
    texts, causes, _ = run(path, tmp_path / "out")
    assert texts == [GOOD] * 2
    assert causes == {"corrupt_archive": 1}


def test_an_archive_of_zeros(tmp_path: Path) -> None:
    folder = tmp_path / "crawl"
    folder.mkdir()
    in_a_crawl(folder, PAGE)
    (folder / "zeros.warc").write_bytes(bytes(1 << 20))
    texts, causes, _ = run(folder, tmp_path / "out")
    assert texts == [GOOD]
    assert causes == {"not_warc": 1}


@pytest.mark.parametrize(
    ("page", "cause"),
    [
        (b"<div>" * 100_000, "nested_too_deeply"),
        (b"<b></i>" * 50_000, "nested_too_deeply"),
        (b"<p>a" * 12_500_000, "page_too_large"),
    ],
    ids=["100,000 nested tags", "closed by other tags", "50 MB"],
)
def test_pages_that_no_parser_gets(tmp_path: Path, page: bytes, cause: str) -> None:
    texts, causes, _ = run(in_a_crawl(tmp_path, PAGE, page, PAGE), tmp_path / "out")
    assert texts == [GOOD] * 2
    assert causes == {cause: 1}


@pytest.mark.parametrize(("said", "true"), [("utf-8", "cp1252"), ("cp1252", "utf-8"), ("nonsense", "utf-8")])
def test_a_charset_that_lies(tmp_path: Path, said: str, true: str) -> None:
    text = "Die Mühle mahlt das Getreide zwischen zwei Steinen, wie vor langer Zeit: für Bäcker, Köche und Gäste."
    page = f"<html><head><meta charset='{said}'></head><body><main><p>{text}</p></main></body></html>".encode(true)
    headers = f"Content-Type: text/html; charset={said}".encode()
    texts, causes, _ = run(in_a_crawl(tmp_path, page, headers=headers), tmp_path / "out")
    assert texts == [text]
    assert causes == {}


def test_a_billion_laughs(tmp_path: Path) -> None:
    kinds = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 10))
    path = tmp_path / "Posts.xml"
    path.write_text(
        f'<?xml version="1.0"?><!DOCTYPE posts [<!ENTITY l0 "lol">{kinds}]>'
        '<posts><row Id="1" PostTypeId="1" Body="&l9;" /></posts>'
    )
    texts, causes, _ = run(path, tmp_path / "out")
    assert texts == []
    assert sum(causes.values()) == 1


def test_an_archive_with_paths_and_links_that_lead_out(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    path = tmp_path / "texts.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("good.txt", str(tmp_path / "absolute.txt"), "../outside.txt"):
            member = tarfile.TarInfo(name)
            member.size = len(GOOD)
            archive.addfile(member, io.BytesIO(GOOD.encode()))
        for name, kind in (("link.txt", tarfile.SYMTYPE), ("hard.txt", tarfile.LNKTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, str(secret)
            archive.addfile(member)
    texts, causes, _ = run(path, tmp_path / "out")
    assert "secret" not in texts
    assert set(texts) == {GOOD}
    assert len(texts) + sum(causes.values()) == 5
    assert not (tmp_path / "absolute.txt").exists()
    assert not (tmp_path.parent / "outside.txt").exists()
