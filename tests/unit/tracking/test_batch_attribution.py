"""Results of one call for several tasks: each row goes back to the partition it comes from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.stages.base import ProcessingStage
from gristmill.tasks import DocumentBatch
from gristmill.tasks.columns import RecordColumns, TableColumns, records_of_lines
from gristmill.tracking.accounting import account, enter
from gristmill.tracking.batch_attribution import attribute, concat_batches, join_outputs


class Stage(ProcessingStage):
    name = "stage"

    def process(self, task: Any) -> Any:
        return task


def made(partition: int, numbers: list[int], *, records: bool = False) -> DocumentBatch:
    """Documents that other partitions have too, but for the id."""
    table = pa.table(
        {
            "id": pa.array([f"{partition}-{place}" for place in range(len(numbers))], pa.large_string()),
            "n": pa.array(numbers, pa.int64()),
            "text": pa.array([f"text {number}" for number in numbers], pa.large_string()),
        }
    )
    columns: Any = TableColumns(table)
    if records:
        columns = RecordColumns(records_of_lines(columns.encode_jsonl()), names=("id", "n", "text"))
    batch = DocumentBatch.from_columns(columns, rows=np.arange(len(numbers)))
    batch._metadata = {"partition_number": partition}
    return batch


WAYS = {
    "as they are": list,
    "reversed": lambda tasks: list(tasks)[::-1],
    "polars": lambda tasks: [DocumentBatch(data=task.to_polars()) for task in tasks],
    "polars, some empty": lambda tasks: [DocumentBatch(data=t.to_polars()) for t in tasks if t.num_items % 2],
    "polars filter": lambda tasks: [DocumentBatch(data=t.to_polars().filter(pl.col("n") > 1)) for t in tasks],
    "polars changed": lambda tasks: [
        DocumentBatch(data=t.to_polars().with_columns(pl.format("new {}", "text").alias("text"))) for t in tasks
    ],
    "pandas": lambda tasks: [DocumentBatch(data=task.to_pandas()[lambda f: f["n"] > 1]) for task in tasks],
    "one frame": lambda tasks: [DocumentBatch(data=pl.concat([task.to_polars() for task in tasks]))],
    "one sorted frame": lambda tasks: [DocumentBatch(data=pl.concat([t.to_polars() for t in tasks]).sort("n", "id"))],
    "one pandas frame": lambda tasks: [
        DocumentBatch(data=pd.concat([task.to_pandas() for task in tasks], ignore_index=True))
    ],
    "arrow": lambda tasks: [DocumentBatch(data=pa.concat_tables([task.to_pyarrow() for task in tasks]))],
}


@settings(max_examples=120)
@given(
    st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=4),
    st.sampled_from(sorted(WAYS)),
    st.booleans(),
)
def test_every_row_goes_back_to_its_partition(sizes: list[list[int]], way: str, records: bool) -> None:
    sizes = [numbers or [3] for numbers in sizes]
    tasks = [made(partition, numbers, records=records) for partition, numbers in enumerate(sizes)]
    entries = [enter(task) for task in tasks]
    found = attribute(entries, WAYS[way](tasks))
    total = 0
    for partition, (entry, outputs) in enumerate(zip(entries, found, strict=True)):
        trail = account(Stage(), entry, outputs)
        assert trail.counts["stage"].conserves()
        assert trail.counts["stage"].untracked == 0
        for one in outputs:
            task = one.task
            assert isinstance(task, DocumentBatch)
            assert one.positions is not None
            total += task.num_items
            for name, row in zip(task.column("id").to_pylist(), task.rows, strict=True):
                assert name == f"{partition}-{row}"
    wanted = [(p, n) for p, numbers in enumerate(sizes) for n in numbers]
    if "filter" in way or way == "pandas":
        wanted = [pair for pair in wanted if pair[1] > 1]
    if "empty" in way:
        wanted = [(p, n) for p, n in wanted if len(sizes[p]) % 2]
    assert total == len(wanted)


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_documents_that_several_partitions_have_stay_where_they_were(order: list[int]) -> None:
    same = pa.table({"text": pa.array(["a", "b"], pa.large_string())})
    tasks = [DocumentBatch.from_columns(TableColumns(same), rows=np.arange(2)) for _ in range(2)]
    entries = [enter(task) for task in tasks]
    found = attribute(entries, [DocumentBatch(data=tasks[place].to_polars()) for place in order])
    assert [[one.task.num_items for one in outputs] for outputs in found] == [[2], [2]]


def test_pieces_are_joined_in_order_and_other_tasks_left_alone() -> None:
    parts = [made(0, [1, 2]), made(0, [3]), made(0, [])]
    (joined,) = concat_batches(parts)
    assert joined.column("n").to_pylist() == [1, 2, 3]
    assert list(joined.rows) == [0, 1, 0]
    assert join_outputs([]) == []
    several = join_outputs([[made(0, [1]), made(0, [2])], [], [made(0, [3]), made(0, [4])]])
    assert [task.column("n").to_pylist() for task in several] == [[1, 3], [2, 4]]
