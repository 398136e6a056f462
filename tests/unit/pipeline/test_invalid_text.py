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
from gristmill.stages.text.filters import ScoreFilter
from gristmill.stages.text.filters.heuristic.string import WordCountFilter
from gristmill.stages.text.io.reader import ParquetReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
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
