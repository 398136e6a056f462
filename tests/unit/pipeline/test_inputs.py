"""What readers make of ordinary, odd and broken input, seen from the outside of a whole run."""

from __future__ import annotations

import bz2
import gzip
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from gristmill.errors import (
    InputNotFoundError,
    MissingColumnError,
    OutputError,
    PlanningError,
    SchemaConflictError,
    StageFailedError,
    UsageError,
)
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.stages.text.io.reader import partitioning
from gristmill.stages.text.io.reader.partitioning import FilePartitioningStage
from gristmill.stages.text.modifiers import Modify
from gristmill.tasks import DocumentBatch
from tests.other_engine import only_in_one_process
from tests.outputs import contents_of
from tests.pace import processor_seconds
from tests.unit.pipeline.jobs import here, read_lines, read_rows, run_json, write_lines


def _run(folder: Path, *stages: Any, reader: Any = None, **options: Any) -> Any:
    reader = JsonlReader(str(folder / "in")) if reader is None else reader
    pipeline = Pipeline("job", stages=[reader, *stages, JsonlWriter(str(folder / "out"))])
    return pipeline.run(executor=here(), **options)


def _put(folder: Path, content: bytes, name: str = "a.jsonl") -> None:
    (folder / "in").mkdir(exist_ok=True)
    (folder / "in" / name).write_bytes(content)


def _quarantine(folder: Path) -> list[dict[str, Any]]:
    files = sorted((folder / "out.gristmill" / "quarantine").glob("*"))
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@processing_stage(name="drop_everything")
def drop_everything(batch: DocumentBatch) -> DocumentBatch:
    return DocumentBatch(data=batch.to_pandas().iloc[:0])


def test_blank_lines_bom_and_crlf_are_fine(tmp_path: Path) -> None:
    _put(tmp_path, b'\xef\xbb\xbf{"text":"a"}\r\n\r\n  \t\n{"text":"b"}\r\n\n{"text":"c"}')
    result = _run(tmp_path)
    assert read_lines(tmp_path / "out") == ['{"text":"a"}', '{"text":"b"}', '{"text":"c"}']
    assert result.report.quarantined == 0
    verify(str(tmp_path / "out")).raise_for_problems()


@pytest.mark.parametrize("content", [b"", b"\n\n  \r\n", b"\xef\xbb\xbf"])
def test_a_file_without_records_gives_an_empty_result(tmp_path: Path, content: bytes) -> None:
    _put(tmp_path, content)
    result = _run(tmp_path)
    assert result.report.rows_read == 0
    assert read_lines(tmp_path / "out") == []
    verify(str(tmp_path / "out")).raise_for_problems()


def test_an_empty_file_among_others_changes_nothing(tmp_path: Path) -> None:
    _put(tmp_path, b"", "a.jsonl")
    _put(tmp_path, b'{"text":"b"}\n', "b.jsonl")
    assert _run(tmp_path, Modify(str.upper)).report.rows_written == 1


def test_bad_records_go_to_the_quarantine_with_all_that_is_known(tmp_path: Path) -> None:
    lines = [b'{"text":"good"}', b'{"text":', b'{"text":"\xff\xfe"}', b'{"text":"a\x00b"}', b"[1]", b'{"text":"last"}']
    _put(tmp_path, b"\n".join(lines) + b"\n")
    result = _run(tmp_path)
    assert read_lines(tmp_path / "out") == ['{"text":"good"}', '{"text":"last"}']
    found = _quarantine(tmp_path)
    assert [record["cause"] for record in found] == ["malformed_json", "invalid_utf8", "nul_byte", "not_an_object"]
    content = b"\n".join(lines)
    for record, line in zip(found, lines[1:5], strict=True):
        assert record["file"].endswith("in/a.jsonl")
        assert content[record["offset"] :].startswith(line)
        assert record["size"] == len(line)
    assert result.report.quarantined == 4
    assert result.report.rows_read == 6
    verify(str(tmp_path / "out")).raise_for_problems()


def test_a_record_that_is_too_long_costs_only_itself(tmp_path: Path) -> None:
    long = '{"text":"' + "x" * 5000 + '"}'
    write_lines(tmp_path / "in" / "a.jsonl", ['{"text":"a"}', long, '{"text":"b"}'])
    reader = JsonlReader(str(tmp_path / "in"), max_record_bytes="1KB")
    _run(tmp_path, reader=reader)
    assert read_lines(tmp_path / "out") == ['{"text":"a"}', '{"text":"b"}']
    (record,) = _quarantine(tmp_path)
    assert record["cause"] == "record_too_large"
    assert record["size"] == len(long)


@pytest.mark.parametrize("suffix", [".gz", ".zst", ".bz2"])
def test_compressed_input_and_output(tmp_path: Path, suffix: str) -> None:
    text = b"".join(b'{"n":%d}\n' % number for number in range(1000))
    pack = {".gz": gzip.compress, ".zst": zstandard.compress, ".bz2": bz2.compress}[suffix]
    _put(tmp_path, pack(text), "a.jsonl" + suffix)
    names = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
    Pipeline(
        "job",
        stages=[JsonlReader(str(tmp_path / "in")), JsonlWriter(str(tmp_path / "packed"), compression=names[suffix])],
    ).run(executor=here())
    assert [path.name for path in (tmp_path / "packed").glob("*.jsonl*")] == ["a.jsonl" + suffix]
    _run(tmp_path, reader=JsonlReader(str(tmp_path / "packed")))
    assert "".join(line + "\n" for line in read_lines(tmp_path / "out")).encode() == text


def test_a_truncated_archive_gives_what_can_be_read_when_salvaged(tmp_path: Path) -> None:
    lines = [f'{{"n":{number},"x":"{os.urandom(20).hex()}"}}' for number in range(5000)]
    packed = gzip.compress("".join(line + "\n" for line in lines).encode())
    _put(tmp_path, packed[: len(packed) // 2], "a.jsonl.gz")
    result = _run(tmp_path, salvage=True)
    written = read_lines(tmp_path / "out")
    assert 1000 < len(written) < 4000
    assert written == lines[: len(written)]
    (record,) = _quarantine(tmp_path)
    assert record["cause"] == "truncated_file"
    assert record["salvaged"] == len(written)
    assert result.report.quarantined == 1
    assert not verify(str(tmp_path / "out")).problems


def test_records_that_are_all_bad_fail_the_run(tmp_path: Path) -> None:
    from gristmill.errors import ErrorBudgetExceededError

    _put(tmp_path, b'{"text": oops}\n' * 50)
    with pytest.raises(ErrorBudgetExceededError, match="50 of 50"):
        _run(tmp_path)
    assert run_json(tmp_path / "out")["status"] == "failed"


def test_documents_filtered_to_nothing_leave_no_unreadable_file(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "a"}])
    write_lines(tmp_path / "in" / "b.jsonl", [{"text": "b"}])
    for writer, reader in ((JsonlWriter, JsonlReader), (ParquetWriter, ParquetReader)):
        out = tmp_path / writer.__name__
        stages = [JsonlReader(str(tmp_path / "in")), drop_everything, writer(str(out))]
        result = Pipeline("job", stages=stages).run(executor=here())
        assert result.report.rows_written == 0
        assert result.report.dropped == 2
        verify(str(out)).raise_for_problems()
        files = [path for path in out.iterdir() if path.is_file()]
        if files:
            again = Pipeline("again", stages=[reader(str(out)), JsonlWriter(str(tmp_path / f"{out.name}2"))])
            assert again.run(executor=here()).report.rows_read == 0


def test_an_input_that_matches_nothing_is_an_error_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "crawl").mkdir()
    write_lines(tmp_path / "crawl" / "a.jsonl", [{"text": "a"}])
    for missing in (
        str(tmp_path / "crawll"),
        str(tmp_path / "crawl" / "*.parquet"),
        str(tmp_path / "crawl" / "b.jsonl"),
    ):
        pipeline = Pipeline("job", stages=[JsonlReader(missing), JsonlWriter(str(tmp_path / "out"))])
        with pytest.raises(InputNotFoundError) as caught:
            pipeline.run(executor=here())
        assert missing.rsplit("/", 1)[1].strip("*") in str(caught.value)
    with pytest.raises(InputNotFoundError, match="crawl'"):
        Pipeline("job", stages=[JsonlReader(str(tmp_path / "crawll")), JsonlWriter(str(tmp_path / "out"))]).run()
    assert not (tmp_path / "out").exists()
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputNotFoundError):
        Pipeline("job", stages=[JsonlReader(str(tmp_path / "empty")), JsonlWriter(str(tmp_path / "out"))]).run()


def test_an_output_can_be_the_next_input(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "a"}])
    _run(tmp_path)
    again = Pipeline("again", stages=[JsonlReader(str(tmp_path / "out")), JsonlWriter(str(tmp_path / "out2"))])
    assert again.run(executor=here()).report.rows_read == 1
    assert read_lines(tmp_path / "out2") == read_lines(tmp_path / "out")


def test_two_runs_give_the_same_files(tmp_path: Path) -> None:
    for number in range(3):
        lines = [{"id": number * 10 + row, "text": "t" * row} for row in range(10)]
        write_lines(tmp_path / "in" / f"{number}.jsonl", lines)
    for name in ("one", "two"):
        for writer in (JsonlWriter, ParquetWriter):
            out = str(tmp_path / name / writer.__name__)
            Pipeline("job", stages=[JsonlReader(str(tmp_path / "in")), Modify(str.upper), writer(out)]).run(
                executor=here()
            )
    for writer in (JsonlWriter, ParquetWriter):
        one, two = (contents_of(tmp_path / name / writer.__name__) for name in ("one", "two"))
        assert one == two
        assert len(one) > 6


def test_limit_takes_the_first_partitions(tmp_path: Path) -> None:
    for number in range(4):
        write_lines(tmp_path / "in" / f"{number}.jsonl", [{"n": number}])
    _run(tmp_path, reader=JsonlReader(str(tmp_path / "in"), limit=2))
    assert read_rows(tmp_path / "out") == [{"n": 0}, {"n": 1}]


def test_fields_select_keys_and_keep_missing_ones_missing(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", ['{"a":1,"text":"x","b":2}', '{"text":"y","c":3}'])
    _run(tmp_path, reader=JsonlReader(str(tmp_path / "in"), fields=["text", "c"]))
    assert read_lines(tmp_path / "out") == ['{"text":"x"}', '{"text":"y","c":3}']


def test_a_field_that_no_record_has_is_found_when_planning(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    with pytest.raises(MissingColumnError, match="Did you mean 'text'"):
        _run(tmp_path, reader=JsonlReader(str(tmp_path / "in"), fields=["txt"]))
    with pytest.raises(PlanningError, match="Did you mean 'text'"):
        Pipeline(
            "job", stages=[JsonlReader(str(tmp_path / "in")), JsonlWriter(str(tmp_path / "out"), fields=["txt"])]
        ).run()
    assert not (tmp_path / "out").exists()


def test_a_field_that_is_not_in_the_parquet_input_is_found_when_planning(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "in" / "a.parquet")
    with pytest.raises(MissingColumnError, match="Did you mean 'text'"):
        _run(tmp_path, reader=ParquetReader(str(tmp_path / "in"), fields=["txt"]))
    assert not (tmp_path / "out").exists()


def test_a_rare_key_is_found_late(tmp_path: Path) -> None:
    lines = [{"id": number, "filler": "x" * 1000} for number in range(4000)]
    write_lines(tmp_path / "in" / "a.jsonl", [*lines, {"id": -1, "text": "here"}])
    result = _run(tmp_path, Modify(str.upper))
    assert result.report.rows_written == 4001
    assert read_lines(tmp_path / "out")[-1] == '{"id": -1, "text": "HERE"}'
    assert read_lines(tmp_path / "out")[0] == json.dumps(lines[0])


def test_a_key_that_planning_has_not_seen_is_left_to_the_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How much planning looks through is a number of bytes, so that the verdict is the same on every machine."""
    monkeypatch.setattr(partitioning, "_PEEK_BYTES", 1 << 12)
    monkeypatch.setattr(partitioning, "_SEARCH_BYTES", 1 << 14)
    lines = [{"id": number, "filler": "x" * 1000} for number in range(40)]
    write_lines(tmp_path / "in" / "a.jsonl", [*lines, {"id": -1, "text": "here"}])
    result = _run(tmp_path, Modify(str.upper))
    (note,) = result.report.notes
    assert re.search(r"reads column 'text', which is missing from all \d+ records sampled", note)
    assert read_lines(tmp_path / "out")[-1] == '{"id": -1, "text": "HERE"}'
    write_lines(tmp_path / "in" / "b.jsonl", lines)
    with pytest.raises(StageFailedError, match=r"No column 'text'; this batch has 'id', 'filler'. Set the sta"):
        _run(tmp_path, Modify(str.upper))
    monkeypatch.setattr(partitioning, "_SEARCH_BYTES", 1 << 20)
    write_lines(tmp_path / "in" / "a.jsonl", lines)
    with pytest.raises(MissingColumnError, match="from all 80 records"):
        _run(tmp_path, Modify(str.upper))


def test_a_large_input_is_searched_in_many_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitioning, "_PEEK_BYTES", 1 << 12)
    monkeypatch.setattr(partitioning, "_SEARCH_BYTES", 1 << 16)
    for number in range(64):
        write_lines(tmp_path / "in" / f"{number:02d}.jsonl", [{"of_" + str(number): "x" * 1000}] * 10)
    source = JsonlReader(str(tmp_path / "in")).decompose()[0]
    assert isinstance(source, FilePartitioningStage)
    found = source.columns(source.partitions(), ["of_62"])
    assert found is not None
    assert "of_62" not in found.names
    assert not found.complete
    found = source.columns(source.partitions(), ["of_32"])
    assert found is not None
    assert "of_32" in found.names, "half way through the input, far beyond the bytes that are looked at"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 13])
def test_the_places_of_a_search_lie_far_apart_and_leave_nothing_out(count: int) -> None:
    assert sorted(partitioning._spread(count)) == list(range(count))
    assert [*partitioning._spread(10)][:3] == [0, 8, 4]


def test_planning_errors_come_within_a_second_and_touch_nothing(tmp_path: Path) -> None:
    for number in range(50):
        write_lines(tmp_path / "in" / f"{number}.jsonl", [{"txt": "x" * 1000}] * 1000)
    out = tmp_path / "out"
    pipeline = Pipeline("job", stages=[JsonlReader(str(tmp_path / "in")), Modify(str.upper), JsonlWriter(str(out))])

    def refused() -> None:
        with pytest.raises(MissingColumnError, match=r"'text'.*'txt'.*Did you mean 'txt'"):
            pipeline.run(executor=here())

    # The best of several: what disturbs a measurement adds to it.
    assert min(processor_seconds(refused) for _ in range(4)) < 1
    assert not out.exists()


def test_input_and_output_folder_must_differ(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    before = (tmp_path / "in" / "a.jsonl").read_bytes()
    pipeline = Pipeline("job", stages=[JsonlReader(str(tmp_path / "in")), JsonlWriter(str(tmp_path / "in"))])
    for fresh in (False, True):
        with pytest.raises(OutputError, match="holds the input"):
            pipeline.run(executor=here(), fresh=fresh)
    assert (tmp_path / "in" / "a.jsonl").read_bytes() == before
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["a.jsonl"]


def test_an_output_below_the_input_is_refused_because_the_next_run_would_read_it(tmp_path: Path) -> None:
    write_lines(tmp_path / "a.jsonl", [{"text": "x"}])
    for out, refused in (("out", True), ("_out", False)):
        pipeline = Pipeline("job", stages=[JsonlReader(str(tmp_path)), JsonlWriter(str(tmp_path / out))])
        if refused:
            with pytest.raises(OutputError, match="inside the input folder"):
                pipeline.run(executor=here())
            assert not (tmp_path / out).exists()
        else:
            pipeline.run(executor=here())
            assert pipeline.run(executor=here()).report.partitions_done_before == 1


NOBODY = 65534


@pytest.fixture
def plain_user(tmp_path: Path) -> Iterator[Path]:
    """A folder of a user for whom something can be forbidden; for root, nothing is."""
    # What a run imports and compiles may lie where that user sees nothing.
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    _run(tmp_path)
    root = os.geteuid() == 0
    folder = Path(tempfile.mkdtemp())
    if root:
        os.chown(folder, NOBODY, NOBODY)
        os.seteuid(NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        shutil.rmtree(folder)


def test_an_output_without_permission_is_found_first(plain_user: Path) -> None:
    write_lines(plain_user / "in" / "a.jsonl", [{"text": "x"}])
    (plain_user / "locked").mkdir(mode=0o500)
    pipeline = Pipeline(
        "job", stages=[JsonlReader(str(plain_user / "in")), JsonlWriter(str(plain_user / "locked" / "out"))]
    )
    with pytest.raises(OutputError, match="Permission denied"):
        pipeline.run(executor=here())


def test_an_output_that_is_a_file_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "x"}])
    (tmp_path / "out").write_text("mine")
    with pytest.raises(OutputError, match="out"):
        _run(tmp_path)
    assert (tmp_path / "out").read_text() == "mine"


def test_parquet_keeps_its_schema_and_gets_no_index(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int16()),
            "text": pa.array(["a", "b", None], pa.string()),
            "when": pa.array([0, 1, None], pa.timestamp("us", "UTC")),
            "tags": pa.array([["x"], [], None], pa.list_(pa.string())),
            "cat": pa.array(["u", "v", "u"]).dictionary_encode(),
        },
        metadata={b"made by": b"me"},
    )
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "a.parquet")

    @processing_stage(name="filter")
    def filter_rows(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        return DocumentBatch(data=frame[frame["id"] != 2])

    for stages in ([], [filter_rows]):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        Pipeline(
            "job", stages=[ParquetReader(str(tmp_path / "in")), *stages, ParquetWriter(str(tmp_path / "out"))]
        ).run(executor=here())
        written = pq.read_table(tmp_path / "out" / "a.parquet")
        assert written.schema.equals(table.schema), stages
        assert written.schema.metadata[b"made by"] == b"me" or stages
        assert written.to_pylist() == [row for row in table.to_pylist() if not stages or row["id"] != 2]


def test_parquet_files_with_other_columns_are_unified_and_conflicts_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"id": [1], "text": ["a"]}), tmp_path / "in" / "a.parquet")
    pq.write_table(pa.table({"text": ["b"], "more": [2.5]}), tmp_path / "in" / "b.parquet")
    _run(tmp_path, reader=ParquetReader(str(tmp_path / "in")))
    assert read_rows(tmp_path / "out") == [
        {"id": 1, "text": "a", "more": None},
        {"id": None, "text": "b", "more": 2.5},
    ]
    pq.write_table(pa.table({"id": ["x"]}), tmp_path / "in" / "c.parquet")
    with pytest.raises(SchemaConflictError, match=r"a\.parquet.*c\.parquet"):
        _run(tmp_path, reader=ParquetReader(str(tmp_path / "in")), fresh=True)


def test_integers_and_floats_of_foreign_parquet_meet_only_where_exact(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"n": [1, 2]}), tmp_path / "in" / "a.parquet")
    pq.write_table(pa.table({"n": [0.5]}), tmp_path / "in" / "b.parquet")
    _run(tmp_path, reader=ParquetReader(str(tmp_path / "in")))
    assert [row["n"] for row in read_rows(tmp_path / "out")] == [1, 2, 0.5]
    pq.write_table(pa.table({"n": [2**53 + 1]}), tmp_path / "in" / "c.parquet")
    with pytest.raises(SchemaConflictError, match=r"c\.parquet.*b\.parquet"):
        _run(tmp_path, reader=ParquetReader(str(tmp_path / "in")), fresh=True)


def test_blocksize_splits_one_file_and_files_per_partition_groups_many(tmp_path: Path) -> None:
    lines = [{"n": number, "text": "x" * 200} for number in range(500)]
    write_lines(tmp_path / "in" / "a.jsonl", lines)
    result = _run(tmp_path, reader=JsonlReader(str(tmp_path / "in"), blocksize="10KB"))
    assert len(result) > 8
    assert read_rows(tmp_path / "out") == lines
    shutil.rmtree(tmp_path / "out")
    for number in range(4):
        write_lines(tmp_path / "in" / f"b{number}.jsonl", [{"n": number}])
    result = _run(tmp_path, reader=JsonlReader(str(tmp_path / "in"), files_per_partition=2))
    assert len(result) == 3
    assert result.report.rows_read == 504
    with pytest.raises(UsageError, match="mutually exclusive"):
        JsonlReader(str(tmp_path / "in"), files_per_partition=2, blocksize="1MB")


def test_a_document_larger_than_the_block_still_works(tmp_path: Path) -> None:
    lines = [{"text": "a"}, {"text": "b" * 100_000}, {"text": "c"}]
    write_lines(tmp_path / "in" / "a.jsonl", lines)
    _run(tmp_path, reader=JsonlReader(str(tmp_path / "in"), blocksize="1KB", read_kwargs={"batch_bytes": "2KB"}))
    assert list(read_rows(tmp_path / "out")) == lines


def test_path_objects_are_accepted(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "a"}])
    Pipeline("job", stages=[JsonlReader(tmp_path / "in"), JsonlWriter(tmp_path / "out")]).run(executor=here())
    Pipeline("job", stages=[JsonlReader([tmp_path / "in" / "a.jsonl"]), JsonlWriter(tmp_path / "o2")]).run(
        executor=here()
    )
    assert read_rows(tmp_path / "out") == read_rows(tmp_path / "o2") == [{"text": "a"}]


@only_in_one_process
def test_memory_urls_work_at_both_ends(tmp_path: Path) -> None:
    import fsspec

    files = fsspec.filesystem("memory")
    files.pipe("/corpus/a.jsonl", b'{"text":"a"}\n')
    Pipeline("job", stages=[JsonlReader("memory://corpus"), JsonlWriter("memory://clean")]).run(executor=here())
    assert files.cat("/clean/a.jsonl") == b'{"text":"a"}\n'
    verify("memory://clean").raise_for_problems()
