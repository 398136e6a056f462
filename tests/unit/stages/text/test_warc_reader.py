"""WarcReader in pipelines: every record accounted for, found again, the same on any number of workers."""

from __future__ import annotations

import json
import shutil

import pyarrow.parquet as pq
import pytest

from gristmill.backends.local.executor import LocalExecutor
from gristmill.cli.report_view import reasons
from gristmill.errors import MissingColumnError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.ask.lookup import source_record
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.text.download.common_crawl.warc_iterator import CommonCrawlWarcIterator
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io.documents import DocumentReader
from gristmill.stages.text.io.reader.warc import WarcReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.storage.row_formats import Broken
from tests.outputs import contents_of
from tests.unit.storage.warc_files import PAGE, record, response, stored

FREE = (
    "dolma/sample-0001.warc.gz",
    "warcio/example.arc.gz",
    "warcio/example.warc.gz",
    "warcio/example-trunc.warc",
    "warcio/post-test.warc.gz",
)
LARGER = ("pywb/dupes.warc.gz", "pywb/example.arc.gz", "pywb/iana.warc.gz", "warcio/example-trunc.warc")
SKIPPED = {"metadata": 1, "request": 21, "warcinfo": 6}
"""What is not a document in FREE."""


@pytest.fixture
def crawl(tmp_path, shared_data):
    """Archives that others wrote, one of them damaged, and one cut off and damaged in the middle."""
    return crawl_of(FREE, shared_data, tmp_path / "crawl")


def crawl_of(names, data, folder):
    folder.mkdir()
    for name in names:
        shutil.copyfile(data / "warc_real" / name, folder / name.rpartition("/")[2])
    pieces = stored([record(number) for number in range(40)], "gz")
    pieces[11] = pieces[11][:50] + b"\xff\xff\xff\xff" + pieces[11][54:]
    (folder / "cut.warc.gz").write_bytes(b"".join(pieces)[:-30])
    return folder


def run(source, output, *, workers=0, writer=ParquetWriter, **options):
    pipeline = Pipeline(name="pages", stages=[WarcReader(str(source), **options), writer(str(output))])
    return pipeline.run(LocalExecutor({"num_cpus": workers}))


def stages_of(output):
    found = json.loads((output.parent / f"{output.name}.gristmill" / "run.json").read_text())["stages"]
    return {stage["stage"]: stage for stage in found}


@pytest.mark.parametrize(
    ("data", "names", "skipped", "dropped"),
    [
        ("shared_data", FREE, SKIPPED, {"media_type": 3, "revisit": 1}),
        ("larger_data", LARGER, {"request": 184, "warcinfo": 5}, {"media_type": 30, "revisit": 132}),
    ],
)
def test_every_record_is_accounted_for(data, names, skipped, dropped, tmp_path, request):
    crawl, output = crawl_of(names, request.getfixturevalue(data), tmp_path / "crawl"), tmp_path / "out"
    run(crawl, output)
    stages = stages_of(output)
    assert stages["warc_reader"]["quarantined"] == {"corrupt_archive": 1, "truncated_record": 1, "wrong_length": 1}
    assert stages["warc_reader"]["skipped"] == skipped
    assert stages["warc_pages"]["dropped"] == dropped
    assert stages["warc_pages"]["rows_out"] == sum(pq.read_metadata(path).num_rows for path in output.iterdir())
    assert verify(str(output)).problems == []


def test_a_missing_column_names_the_archives_beside_the_records(tmp_path):
    (tmp_path / "gold.jsonl").write_text('{"body": "a"}\n')
    (tmp_path / "b.warc.gz").write_bytes(b"".join(stored([record(0)], "gz")))
    words = ScoreFilter(WordCountFilter(min_words=1))
    pipeline = Pipeline("texts", stages=[DocumentReader(str(tmp_path)), words])
    with pytest.raises(MissingColumnError, match=r"1 JSONL file was considered.*--input-filetype warc \(WarcReader\)"):
        pipeline.explain()


def test_skipped_records_are_counted_once_over_a_resumed_run(crawl, tmp_path):
    output = tmp_path / "out"
    hidden = crawl / "_sample-0001.warc.gz"
    (crawl / "sample-0001.warc.gz").rename(hidden)
    first = run(crawl, output).report.stages[0].skipped
    hidden.rename(crawl / "sample-0001.warc.gz")
    assert run(crawl, output).report.stages[0].skipped == SKIPPED
    assert 0 < first["request"] < SKIPPED["request"]
    assert f"not documents: request {SKIPPED['request']}, " in reasons(run(crawl, output).report.stages[0])


def test_documents_are_found_again(crawl, tmp_path):
    output = tmp_path / "out"
    run(crawl, output)
    ledger = Ledger(str(output))
    [kept] = ledger.why("http://example.org/7").documents
    assert kept.status == "kept"
    posted = ledger.why("http://httpbin.org/post").documents
    reasons = [[(one.stage, one.reason) for one in document.decisions] for document in posted]
    assert reasons == [[("warc_pages", "media_type")]] * 2
    again = ledger.why("http://example.com/").documents
    assert [one.decisions[-1].reason for one in again if one.decisions] == ["revisit"]
    entry = ledger.entry(kept.partition)
    assert entry is not None
    found = source_record(entry, kept.row)
    assert found is not None
    assert found["html"] == PAGE


def test_any_number_of_workers_gives_the_same_bytes(crawl, tmp_path):
    for workers in (0, 2):
        run(crawl, tmp_path / f"out{workers}", workers=workers)
    assert contents_of(tmp_path / "out0") == contents_of(tmp_path / "out2")


def test_only_the_asked_for_columns_are_given(crawl, tmp_path):
    run(crawl / "cut.warc.gz", tmp_path / "out", fields=["url", "offset"])
    table = pq.read_table(tmp_path / "out")
    assert table.column_names == ["url", "offset"]
    assert table.num_rows == 38


def test_a_wet_file_is_read_by_what_reads_any_file(tmp_path, shared_data):
    source = shared_data / "warc_real" / "whirlwind" / "whirlwind.warc.wet.gz"
    output = tmp_path / "out"
    Pipeline(name="x", stages=[DocumentReader(str(source)), JsonlWriter(str(output))]).run(
        LocalExecutor({"num_cpus": 0})
    )
    [line] = next(output.iterdir()).read_text().splitlines()
    document = json.loads(line)
    assert document["url"] == "https://an.wikipedia.org/wiki/Escopete"
    assert document["language"] == "spa"
    assert "Escopete" in document["text"]


def test_options_that_cannot_work_are_refused():
    with pytest.raises(UsageError, match="record_types='responses'"):
        WarcReader("x", record_types=["responses"])
    with pytest.raises(UsageError, match="such as 'text/html'"):
        WarcReader("x", media_types=["html"])
    with pytest.raises(UsageError, match="max_body_bytes"):
        WarcReader("x", max_body_bytes="much")


def test_revisits_are_documents_for_those_who_ask(crawl, tmp_path):
    run(
        crawl / "example.warc.gz", tmp_path / "out", record_types=["response", "revisit"], fields=["record_type", "url"]
    )
    types = pq.read_table(tmp_path / "out").column("record_type").to_pylist()
    assert types.count("revisit") == 1


def test_the_iterator_gives_pages_as_dictionaries(tmp_path):
    path = tmp_path / "a.warc.gz"
    picture = record(1, response(b"\x89PNG", b"Content-Type: image/png"))
    records = [record(0), picture, record(2, b"x", kind="metadata"), record(3)]
    path.write_bytes(b"".join(stored(records, "gz"))[:-9])
    iterator = CommonCrawlWarcIterator()
    first, second, broken = iterator.iterate(str(path))
    assert first == {"url": "http://example.org/0", "warc_id": "0", "source_id": "a.warc.gz", "content": PAGE}
    assert list(first) == iterator.output_columns()
    assert second["content"] == b"\x89PNG"
    assert isinstance(broken, Broken)
