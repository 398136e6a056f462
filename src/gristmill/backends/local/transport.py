"""Tasks on their way between processes: documents through shared memory, everything else in the message."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from typing import Any

from gristmill.backends.local.shared_files import SharedFolder, SharedSegment
from gristmill.tasks.base import Task
from gristmill.tasks.columns import from_transport
from gristmill.tasks.document import DocumentBatch


@dataclass(slots=True)
class Parcel:
    """A task ready to be sent.

    Attributes:
        task: The task; a batch travels without its documents.
        segment: Where its documents lie.
        rows: The row numbers of the documents.
        nbytes: How much memory it takes.
    """

    task: Any
    segment: SharedSegment | None = None
    rows: Any = None
    nbytes: int = field(default=0)


class _Shell:
    """A batch without its documents."""

    __slots__ = ("dataset_name", "lineage", "metadata", "stage_perf", "task_id")

    def __init__(self, batch: DocumentBatch) -> None:
        self.dataset_name = batch.dataset_name
        self.task_id = batch.task_id
        self.metadata = batch._metadata
        self.stage_perf = batch._stage_perf
        self.lineage = batch._lineage


class _Sealed:
    """A task of a class that only the user's script or notebook knows, as bytes that the driver hands on unopened."""

    __slots__ = ("data", "lineage")

    def __init__(self, task: Task[Any]) -> None:
        import cloudpickle

        self.data = cloudpickle.dumps(task)
        self.lineage = task._lineage


def pack(task: Task[Any], folder: SharedFolder, name: str) -> Parcel:
    """Put the documents of `task` into `folder` and give what must be sent."""
    if not isinstance(task, DocumentBatch):
        # In another process a name in __main__ means something else, so such a class goes by value.
        return Parcel(_Sealed(task) if type(task).__module__ == "__main__" else task, nbytes=1024)
    segment = folder.write_table(task.columns.transport(), name)
    return Parcel(_Shell(task), segment, task._tracking.rows, segment.nbytes)


def unpack(parcel: Parcel) -> Task[Any]:
    """The task again; its documents are mapped, not copied."""
    if not isinstance(parcel.task, _Shell):
        task: Task[Any] = parcel.task
        if isinstance(task, _Sealed):
            task = pickle.loads(task.data)  # noqa: S301 (written by a worker of this run)
        return task
    assert parcel.segment is not None
    shell = parcel.task
    columns = from_transport(SharedFolder.read_table(parcel.segment))
    batch = DocumentBatch.from_columns(columns, rows=parcel.rows, dataset_name=shell.dataset_name)
    batch.task_id = shell.task_id
    batch._metadata = shell.metadata
    batch._stage_perf = shell.stage_perf
    batch._lineage = shell.lineage
    return batch
