"""The documents of a pipeline that runs in steps: from its own reader, or from the files that a step wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.ledger.record.layout import RunFolder, step_folder
from gristmill.ledger.record.manifest import Manifest, ManifestEntry
from gristmill.ledger.record.workflow_record import contents_digest
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec, own_copy
from gristmill.stages.deduplication.source import DocumentSource
from gristmill.stages.source_sink import ReaderStage, SourceColumns, SourceStage
from gristmill.stages.text.io.reader.jsonl import JsonlReaderStage
from gristmill.stages.text.io.reader.parquet import ParquetReaderStage
from gristmill.stages.text.io.reader.partitioning import FilePartitioningStage
from gristmill.storage.partitions import FileRange, Partition
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

Stage = ProcessingStage[Any, Any]


def _files_of(folder: RunFolder, entry: ManifestEntry, filetype: str) -> Partition:
    """The files that a step wrote for a partition."""
    ranges = tuple(
        FileRange(
            folder.join(file.path), file.path, file.size, file.hash, 0, -1 if filetype == "parquet" else file.size, True
        )
        for file in entry.files
    )
    return Partition(entry.index, entry.partition, ranges)


class StepFiles(SourceStage):
    """The partitions of a finished step: those of the input, even if no documents remain.

    Args:
        path: The folder of the step.
        filetype: "jsonl" or "parquet".
        storage_options: File system options for URLs.
    """

    name = "step_files"
    fork_safe = True

    def __init__(self, path: str, filetype: str, storage_options: Mapping[str, Any] | None) -> None:
        self.path = path
        self.format = "parquet" if filetype == "parquet" else "jsonl"
        self.storage_options = storage_options

    def partitions(self) -> list[Partition]:
        return [
            Partition(entry.index, entry.partition, tuple(FileRange(**part) for part in entry.source))
            for entry in self._entries()
        ]

    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        there = self._files()
        return self._listing().columns(there, wanted) if there else None

    def prepare(self, reader: Stage, partitions: Sequence[Partition]) -> None:
        there = self._files()
        if isinstance(reader, StepReader) and there:
            self._listing().prepare(reader.inner, there)

    def _entries(self) -> list[ManifestEntry]:
        return Manifest(step_folder(self.path, self.storage_options)).ordered()

    def _files(self) -> list[Partition]:
        """The files to read, without those of empty partitions."""
        folder = step_folder(self.path, self.storage_options)
        return [_files_of(folder, entry, self.format) for entry in self._entries() if entry.files]

    def _listing(self) -> FilePartitioningStage:
        return FilePartitioningStage(self.path, storage_options=self.storage_options, format=self.format)


class StepReader(ReaderStage):
    """Reads the files that a step wrote for a partition.

    Args:
        path: The folder of the step.
        filetype: "jsonl" or "parquet".
        storage_options: File system options for URLs.
    """

    name = "step_reader"
    fork_safe = True

    def __init__(self, path: str, filetype: str, storage_options: Mapping[str, Any] | None) -> None:
        self.path = path
        self.storage_options = storage_options
        self.contents = contents_digest(step_folder(path, storage_options))
        """The contents of the files when the plan was made: a change of content changes the plan."""
        kind = ParquetReaderStage if filetype == "parquet" else JsonlReaderStage
        self.inner: ParquetReaderStage | JsonlReaderStage = kind(storage_options=storage_options)
        self.filetype = filetype

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], []

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        folder = step_folder(self.path, self.storage_options)
        partition: Partition = task._metadata["partition"]
        entry = Manifest(folder).get(partition.id)
        assert entry is not None, partition.id
        self.inner.hints = self.hints
        sources = list(dict.fromkeys(str(part["path"]) for part in entry.source))
        left = _files_of(folder, entry, self.filetype)
        if left.ranges:
            given = FileGroupTask(task.dataset_name, left.source_files, _metadata={"partition": left})
            for batch in self.inner.process(given):
                # The origin of documents decides which duplicate is kept; see `PipelineDocuments.has_one_file_each`.
                batch._metadata["source_file"] = sources[0] if len(sources) == 1 else ""
                yield batch


class DocumentStages(CompositeStage[EmptyTask, DocumentBatch]):
    """The first stages of a step as one: a reader and the removal of duplicates found before."""

    name = "documents"

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.stages = list(stages)

    def decompose(self) -> list[Stage]:
        return list(self.stages)


@dataclass(frozen=True)
class PipelineDocuments(DocumentSource):
    """The documents that are searched: the output of `stages`, a reader first.

    Attributes:
        stages: A source of partitions, a reader, and the removal of duplicates found before.
        step: The folder of the step whose files are read; None for the input itself.
    """

    stages: tuple[Stage, ...] = ()
    step: str | None = None

    @classmethod
    def read_by(cls, parts: Sequence[Stage]) -> PipelineDocuments | None:
        """The documents of the input, if these stages are just a source and a reader."""
        if len(parts) != 2 or not isinstance(parts[0], SourceStage) or not isinstance(parts[1], ReaderStage):
            return None
        filetype = "parquet" if isinstance(parts[1], ParquetReaderStage) else "jsonl"
        return cls("", filetype, stages=tuple(parts))

    @classmethod
    def left_by(cls, step: str, filetype: str, storage_options: Mapping[str, Any] | None) -> PipelineDocuments:
        """The documents that a finished step wrote to the folder `step`."""
        files = StepFiles(step, filetype, storage_options)
        return cls(step, filetype, stages=(files, StepReader(step, filetype, storage_options)), step=step)

    def without(self, removal: Stage) -> PipelineDocuments:
        """These documents without what `removal` drops."""
        return PipelineDocuments(self.paths, self.filetype, stages=(*self.stages, removal), step=self.step)

    def reader(self, fields: Sequence[str] | None = None) -> ProcessingStage[Any, Any]:
        parts = list(self.stages)
        if fields is not None and self.filetype == "parquet":
            parts[1] = own_copy(parts[1])
            narrowed: Any = parts[1].inner if isinstance(parts[1], StepReader) else parts[1]
            if getattr(narrowed, "fields", ()) is None:
                narrowed.fields = tuple(self._present(fields))
        return DocumentStages(parts)

    def first_batches(
        self, partitions: Sequence[Partition], fields: Sequence[str] | None = None, *, batch_bytes: int = 0
    ) -> Iterator[DocumentBatch | None]:
        """The first documents of each partition with these columns, one batch each; None if it has none."""
        files, reader = self.stages[0], own_copy(self.stages[1])
        assert isinstance(files, SourceStage)
        files.prepare(reader, partitions)
        for partition in partitions:
            given: Any = reader.process(files.task(partition))
            yield next((batch for batch in given if batch.num_items), None)

    def has_one_file_each(self) -> bool:
        """Whether every partition comes from one file, so that the source of a document is known."""
        return self.step is None or all(len(partition.source_files) == 1 for partition in self.partitions())
