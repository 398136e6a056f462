"""Tasks as values that cross process borders: the documents as an Arrow table, everything else pickled.

The table is left to the engine, which has its own way of moving large buffers without a copy. The rest is bytes that
only the two ends open: what lies between needs neither the classes of the user's script nor the time.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle

from gristmill.execution.partition_output import Leaf
from gristmill.tasks.base import Task
from gristmill.tasks.columns import from_transport
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.origins import Step

_SMALL = 1024
"""The weight of a task without documents."""
_DOCUMENTS = ("_columns", "_frame", "_polars")
"""The attributes of a batch that hold its documents."""


@dataclass(slots=True)
class PackedTask:
    """A task ready to be sent.

    Attributes:
        task_id: Its id.
        partition: The number of its partition.
        path: The way down to it from the partition.
        body: The task without its documents, pickled.
        documents: The documents of a batch as a table; on the way, what the engine has put in its place.
    """

    task_id: str
    partition: int
    path: tuple[Step, ...]
    body: bytes
    documents: Any = None

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return _SMALL + (0 if self.documents is None else int(self.documents.nbytes))

    def __deepcopy__(self, memo: object) -> PackedTask:
        # Nobody changes it on Ray; Xenna copies the whole list of them.
        return self

    def __sizeof__(self) -> int:
        # Ray Data weighs blocks by this, and holds work back accordingly.
        return self.nbytes


def pack(task: Task[Any]) -> PackedTask:
    """The task in parts. Classes of the user's script go by value, because their names mean nothing elsewhere."""
    lineage = task._lineage
    partition, path = (0, ()) if lineage is None else (lineage.partition, lineage.path)
    if not isinstance(task, DocumentBatch):
        return PackedTask(task.task_id, partition, path, cloudpickle.dumps(task))
    rest = {name: value for name, value in vars(task).items() if name not in _DOCUMENTS}
    return PackedTask(task.task_id, partition, path, cloudpickle.dumps((type(task), rest)), task.columns.transport())


def unpack(packed: PackedTask) -> Task[Any]:
    """The task again, of the class it was and with all its attributes."""
    found = pickle.loads(packed.body)  # noqa: S301 (written by a process of this run)
    if packed.documents is None:
        task: Task[Any] = found
        return task
    kind, rest = found
    batch: DocumentBatch = kind.from_columns(from_transport(packed.documents))
    vars(batch).update(rest)
    return batch


def pack_end(end: Leaf) -> tuple[Leaf, PackedTask | None]:
    """The end, with the documents of its task beside it."""
    return (end, None) if end.task is None else (replace(end, task=None), pack(end.task))


def unpack_end(end: Leaf, packed: PackedTask | None) -> Leaf:
    """The end again."""
    return end if packed is None else replace(end, task=unpack(packed))
