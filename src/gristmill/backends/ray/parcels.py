"""Tasks and their ends on the way through Ray: one opaque value each, with the documents as an Arrow table.

Ray moves, counts, spills and (when a node is lost) rebuilds these values; it never looks at a document. The table
crosses process borders without being copied.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from gristmill.errors import GristmillError
from gristmill.execution.partition_output import Leaf
from gristmill.observe.events import TaskFinished
from gristmill.tasks.base import Task
from gristmill.tasks.columns import from_transport
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Lineage

_SMALL = 1024
"""What a value without documents is taken to weigh."""


@dataclass(slots=True)
class _Shell:
    """A batch without its documents."""

    dataset_name: str
    task_id: str
    metadata: dict[str, Any]
    stage_perf: list[Any]
    lineage: Lineage | None
    rows: Any


@dataclass(slots=True)
class Parcel:
    """A task on its way to the segment number `segment`."""

    segment: int
    body: Any
    table: pa.Table | None = None

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return _SMALL + (0 if self.table is None else int(self.table.nbytes))

    def __deepcopy__(self, memo: object) -> Parcel:
        # Nobody changes a parcel; Xenna copies the whole list of them.
        return self

    def __sizeof__(self) -> int:
        # Ray Data weighs blocks by this, and holds back work according to it.
        return self.nbytes


@dataclass(slots=True)
class Receipt:
    """What a worker tells the driver: ends of tasks, figures, or the error that ends the run.

    Attributes:
        leaves: Ends of tasks.
        events: What was done.
        error: The error that ends the run.
        memory: Bytes that the worker holds; 0 where it has not looked.
    """

    leaves: list[tuple[Leaf, Parcel | None]] = field(default_factory=list)
    events: list[TaskFinished] = field(default_factory=list)
    error: GristmillError | None = None
    memory: int = 0

    def add(self, other: Receipt) -> None:
        """Take over what `other` holds."""
        self.leaves.extend(other.leaves)
        self.events.extend(other.events)
        self.error = self.error or other.error
        self.memory = other.memory or self.memory

    def __sizeof__(self) -> int:
        documents = sum(parcel.nbytes for _, parcel in self.leaves if parcel is not None)
        return _SMALL * (1 + len(self.leaves)) + documents


def pack(task: Task[Any], segment: int) -> Parcel:
    """The task as a value for the segment number `segment`."""
    if type(task) is not DocumentBatch:
        return Parcel(segment, task)
    shell = _Shell(
        task.dataset_name, task.task_id, task._metadata, task._stage_perf, task._lineage, task._tracking.rows
    )
    return Parcel(segment, shell, task.columns.transport())


def unpack(parcel: Parcel) -> Task[Any]:
    """The task again."""
    shell = parcel.body
    if not isinstance(shell, _Shell):
        task: Task[Any] = shell
        return task
    assert parcel.table is not None
    batch = DocumentBatch.from_columns(from_transport(parcel.table), rows=shell.rows, dataset_name=shell.dataset_name)
    batch.task_id = shell.task_id
    batch._metadata = dict(shell.metadata)
    batch._stage_perf = list(shell.stage_perf)
    batch._lineage = shell.lineage
    return batch


def pack_leaf(leaf: Leaf) -> tuple[Leaf, Parcel | None]:
    """The leaf, with the documents of its task beside it."""
    if leaf.task is None:
        return leaf, None
    return replace(leaf, task=None), pack(leaf.task, -1)


def unpack_leaf(leaf: Leaf, parcel: Parcel | None) -> Leaf:
    """The leaf again."""
    return leaf if parcel is None else replace(leaf, task=unpack(parcel))


def task_id(parcel: Parcel) -> str:
    """The id of the task inside."""
    return str(parcel.body.task_id)


def task_leaves(tasks: Iterable[Task[Any]]) -> list[Leaf]:
    """The ends of tasks that came out of the last segment where there is no writer."""
    leaves = []
    for task in tasks:
        lineage = task._lineage
        assert lineage is not None
        leaves.append(Leaf(lineage.partition, lineage.partition_id, lineage.path, lineage.trail, task=task))
    return leaves
