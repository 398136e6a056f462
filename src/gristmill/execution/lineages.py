"""Tasks and their place in the tree of a run: handing a lineage on, and numbering what a stage makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gristmill.ledger.record.trail import Trail
from gristmill.tasks.base import FailedTask, Lineage, NoneTask, Task
from gristmill.tasks.document import DocumentBatch


def lineage_of(task: Task[Any]) -> Lineage:
    """The place of a task in the tree of the run."""
    assert task._lineage is not None, task
    return task._lineage


def with_lineage(task: Task[Any], lineage: Lineage) -> Task[Any]:
    """The task, put in a place of the tree."""
    task._lineage = lineage
    task.task_id = lineage.task_id
    return task


def is_empty(task: Task[Any]) -> bool:
    """Whether a task holds nothing that a stage could work on."""
    return isinstance(task, NoneTask | FailedTask) or (isinstance(task, DocumentBatch) and not task.num_items)


def children(outputs: Sequence[Task[Any]], lineage: Lineage, parent: Task[Any]) -> Iterator[Task[Any]]:
    """Give the outputs of one task their lineage; one output continues it, several are numbered."""
    if not outputs:
        yield with_lineage(NoneTask(parent.dataset_name), lineage)
        return
    if len(outputs) == 1:
        yield with_lineage(outputs[0], lineage)
        return
    for index, task in enumerate(outputs):
        last = index == len(outputs) - 1
        trail = lineage.trail if index == 0 else Trail()
        yield with_lineage(task, lineage.child(index, last=last, trail=trail))


def numbered(task: Task[Any], row: int) -> int:
    """Number the documents that a source has just made, unless it has done so; gives the next number."""
    if not isinstance(task, DocumentBatch) or not task.num_items:
        return row
    if task._rows is None:
        task._rows = np.arange(row, row + task.num_items)
    return max(row, int(task._rows.max()) + 1)
