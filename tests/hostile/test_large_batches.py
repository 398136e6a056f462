"""More text in a batch than 32 bits can count: every row gets what it would get alone, or the batch is refused."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.kernels.hashing import hash_column
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.tasks import DocumentBatch
from tests.hostile.attempt import FULL, attempt, attempt_fresh
from tests.hostile.test_slow_patterns import made

pytestmark = pytest.mark.skipif(not FULL, reason="takes some GB of memory")

ROW = ("The quick brown fox jumps over the lazy dog, and the end of it is http://a.b/c here.\n" * 13_000)[: 1 << 20]
ROWS = 2100
BYTES = ROWS * len(ROW)
FILTERS = ["WordCountFilter", "NonAlphaNumericFilter", "RepeatedLinesFilter", "RepeatingTopNGramsFilter", "UrlsFilter"]
LAYOUTS = ["one chunk", "chunks of 32 bits"]
MODIFIERS = ["UrlRemover", "NewlineNormalizer", "MarkdownRemover", "PiiRedactor"]


@pytest.fixture(scope="module", params=LAYOUTS)
def table(request: pytest.FixtureRequest) -> pa.Table:
    """The same text in every row: as one column with offsets of 64 bits, or as chunks whose offsets have 32."""
    skip_without_memory()
    return make_table(request.param)


def skip_without_memory() -> None:
    if psutil.virtual_memory().available < 12 << 30:
        pytest.skip("less than 12 GB of memory are free")


def make_table(layout: str) -> pa.Table:
    assert BYTES > 1 << 31
    if layout == "one chunk":
        data = np.tile(np.frombuffer(ROW.encode(), np.uint8), ROWS)
        offsets = np.arange(ROWS + 1, dtype=np.int64) * len(ROW)
        text = pa.LargeStringArray.from_buffers(ROWS, pa.py_buffer(offsets), pa.py_buffer(data))
        return pa.table({"id": range(ROWS), "text": text})
    third = pa.array([ROW] * (ROWS // 3), pa.string())
    return pa.table({"id": range(ROWS), "text": pa.chunked_array([third] * 3)})


def same_everywhere(column: Any, expected: Any) -> int:
    """How many rows hold something else than is expected."""
    values = column.to_pylist() if not isinstance(column, list) else column
    return sum(value != expected for value in values)


def check(work: Callable[[], int]) -> None:
    outcome = attempt(work, seconds=600, memory=16 << 30)
    assert outcome.kind == "refused" or (outcome.kind, outcome.detail) == ("done", "0"), outcome


@pytest.mark.parametrize("name", FILTERS)
def test_filters_count_past_32_bits(table: pa.Table, name: str) -> None:
    """2.2 GB of text in a batch, through filters: every row gets the same score as alone."""
    stage = made(name)
    stage.score_field = ["score"]  # type: ignore[union-attr]
    alone = stage.process(DocumentBatch(data=pa.table({"text": [ROW]}))).to_pyarrow()

    def work() -> int:
        given = stage.process(DocumentBatch(data=table)).to_pyarrow()
        assert given.num_rows == ROWS * alone.num_rows
        expected = alone.column("score").to_pylist()
        return same_everywhere(given.column("score"), expected[0]) if expected else 0

    check(work)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", MODIFIERS)
def test_modifiers_write_past_32_bits(layout: str, name: str) -> None:
    """2.2 GB of text in a batch, through modifiers: every row gets the same text as alone."""
    skip_without_memory()
    # In a new interpreter: in a forked one the threads of Polars that other tests have started would be missing.
    outcome = attempt_fresh(__name__, "rows_changed", name, layout, seconds=600)
    assert outcome == ("done", "0") or (outcome.kind == "raised" and "gristmill.errors." in outcome.detail), outcome


def rows_changed(name: str, layout: str) -> int:
    """How many of some rows of a large batch do not become what they become alone."""
    resource.setrlimit(resource.RLIMIT_AS, (18 << 30, 18 << 30))
    stage = made(name)
    alone = stage.process(DocumentBatch(data=pa.table({"text": [ROW]}))).to_pyarrow().column("text")[0].as_py()
    given = stage.process(DocumentBatch(data=make_table(layout))).to_pyarrow().column("text")
    return same_everywhere([given[row].as_py() for row in (0, 1, ROWS // 2, ROWS - 2, ROWS - 1)], alone)


def test_jsonl_is_written_past_32_bits(table: pa.Table) -> None:
    """2.2 GB of text in a batch, written as JSONL: every line is whole."""

    def work() -> int:
        lines = JsonlWriter("unused").encode(DocumentBatch(data=table))
        ends = np.flatnonzero(lines == 10)
        bad = int(len(ends) != ROWS)
        for row in (0, ROWS // 2, ROWS - 1):
            start = 0 if row == 0 else int(ends[row - 1]) + 1
            bad += json.loads(lines[start : ends[row]].tobytes()) != {"id": row, "text": ROW}
        return bad

    check(work)


def test_parquet_is_written_past_32_bits(table: pa.Table, tmp_path: Path) -> None:
    """2.2 GB of text in a batch, written as Parquet: every row is whole."""
    path = str(tmp_path / "part.parquet")

    def work() -> int:
        writer = ParquetWriter(str(tmp_path))
        part = writer.open_part(path)
        part.append(writer.encode(DocumentBatch(data=table)), rows=ROWS)
        [written] = part.close()
        rows, bad = 0, 0
        for batch in pq.ParquetFile(written.path).iter_batches(batch_size=100):
            bad += batch.column("id").to_pylist() != list(range(rows, rows + batch.num_rows))
            bad += same_everywhere(batch.column("text"), ROW)
            rows += batch.num_rows
        return bad + (rows != ROWS)

    check(work)


def test_exact_deduplication_hashes_past_32_bits(table: pa.Table) -> None:
    """2.2 GB of text in a batch, hashed for deduplication: equal texts have equal hashes, wherever they are."""
    alone = int(hash_column([ROW])[0])
    check(lambda: int((hash_column(table.column("text")) != alone).sum()))
