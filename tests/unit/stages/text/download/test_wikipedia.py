"""From the files of a dump on a server to documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.text.download.wikipedia import (
    WikipediaDownloadExtractStage,
    WikipediaExtractor,
    WikipediaIterator,
)
from gristmill.stages.text.io.documents import DocumentReader
from gristmill.stages.text.io.reader.wikipedia import WikipediaReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.storage.row_formats import Broken
from tests.http_server import web_server
from tests.wikipedia_dump import DUMP, NAME, TITLES, write_multistream


def written(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "out").iterdir())
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


def test_a_dump_is_downloaded_and_extracted(tmp_path: Path) -> None:
    dump, offsets = write_multistream(tmp_path)
    stored = bytearray(dump.read_bytes())
    stored[offsets[2] + 200] ^= 0xFF
    name = "enwiki-20240101-pages-articles-multistream1.xml-p1p9.bz2"
    files = {name: {"size": len(stored), "url": f"/enwiki/20240101/{name}"}}
    status = {"jobs": {"articlesmultistreamdump": {"status": "done", "files": files}}}
    with web_server() as web:
        web.files["/enwiki/20240101/dumpstatus.json"] = json.dumps(status).encode()
        web.files[f"/enwiki/20240101/{name}"] = bytes(stored)
        stage = WikipediaDownloadExtractStage(
            download_dir=str(tmp_path / "downloads"), dump_date="20240101", wikidumps_index_prefix=web.url
        )
        pipeline = Pipeline("wikipedia", stages=[stage, JsonlWriter(str(tmp_path / "out"))])
        report = pipeline.run(progress=False, error_budget=1).report
    documents = written(tmp_path)
    assert [document["title"] for document in documents] == [*TITLES[2:4], *TITLES[6:]]
    assert set(documents[0]) == {"text", "id", "title", "url", "language", "source_id", "kind", "file_name"}
    assert documents[0]["text"].startswith("Actresses (Catalan: Actrius) is a 1997 Catalan language")
    assert documents[0]["source_id"] == documents[0]["file_name"] == name
    assert (report.rows_read, report.rows_written) == (7, 5)  # a page of several meanings is dropped, a stream is bad
    [bad] = read_quarantine(RunFolder(str(tmp_path / "out")))
    assert bad.record.cause == "corrupt_archive"
    assert verify(str(tmp_path / "out")).ok


def test_iterator_and_extractor_by_hand() -> None:
    iterator, extractor = WikipediaIterator("en"), WikipediaExtractor("en")
    records = [record for record in iterator.iterate(str(DUMP)) if not isinstance(record, Broken)]
    assert [record["title"] for record in records] == TITLES[1:]
    assert set(records[0]) == set(iterator.output_columns())
    assert set(extractor.input_columns()) <= set(iterator.output_columns())
    assert extractor.extract(records[0]) is None
    document = WikipediaExtractor(kinds=["disambiguation"]).extract(records[0])
    assert document is not None
    assert list(document) == extractor.output_columns()
    assert document["text"].startswith("Aa is the name of a large number of small European rivers.")


@pytest.mark.parametrize("blocksize", [None, 3000])
def test_the_reader_of_dumps_is_a_reader_like_others(tmp_path: Path, blocksize: int | None) -> None:
    (tmp_path / "in").mkdir()
    write_multistream(tmp_path / "in")
    reader = DocumentReader(str(tmp_path / "in"), blocksize=blocksize)  # the index beside the dump is no data
    report = Pipeline("x", stages=[reader, JsonlWriter(str(tmp_path / "out"))]).run(progress=False).report
    assert [document["title"] for document in written(tmp_path)] == TITLES[2:]
    assert report.partitions == (1 if blocksize is None else 4)
    assert verify(str(tmp_path / "out")).ok
    [found] = Ledger(str(tmp_path / "out")).why("https://en.wikipedia.org/wiki/Ampere").documents
    assert NAME in str(found)


def test_options_that_cannot_work() -> None:
    with pytest.raises(UsageError, match=r"WikipediaReader\(kinds='page'\).*'article', 'list'"):
        WikipediaReader("x.xml", kinds=["page"])
    with pytest.raises(UsageError, match="tables='html'"):
        WikipediaReader("x.xml", tables="html")
