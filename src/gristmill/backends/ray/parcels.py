"""Tasks and their ends on the way through Ray: one opaque value each, with the documents as an Arrow table.

Ray moves, counts, spills and (when a node is lost) rebuilds these values; it never looks at a document. The table
crosses process borders without being copied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from gristmill.execution.partition_output import Leaf
from gristmill.tasks.base import Task
from gristmill.tasks.columns import from_transport
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Lineage

_SMALL = 1024
"""The weight of a value without documents."""


@dataclass(slots=True)
class _BatchFields:
    """A batch without its documents."""

    dataset_name: str
    task_id: str
    metadata: dict[str, Any]
    stage_perf: list[Any]
    lineage: Lineage | None
    rows: Any


@dataclass(slots=True)
class PackedTask:
    """A task on its way to the next segment."""

    body: Any
    table: pa.Table | None = None

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return _SMALL + (0 if self.table is None else int(self.table.nbytes))

    @property
    def task_id(self) -> str:
        """The id of the task inside."""
        return str(self.body.task_id)

    def __deepcopy__(self, memo: object) -> PackedTask:
        # Nobody changes it; Xenna copies the whole list of them.
        return self

    def __sizeof__(self) -> int:
        # Ray Data weighs blocks by this, and holds work back accordingly.
        return self.nbytes


def pack(task: Task[Any]) -> PackedTask:
    """The task as a value."""
    if type(task) is not DocumentBatch:
        return PackedTask(task)
    fields = _BatchFields(
        task.dataset_name, task.task_id, task._metadata, task._stage_perf, task._lineage, task._tracking.rows
    )
    return PackedTask(fields, task.columns.transport())


def unpack(packed: PackedTask) -> Task[Any]:
    """The task again."""
    fields = packed.body
    if not isinstance(fields, _BatchFields):
        task: Task[Any] = fields
        return task
    assert packed.table is not None
    batch = DocumentBatch.from_columns(from_transport(packed.table), rows=fields.rows, dataset_name=fields.dataset_name)
    batch.task_id = fields.task_id
    batch._metadata = dict(fields.metadata)
    batch._stage_perf = list(fields.stage_perf)
    batch._lineage = fields.lineage
    return batch


def pack_end(end: Leaf) -> tuple[Leaf, PackedTask | None]:
    """The end, with the documents of its task beside it."""
    return (end, None) if end.task is None else (replace(end, task=None), pack(end.task))


def unpack_end(end: Leaf, packed: PackedTask | None) -> Leaf:
    """The end again."""
    return end if packed is None else replace(end, task=unpack(packed))
