"""Rows through random user code: every one is accounted for, and none is taken for another.

Each text carries a marker that the code never touches and the accounting does not know about; it tells which document
a row that came out really is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import ConservationError, StageDefinitionError
from gristmill.execution.failures import quarantined_row
from gristmill.ledger.record.trail import Trail
from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.tasks import DocumentBatch
from gristmill.tasks.columns import RecordColumns, TableColumns, records_of_lines
from gristmill.tracking.accounting import UNTRACKED, account, check_given, enter, leave


class Stage(ProcessingStage):
    name = "user_code"

    def process(self, task: Any) -> Any:
        return task


Frame = Any
Operation = Callable[[Frame], Frame]


def marker(text: str) -> str:
    return text.rpartition("#")[2].lower()


# --- pandas ---

PANDAS: dict[str, Operation] = {
    "filter": lambda f: f[f["n"] % 3 != 0],
    "sort": lambda f: f.sort_values("text", ascending=False),
    "sort and renumber": lambda f: f.sort_values("text", ignore_index=True),
    "reset_index": lambda f: f.reset_index(drop=True),
    "reset after filter": lambda f: f[f["n"] > 1].reset_index(drop=True),
    "drop_duplicates": lambda f: f.drop_duplicates(subset=["n"]),
    "change text": lambda f: f.assign(text=["changed " + t for t in f["text"]]),
    "change and renumber": lambda f: f.assign(text=["x" + t for t in f["text"]]).reset_index(drop=True),
    "join": lambda f: f.merge(pd.DataFrame({"n": range(0, 8, 2), "weight": 1.5}), on="n"),
    "concat": lambda f: pd.concat([f[f["n"] > 2], f[f["n"] <= 2]]),
    "concat renumbered": lambda f: pd.concat([f.tail(2), f.head(1)], ignore_index=True),
    "rename column": lambda f: f.drop(columns="number", errors="ignore").rename(columns={"n": "number"}).assign(n=0),
    "drop column": lambda f: f[["text"]],
    "explode": lambda f: f.assign(text=[[t, "second " + t] for t in f["text"]]).explode("text"),
    "rebuilt": lambda f: pd.DataFrame({"text": list(f["text"]), "n": list(f["n"])}),
    "rebuilt and changed": lambda f: pd.DataFrame({"text": ["new " + t for t in f["text"]]}),
    "reversed values": lambda f: pd.DataFrame({"text": list(f["text"])[::-1], "n": list(f["n"])[::-1]}),
    "sample": lambda f: f.sample(frac=0.5, random_state=1),
    "copy": lambda f: f.copy(),
    "new column": lambda f: f.assign(length=[len(t) for t in f["text"]]),
    "empty": lambda f: f.head(0),
}

POLARS: dict[str, Operation] = {
    "filter": lambda f: f.filter(pl.col("n") % 3 != 0),
    "sort": lambda f: f.sort("text", descending=True),
    "unique": lambda f: f.unique(subset=["n"], keep="first", maintain_order=False),
    "change text": lambda f: f.with_columns(pl.format("changed {}", "text").alias("text")),
    "change all": lambda f: f.select(pl.format("changed {}", "text").alias("text"), pl.lit(7).alias("n")),
    "explode": lambda f: f.with_columns(
        pl.concat_list(pl.col("text"), pl.format("second {}", "text")).alias("text")
    ).explode("text", empty_as_null=True),  # the oldest supported version warns without
    # A batch without rows never reaches a stage, and its columns have no type to join on.
    "join": lambda f: (
        f.drop("weight", strict=False).join(pl.DataFrame({"n": [0, 2, 4], "weight": [1.0, 2.0, 3.0]}), on="n")
        if len(f)
        else f
    ),
    "reverse": lambda f: f.reverse(),
    "concat": lambda f: pl.concat([f.tail(2), f.head(2)]),
    "drop column": lambda f: f.select("text"),
    "empty": lambda f: f.head(0),
}

ARROW: dict[str, Operation] = {
    "filter": lambda t: t.filter(pa.array([i % 3 != 0 for i in range(t.num_rows)], pa.bool_())),
    "take": lambda t: t.take(pa.array(range(t.num_rows - 1, -1, -1), pa.int64())),
    "concat": lambda t: pa.concat_tables([t.slice(1), t.slice(0, 1)]),
    "drop column": lambda t: t.select(["text"]),
    "changed": lambda t: t.set_column(
        t.column_names.index("text"),
        "text",
        pa.array(["y" + text for text in t.column("text").to_pylist()], pa.large_string()),
    ),
}


@st.composite
def documents(draw: st.DrawFn) -> pa.Table:
    """Documents of which some are exact copies of others; a marker is the same only in copies."""
    kinds = draw(st.lists(st.integers(0, 9), max_size=10))
    words = draw(st.lists(st.sampled_from(["a", "some words", ""]), min_size=10, max_size=10))
    return pa.table(
        {
            "text": pa.array([f"{words[kind]}#{kind:x}" for kind in kinds], pa.large_string()),
            "n": pa.array([kind % 7 for kind in kinds], pa.int64()),
        }
    )


def entered(table: pa.Table, *, records: bool) -> DocumentBatch:
    columns: Any = TableColumns(table)
    if records:
        columns = RecordColumns(records_of_lines(columns.encode_jsonl()), names=("text", "n"))
    return DocumentBatch.from_columns(columns, rows=np.arange(100, 100 + table.num_rows))


def check(table: pa.Table, batch: DocumentBatch, work: Callable[[DocumentBatch], Any]) -> Trail:
    """Push the batch through `work` as the runner would and hold the result against the markers."""
    truth = [marker(text) for text in table.column("text").to_pylist()]
    entry = enter(batch)
    given = check_given(Stage(), work(batch))
    exits = [leave(entry, task) for task in given]
    trail = account(Stage(), entry, exits)
    counts = trail.counts["user_code"]
    assert counts.conserves()
    assert counts.rows_in == table.num_rows
    out = [row for one in exits for row in zip(one.task.column("text").to_pylist(), one.task.rows, strict=True)]
    assert counts.rows_out == len(out)
    seen = set()
    for text, row in out:
        if row >= 0:
            assert marker(text) == truth[row - 100], "a row was taken for another document"
            seen.add(int(row))
    assert counts.untracked == sum(row < 0 for _, row in out)
    gone = [int(row) for decision in trail.decisions for row in decision.rows]
    assert Counter(gone) == Counter(set(range(100, 100 + table.num_rows)) - seen)
    reasons = {decision.reason for decision in trail.decisions}
    assert reasons <= ({UNTRACKED} if counts.untracked else {"user_code"})
    assert sum(counts.dropped.values()) == len(gone)
    return trail


@settings(max_examples=100)
@given(documents(), st.lists(st.sampled_from(sorted(PANDAS)), min_size=1, max_size=3), st.booleans())
def test_pandas_code(table: pa.Table, names: list[str], records: bool) -> None:
    def work(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        for name in names:
            if "n" not in frame.columns:
                break
            frame = PANDAS[name](frame)
        return DocumentBatch(data=frame)

    check(table, entered(table, records=records), work)


@settings(max_examples=60)
@given(documents(), st.lists(st.sampled_from(sorted(POLARS)), min_size=1, max_size=3), st.booleans())
def test_polars_code(table: pa.Table, names: list[str], records: bool) -> None:
    def work(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_polars()
        for name in names:
            if "n" not in frame.columns:
                break
            frame = POLARS[name](frame)
        return DocumentBatch(data=frame)

    check(table, entered(table, records=records), work)


@settings(max_examples=60)
@given(documents(), st.lists(st.sampled_from(sorted(ARROW)), min_size=1, max_size=3), st.booleans())
def test_arrow_code(table: pa.Table, names: list[str], records: bool) -> None:
    def work(batch: DocumentBatch) -> DocumentBatch:
        found = batch.to_pyarrow()
        for name in names:
            found = ARROW[name](found)
        return DocumentBatch(data=found)

    check(table, entered(table, records=records), work)


@settings(max_examples=60)
@given(documents(), st.sampled_from(["in place", "data", "pop", "split", "pandas data"]), st.booleans())
def test_batches_that_are_changed_and_returned(table: pa.Table, how: str, records: bool) -> None:
    def work(batch: DocumentBatch) -> Any:
        if how == "in place":
            frame = batch.to_pandas()
            frame["text"] = ["ON " + text for text in frame["text"]]
            return batch
        if how == "pop":
            frame = batch.to_pandas()
            for name in list(frame.columns):
                frame[name] = frame.pop(name)
            return batch
        if how == "data":
            batch.data = batch.to_polars().filter(pl.col("n") > 2)
            return batch
        if how == "pandas data":
            batch.data = batch.to_pandas().sort_values("text")
            return batch
        frame = batch.to_pandas()
        return [DocumentBatch(data=frame[frame["n"] > 2]), DocumentBatch(data=frame[frame["n"] <= 2])]

    trail = check(table, entered(table, records=records), work)
    if how != "data":
        assert trail.counts["user_code"].untracked == 0


@pytest.mark.parametrize(
    "name", ["filter", "sort", "reset_index", "change text", "drop_duplicates", "explode", "concat"]
)
def test_ordinary_pandas_code_loses_no_track(name: str) -> None:
    table = pa.table({"text": pa.array([f"t{i}#{i}" for i in range(9)], pa.large_string()), "n": list(range(9))})
    batch = entered(table, records=True)
    trail = check(table, batch, lambda b: DocumentBatch(data=PANDAS[name](b.to_pandas())))
    assert trail.counts["user_code"].untracked == 0


def test_rows_that_cannot_be_told_apart_are_not_matched_by_position() -> None:
    table = pa.table({"text": pa.array(["a#0", "b#1"], pa.large_string()), "n": [5, 5]})
    batch = entered(table, records=False)
    swapped = pa.table({"text": pa.array(["new b#1", "new a#0"], pa.large_string()), "n": [5, 5]})
    trail = check(table, batch, lambda b: DocumentBatch(data=swapped))
    counts = trail.counts["user_code"]
    assert (counts.untracked, counts.dropped, counts.created) == (2, {UNTRACKED: 2}, 2)


def test_a_new_row_that_resembles_a_kept_one_is_new() -> None:
    table = pa.table({"text": pa.array(["a#0", "b#1"], pa.large_string()), "n": [5, 6]})
    batch = entered(table, records=False)
    more = pa.table({"text": pa.array(["a#0", "b#1", "made up#9"], pa.large_string()), "n": [5, 6, 6]})
    trail = check(table, batch, lambda b: DocumentBatch(data=more))
    assert (trail.counts["user_code"].created, trail.counts["user_code"].dropped) == (1, {})


def test_drops_with_a_reason_keep_it_and_the_rest_is_the_stages_own() -> None:
    table = pa.table({"text": pa.array(["a#0", "b#1", "c#2"], pa.large_string()), "n": [0, 1, 2]})
    batch = entered(table, records=False)
    entry = enter(batch)
    kept = batch.drop(np.array([True, False, False]), reason="too_short", score=np.array([1.0, 2.0, 3.0]), threshold=2)
    exits = [leave(entry, kept.take(np.array([1])))]
    trail = account(Stage(), entry, exits)
    assert trail.counts["user_code"].dropped == {"too_short": 1, "user_code": 1}
    assert [(d.reason, list(d.rows)) for d in trail.decisions] == [("too_short", [100]), ("user_code", [101])]


def test_a_stage_that_ignores_what_drop_returned_is_told() -> None:
    table = pa.table({"text": pa.array(["a#0", "b#1"], pa.large_string()), "n": [0, 1]})
    batch = entered(table, records=False)
    entry = enter(batch)
    batch.drop(np.array([True, False]), reason="x")
    with pytest.raises(ConservationError, match=r"Use the batch that drop\(\) returns"):
        account(Stage(), entry, [leave(entry, batch)])


class Both(FusedStage):
    name = "both"

    def __init__(self) -> None:
        self.members = [Stage().with_(name="one"), Stage().with_(name="two")]

    def process(self, task: Any) -> Any:
        return task


def test_members_of_a_fused_stage_are_counted_one_after_the_other() -> None:
    table = pa.table({"text": pa.array([f"#{i}" for i in range(5)], pa.large_string()), "n": list(range(5))})
    batch = entered(table, records=False)
    entry = enter(batch)
    first = batch.drop(np.array([True, True, False, False, False]), reason="r1", stage="one")
    second = first.drop(np.array([True, False, False]), reason="r2", stage="two")
    trail = account(Both(), entry, [leave(entry, second)])
    one, two = trail.counts["one"], trail.counts["two"]
    assert (one.rows_in, one.dropped, one.rows_out) == (5, {"r1": 2}, 3)
    assert (two.rows_in, two.dropped, two.rows_out) == (3, {"r2": 1}, 2)


def test_what_a_member_sets_aside_is_counted_where_it_happened() -> None:
    table = pa.table({"text": pa.array([f"#{i}" for i in range(5)], pa.large_string()), "n": list(range(5))})
    batch = entered(table, records=False)
    entry = enter(batch)
    for row in (1, 3):
        batch.note_quarantine(quarantined_row(batch, row, stage="one", cause="too_large", detail=""))
    rest = batch.take(np.array([0, 2, 4])).drop(np.array([True, False, False]), reason="r2", stage="two")
    trail = account(Both(), entry, [leave(entry, rest)])
    one, two = trail.counts["one"], trail.counts["two"]
    assert (one.rows_in, one.quarantined, one.rows_out) == (5, {"too_large": 2}, 3)
    assert (two.rows_in, two.dropped, two.quarantined, two.rows_out) == (3, {"r2": 1}, {}, 2)


@pytest.mark.parametrize("given", ["text", {"a": 1}, [pa.table({})], [1]])
def test_what_is_not_a_task_is_refused(given: Any) -> None:
    with pytest.raises(StageDefinitionError, match="DocumentBatch"):
        check_given(Stage(), given)


def test_none_and_lists_with_none_are_fine() -> None:
    assert check_given(Stage(), None) == []
    assert check_given(Stage(), [None]) == []
