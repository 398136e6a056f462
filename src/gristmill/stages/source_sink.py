"""The two ends of a pipeline: where partitions come from and where committed files go.

Readers and writers implement these; planner, runner and executors know only these.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gristmill.stages.base import ProcessingStage
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns a source will give, as far as can be told without reading it.

    `complete` is False when other columns may turn up later (JSONL records need not have the same keys).
    """

    names: tuple[str, ...]
    complete: bool
    looked_at: str


class SourceStage(ProcessingStage[EmptyTask, FileGroupTask]):
    """A stage that knows its partitions before anything runs. Asked by the driver only."""

    is_source_stage = True

    @abstractmethod
    def partitions(self) -> list[Partition]:
        """The partitions, in source order.

        Raises:
            InputNotFoundError: Nothing matches the input.
        """

    @abstractmethod
    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        """What columns will come, looking for `wanted` in particular; None if it cannot be told."""

    def prepare(self, reader: ProcessingStage[Any, Any], partitions: Sequence[Partition]) -> None:
        """Tell the stage that reads these partitions what only the whole input shows; called on a copy of it."""

    def searched_folders(self) -> list[str]:
        """Absolute paths of local folders of which every suitable file is input."""
        return []

    def task(self, partition: Partition, *, total: int = 1) -> FileGroupTask:
        """The task that reads `partition`, one of `total`."""
        paths = [piece.path for piece in partition.ranges]
        metadata = {
            "partition": partition,
            "partition_index": partition.index,
            "source_files": partition.source_files,
            "total_partitions": total,
        }
        return FileGroupTask(data=paths, _metadata=metadata)

    def process(self, task: EmptyTask) -> list[FileGroupTask]:
        """All partitions as tasks, for use without a pipeline."""
        partitions = self.partitions()
        return [self.task(partition, total=len(partitions)) for partition in partitions]


class ReaderStage(ProcessingStage[FileGroupTask, DocumentBatch]):
    """A stage that turns files into documents.

    Attributes:
        hints: Columns that later stages will ask for; set by the planner on its own copy.
    """

    hints: tuple[str, ...] = ()


class PartFile(Protocol):
    """The output of a partition while it is written; usually one file."""

    def append(self, payload: Any, /, *, rows: int | None = None) -> None:
        """Add what `SinkStage.encode` gave for one batch."""

    def close(self) -> list[WrittenFile]:
        """Finish and say what was written."""

    def abort(self) -> None:
        """Throw away what is not finished."""


class SinkStage(ProcessingStage[DocumentBatch, FileGroupTask]):
    """A stage that writes. It says how a batch becomes bytes; the runner decides when a partition is committed."""

    is_sink_stage = True
    path: str
    mode: str
    storage_options: dict[str, Any] | None

    @property
    @abstractmethod
    def extension(self) -> str:
        """The end of the names of output files, with its dot and any compression suffix."""

    @abstractmethod
    def encode(self, batch: DocumentBatch) -> Any:
        """The payload of one batch: bytes or a table, as `open_part` takes it."""

    @abstractmethod
    def open_part(self, path: str) -> PartFile:
        """A new file at `path` that takes payloads in order."""

    @abstractmethod
    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        """Join files that were written piece by piece into the one that `open_part` would have written."""
