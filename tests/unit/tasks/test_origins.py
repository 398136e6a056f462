"""Rows are followed through ordinary pandas, Polars and Arrow code, and never mistaken for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.ledger.record.trail import Trail
from gristmill.stages.base import ProcessingStage
from gristmill.tasks import DocumentBatch
from gristmill.tasks.arrow_io import polars_memory, shares_rows
from gristmill.tracking.accounting import account, enter, leave, settled

Frame = Any


class Custom(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A stage whose work is given."""

    name = "custom"

    def __init__(self, work: Callable[[DocumentBatch], DocumentBatch]) -> None:
        self.work = work

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return self.work(task)


PANDAS: dict[str, Callable[[pd.DataFrame, Any], Frame]] = {
    "filter": lambda frame, seed: frame[seed.random(len(frame)) < 0.5],
    "sort": lambda frame, seed: frame.sort_values("text", ascending=False, kind="stable"),
    "shuffle": lambda frame, seed: frame.iloc[seed.permutation(len(frame))],
    "change": lambda frame, seed: frame.assign(text=frame["text"] + "!"),
    "new column": lambda frame, seed: frame.assign(size=frame["text"].str.len()),
    "drop column": lambda frame, seed: frame[["text"]],
    "reset": lambda frame, seed: frame[seed.random(len(frame)) < 0.5].reset_index(drop=True),
    "distinct": lambda frame, seed: frame.drop_duplicates(),
    "distinct text": lambda frame, seed: frame.drop_duplicates("text").reset_index(drop=True),
    "join": lambda frame, seed: frame.merge(pd.DataFrame({"id": range(5), "extra": range(5)}), on="id", how="left"),
    "rebuilt": lambda frame, seed: pd.DataFrame(frame.to_dict("records"), columns=list(frame.columns)),
    "doubled": lambda frame, seed: pd.concat([frame, frame]),
    "nothing": lambda frame, seed: frame.iloc[:0],
}
POLARS: dict[str, Callable[[pl.DataFrame, Any], Frame]] = {
    "filter": lambda frame, seed: frame.filter(pl.Series(seed.random(len(frame)) < 0.5, dtype=pl.Boolean)),
    "sort": lambda frame, seed: frame.sort("text", descending=True),
    "change": lambda frame, seed: frame.with_columns(pl.col("text") + "!"),
    "distinct": lambda frame, seed: frame.unique(maintain_order=True),
    "nothing": lambda frame, seed: frame.clear(),
}

rows = st.lists(st.tuples(st.integers(0, 8), st.sampled_from(["a", "b", "c", "long text"])), max_size=12)


def _run(data: list[tuple[int, str]], work: Callable[[DocumentBatch], DocumentBatch]) -> tuple[Any, Any, DocumentBatch]:
    table = pa.table(
        {
            "id": pa.array([row[0] for row in data], pa.int64()),
            "text": pa.array([row[1] for row in data], pa.large_string()),
        }
    )
    batch = settled(DocumentBatch(data=table))
    entry = enter(batch)
    stage = Custom(work)
    one = leave(entry, stage.process(batch))
    trail = account(stage, entry, [one])
    assert isinstance(one.task, DocumentBatch)
    return trail, one.positions, one.task


def _check(data: list[tuple[int, str]], trail: Trail, positions: Any, after: DocumentBatch, *, changed: bool) -> None:
    counts = trail.counts["custom"]
    assert counts.conserves()
    assert counts.rows_in == len(data)
    assert counts.rows_out == after.num_items
    told = sum(len(decision.rows) for decision in trail.decisions)
    assert told == sum(counts.dropped.values())
    texts = after.column("text").to_pylist()
    for position, text in zip(positions.tolist(), texts, strict=True):
        if position >= 0:
            assert data[position][1] == (text[:-1] if changed else text)


@settings(max_examples=80)
@given(rows, st.sampled_from(sorted(PANDAS)), st.integers(0, 2**32 - 1))
def test_pandas_rows_are_followed(data: list[tuple[int, str]], way: str, seed: int) -> None:
    work = lambda batch: DocumentBatch(data=PANDAS[way](batch.to_pandas(), np.random.default_rng(seed)))  # noqa: E731
    trail, positions, after = _run(data, work)
    _check(data, trail, positions, after, changed=way == "change")
    if way in ("filter", "sort", "shuffle", "change", "new column", "drop column", "doubled", "distinct", "nothing"):
        assert trail.counts["custom"].untracked == 0
        assert (positions >= 0).all()
    if way in ("sort", "shuffle", "change", "new column", "drop column"):
        assert sorted(positions.tolist()) == list(range(len(data)))


@settings(max_examples=60)
@given(rows, st.sampled_from(sorted(POLARS)), st.integers(0, 2**32 - 1))
def test_polars_rows_are_followed(data: list[tuple[int, str]], way: str, seed: int) -> None:
    work = lambda batch: DocumentBatch(data=POLARS[way](batch.to_polars(), np.random.default_rng(seed)))  # noqa: E731
    trail, positions, after = _run(data, work)
    _check(data, trail, positions, after, changed=way == "change")
    assert trail.counts["custom"].untracked == 0


def test_rows_that_cannot_be_told_apart_are_not_matched_by_position() -> None:
    data = [(1, "a"), (1, "b")]

    def swap(batch: DocumentBatch) -> DocumentBatch:
        return DocumentBatch(data=pd.DataFrame({"id": [1, 1], "text": ["B", "A"]}))

    trail, positions, _ = _run(data, swap)
    assert positions.tolist() == [-1, -1]
    counts = trail.counts["custom"]
    assert (counts.untracked, counts.created, counts.dropped) == (2, 2, {"untracked": 2})


def test_shared_memory_proves_that_rows_are_the_same() -> None:
    frame = pl.DataFrame({"n": [1, 2, 3], "text": ["a", "b", "c"]})
    before = polars_memory(frame)
    assert shares_rows(before, polars_memory(frame.with_columns(text=pl.lit("x"))))
    assert not shares_rows(before, polars_memory(frame.sort("n", descending=True)))
    assert not shares_rows(before, polars_memory(frame.head(2)))
    assert not shares_rows(before, polars_memory(frame.clone().with_columns(pl.all().reverse())))
    table = pa.table({"n": [1, 2, 3], "text": ["a", "b", "c"]})
    assert shares_rows(table, table.set_column(1, "text", pa.array(["x", "y", "z"])))
    assert not shares_rows(table, table.take([2, 1, 0]))
    assert not shares_rows(table, table.slice(1))
