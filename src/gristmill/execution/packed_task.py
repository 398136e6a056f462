"""Tasks as values that cross process boundaries: the documents as an Arrow table, everything else pickled.

The table is left to the engine, which has its own zero-copy transport for large buffers. The rest is bytes that only
sender and receiver unpickle: processes in between need neither the classes of the user's script nor the time.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import pyarrow as pa

from gristmill.execution.partition_output import TaskEnd
from gristmill.tasks.base import Task
from gristmill.tasks.columns import TableColumns, from_transport
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Step, lineage_of

_SMALL = 1024
"""The weight of a task without documents."""


@dataclass(slots=True)
class PackedTask:
    """A task ready to be sent.

    Attributes:
        task_id: Its id.
        partition: The number of its partition.
        path: Its path from the root task of the partition.
        body: The task without its documents, pickled.
        documents: The documents of a batch as a table; in transit, the engine's replacement for it.
    """

    task_id: str
    partition: int
    path: tuple[Step, ...]
    body: bytes
    documents: Any = None

    @property
    def nbytes(self) -> int:
        """Approximate memory use."""
        return _SMALL + (0 if self.documents is None else int(self.documents.nbytes))

    def __deepcopy__(self, memo: object) -> PackedTask:
        # It is never changed on Ray, and Xenna copies whole lists of them.
        return self

    def __sizeof__(self) -> int:
        # Ray Data weighs blocks by this, and holds work back accordingly.
        return self.nbytes


def pack(task: Task[Any]) -> PackedTask:
    """Split the task into parts. Classes of the user's script are pickled by value: workers cannot import them."""
    lineage = lineage_of(task)
    documents = None
    if isinstance(task, DocumentBatch):
        documents = task.columns.transport()
        task = task.with_columns(TableColumns(pa.table({})))
    return PackedTask(task.task_id, lineage.partition, lineage.path, cloudpickle.dumps(task), documents)


def unpack(packed: PackedTask) -> Task[Any]:
    """Rebuild the task with its class and all its attributes."""
    task: Task[Any] = pickle.loads(packed.body)  # noqa: S301 (written by a process of this run)
    if isinstance(task, DocumentBatch):
        return task.with_columns(from_transport(packed.documents))
    return task


def pack_end(end: TaskEnd) -> tuple[TaskEnd, PackedTask | None]:
    """The end of a task, with its documents separate."""
    return (end, None) if end.task is None else (replace(end, task=None), pack(end.task))


def unpack_end(end: TaskEnd, packed: PackedTask | None) -> TaskEnd:
    """Rebuild the end of a task."""
    return end if packed is None else replace(end, task=unpack(packed))
