"""Parquet files with text that is not UTF-8: those rows are quarantined by number, all others are kept."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic.string import WordCountFilter
from gristmill.stages.text.io import ArrowReader, ParquetReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.tasks import DocumentBatch
from tests.unit.storage.test_valid_text import BAD, of_bytes


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_are_not_utf8_are_quarantined(tmp_path: Path, writer: type, workers: int) -> None:
    texts: list[bytes | None] = []
    for bad in BAD:
        texts += [b"good words here", "größer €".encode(), bad, None]
    table = pa.table({"id": [str(n) for n in range(len(texts))], "text": of_bytes(texts, pa.string())})
    pq.write_table(table, tmp_path / "in.parquet", row_group_size=5)
    pipeline = Pipeline(name="invalid")
    pipeline.add_stage(ParquetReader(file_paths=str(tmp_path / "in.parquet")))
    pipeline.add_stage(ScoreFilter(WordCountFilter(min_words=1), score_field="words"))
    pipeline.add_stage(writer(path=str(tmp_path / "out")))
    result = pipeline.run(LocalExecutor({"num_cpus": workers}), error_budget=None)
    report = result.report
    assert report.rows_read == len(texts)
    assert report.quarantined == len(BAD)
    assert report.rows_written == 2 * len(BAD)
    records = read_quarantine(str(tmp_path / "out"))
    assert [(entry.record.cause, entry.record.row) for entry in records] == [
        ("invalid_utf8", 4 * n + 2) for n in range(len(BAD))
    ]
    assert verify(str(tmp_path / "out")).ok


def _views(texts: list[bytes | None]) -> dict[str, pa.Array]:
    """Columns of view types, as Polars, DataFusion and DuckDB make them, over bytes that nobody checked."""
    raw = pa.array(texts, pa.binary()).cast(pa.binary_view())
    views = pa.Array.from_buffers(pa.string_view(), len(raw), raw.buffers(), raw.null_count)
    places = pa.array(range(len(texts) + 1), pa.int32())
    names = pa.array([str(at) for at in range(len(texts))], pa.string_view())
    return {
        "text": views,
        "raw": raw,
        "tags": pa.ListArray.from_arrays(places, views),
        "named": pa.MapArray.from_arrays(places, names, names),
        "nested": pa.StructArray.from_arrays([views], names=["a"]),
        "pair": pa.FixedSizeListArray.from_arrays(names, 1),
    }


@pytest.mark.parametrize("reader", [ParquetReader, ArrowReader])
@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_columns_of_views_are_read_and_checked(tmp_path: Path, reader: type, writer: type) -> None:
    table = pa.table(_views([b"good words here", b"\xff\xfe", None, "größer €".encode()]))
    if reader is ParquetReader:
        pq.write_table(table, tmp_path / "in.parquet")
    else:
        with pa.ipc.new_file(str(tmp_path / "in.arrow"), table.schema) as file:
            file.write_table(table)
    stages = [
        reader(str(next(tmp_path.glob("in.*")))),
        ScoreFilter(WordCountFilter(min_words=1)),
        writer(str(tmp_path / "out")),
    ]
    report = Pipeline("views", stages=stages).run(LocalExecutor({"num_cpus": 0}), error_budget=None).report
    assert (report.rows_read, report.quarantined, report.rows_written) == (4, 1, 2)


class Viewer(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A user's stage that adds columns of views."""

    name = "viewer"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        table = task.to_pyarrow()
        new = _views([b"some"] * table.num_rows)
        new["kind"] = pa.DictionaryArray.from_arrays(pa.array([0] * table.num_rows), new.pop("text"))
        for name, column in new.items():
            table = table.append_column(name, column)
        return DocumentBatch(data=table).with_column("last", new["pair"].flatten())


def test_views_of_a_users_stage_are_like_other_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["one", "one two", "one two three"]}), tmp_path / "in.parquet")
    stages = [ParquetReader(str(tmp_path / "in.parquet")), Viewer(), ScoreFilter(WordCountFilter(min_words=2))]
    stages.append(ParquetWriter(str(tmp_path / "out")))
    Pipeline("views", stages=stages).run(LocalExecutor({"num_cpus": 0}))
    (written,) = (tmp_path / "out").glob("*.parquet")
    rows = pq.read_table(written).to_pylist()
    assert [(row["kind"], row["tags"], row["named"], row["last"]) for row in rows] == [
        ("some", ["some"], [("1", "1")], "1"),
        ("some", ["some"], [("2", "2")], "2"),
    ]
