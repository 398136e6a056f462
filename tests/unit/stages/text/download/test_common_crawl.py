from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.errors import InputError, InputNotFoundError, UsageError
from gristmill.pipeline import Pipeline
from gristmill.stages.text.download.base import DocumentIterator, URLGenerationStage
from gristmill.stages.text.download.common_crawl import stage as common_crawl
from gristmill.stages.text.download.common_crawl import url_generation
from gristmill.stages.text.download.common_crawl.download import CommonCrawlWARCReader
from gristmill.stages.text.download.common_crawl.stage import CommonCrawlDownloadExtractStage, url_generator
from gristmill.stages.text.download.common_crawl.url_generation import (
    MainCommonCrawlUrlGenerator,
    NewsCommonCrawlUrlGenerator,
)
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks import DocumentBatch
from tests.http_server import WebServer, web_server

SNAPSHOTS = ["2023-50", "2024-10", "2024-18", "2024-22"]


def warc(*pages: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """A WARC file with these pages, each a gzip member, and where they lie."""
    content, places = b"", []
    for number, page in enumerate(pages):
        http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s" % (len(page), page)
        fields = {
            "WARC-Type": "response",
            "WARC-Target-URI": f"http://example.org/{number}",
            "WARC-Date": "2024-03-01T00:00:00Z",
            "WARC-Record-ID": f"<urn:uuid:00000000-0000-0000-0000-{number:012d}>",
            "Content-Type": "application/http; msgtype=response",
            "Content-Length": str(len(http)),
        }
        head = "".join(["WARC/1.0\r\n", *(f"{name}: {value}\r\n" for name, value in fields.items()), "\r\n"])
        member = gzip.compress(head.encode() + http + b"\r\n\r\n")
        places.append((len(content), len(member)))
        content += member
    return content, places


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server() as server:
        names = [f"CC-MAIN-{name}" for name in reversed(SNAPSHOTS)]
        listed = [{"id": name, "name": f"{name} Index"} for name in [*names, "CC-MAIN-2009-2010", "CC-MAIN-2012"]]
        server.files["/collinfo.json"] = json.dumps(listed).encode()
        for name in names:
            files = [f"crawl-data/{name}/segments/17.{number}/warc/{name}-{number:05d}.warc.gz" for number in range(3)]
            server.files[f"/crawl-data/{name}/warc.paths.gz"] = gzip.compress("\n".join([*files, ""]).encode())
            for number, file in enumerate(files):
                content, _ = warc(f"<p>{name} {number} a".encode(), f"<p>{name} {number} b".encode())
                server.files[f"/{file}"] = content
        months = ["2023/12", "2024/01"]
        for month in months:
            listing = f"crawl-data/CC-NEWS/{month}/CC-NEWS-1.warc.gz\n".encode()
            server.files[f"/crawl-data/CC-NEWS/{month}/warc.paths.gz"] = gzip.compress(listing)
        yield server


def main(web: WebServer, start: str, end: str, **options: Any) -> MainCommonCrawlUrlGenerator:
    return MainCommonCrawlUrlGenerator(start, end, web.url, index_prefix=f"{web.url}/", **options)


def test_main_urls(web: WebServer) -> None:
    generator = main(web, "2024-10", "2024-18")
    assert generator.generate_path_urls() == [
        f"{web.url}/crawl-data/CC-MAIN-{name}/warc.paths.gz" for name in ("2024-10", "2024-18")
    ]
    urls = generator.generate_urls()
    assert len(urls) == 6
    assert urls[0] == f"{web.url}/crawl-data/CC-MAIN-2024-10/segments/17.0/warc/CC-MAIN-2024-10-00000.warc.gz"
    limited = main(web, "2024-10", "2024-22", limit=2)
    web.requests.clear()
    assert limited.generate_urls() == urls[:2]
    assert len(web.requests) == 2  # the snapshots behind the limit are not listed


def test_news_urls(web: WebServer) -> None:
    urls = NewsCommonCrawlUrlGenerator("2023-12", "2024-01", web.url).generate_urls()
    assert urls == [f"{web.url}/crawl-data/CC-NEWS/{month}/CC-NEWS-1.warc.gz" for month in ("2023/12", "2024/01")]
    with pytest.raises(InputNotFoundError, match=r"2024/02/warc.paths.gz.*not published yet"):
        NewsCommonCrawlUrlGenerator("2024-02", "2024-02", web.url).generate_urls()


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        ("2024-10", "2023-50", "Swap them"),
        ("2024", "2024-10", "such as 2024-10"),
        ("CC-MAIN-2024-10", "2024-10", "Omit 'CC-MAIN-'"),
        ("2024-54", "2024-54", "no week 54"),
        ("2012-10", "2024-10", "begin with 2013-20"),
        ("2024-1", "2024-10", "not a snapshot"),
    ],
)
def test_snapshots_are_checked_at_once(start: str, end: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        url_generator(start, end)


def test_news_is_by_month() -> None:
    with pytest.raises(UsageError, match="no month 40"):
        url_generator("2024-40", "2024-40", "news")
    with pytest.raises(UsageError, match="begins with 2016-08"):
        url_generator("2010-01", "2024-01", "news")
    with pytest.raises(UsageError, match="must be 'main' or 'news'"):
        url_generator("2024-10", "2024-10", "nws")  # type: ignore[arg-type]


def test_snapshot_that_does_not_exist(web: WebServer) -> None:
    with pytest.raises(UsageError, match=r"no snapshot '2024-11'.*2024-10, 2024-18"):
        main(web, "2024-11", "2024-18").generate_urls()


def test_lists_that_are_none(web: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files["/crawl-data/CC-MAIN-2024-10/warc.paths.gz"] = b"<html>busy"
    with pytest.raises(InputError, match="not a list of files"):
        main(web, "2024-10", "2024-10").generate_urls()
    monkeypatch.setattr(url_generation, "_MAX_LIST_BYTES", 1000)
    web.files["/crawl-data/CC-MAIN-2024-10/warc.paths.gz"] = gzip.compress(bytes(2000))
    with pytest.raises(InputError, match="holds more than"):
        main(web, "2024-10", "2024-10").generate_urls()
    web.files["/collinfo.json"] = b"<html>busy"
    with pytest.raises(InputError, match="not Common Crawl's list of snapshots"):
        main(web, "2024-10", "2024-10").generate_urls()


class Pages(DocumentIterator):
    """A plain reader of WARC files."""

    def iterate(self, file_path: str) -> Iterator[dict[str, Any]]:
        with gzip.open(file_path) as file:
            for record in file.read().split(b"WARC/1.0\r\n")[1:]:
                head, _, page = record.decode().split("\r\n\r\n")[:3]
                yield {"url": head.partition("Target-URI: ")[2].splitlines()[0], "text": page}

    def output_columns(self) -> list[str]:
        return ["url", "text"]


def test_from_snapshot_to_documents(web: WebServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common_crawl, "_parts", lambda *given: (Pages(), None))
    stage = CommonCrawlDownloadExtractStage(
        "2024-10", "2024-18", str(tmp_path / "downloads"), url_limit=4, record_limit=1, data_prefix=web.url,
        index_prefix=web.url, max_bytes_per_second="100MB", keep_downloads=False,
    )  # fmt: skip
    result = Pipeline("crawl", stages=[stage, JsonlWriter(str(tmp_path / "out"))]).run(progress=False)
    assert result.report.rows_written == 4
    texts = [
        json.loads(line)["text"] for path in (tmp_path / "out").iterdir() for line in path.read_text().splitlines()
    ]
    assert sorted(texts) == [f"<p>CC-MAIN-{name} a" for name in ("2024-10 0", "2024-10 1", "2024-10 2", "2024-18 0")]
    source = stage.decompose()[0]
    assert isinstance(source, URLGenerationStage)
    assert (
        source.partitions()[0].name == "crawl-data__CC-MAIN-2024-10__segments__17.0__warc__CC-MAIN-2024-10-00000.warc"
    )


def test_records_from_an_index(web: WebServer) -> None:
    content, places = warc(b"<p>first", b"<p>second")
    web.files["/x/file.warc.gz"] = content
    rows = [("x/file.warc.gz", *places[1]), ("x/file.warc.gz", *places[0]), ("x/none.warc.gz", 0, 10)]
    rows += [("x/file.warc.gz", places[1][0] + 3, 20), (None, 0, 10), ("x/file.warc.gz", 0, 0)]
    names = ["warc_filename", "warc_record_offset", "warc_record_length"]
    table = pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})
    reader = CommonCrawlWARCReader(data_prefix=web.url, max_retries=0)
    found = reader.process(DocumentBatch(data=table)).to_pyarrow()
    assert found["binary_content"].to_pylist() == [b"<p>second", b"<p>first"]
    reader = CommonCrawlWARCReader(data_prefix=web.url, max_retries=0, drop_failed=False, binary_content_col="html")
    kept = reader.process(DocumentBatch(data=table)).to_pyarrow()["html"].to_pylist()
    assert kept == [b"<p>second", b"<p>first", None, None, None, None]
