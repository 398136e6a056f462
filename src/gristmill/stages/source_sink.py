"""The two ends of a pipeline: where partitions come from and where committed files go.

Readers and writers implement these; planner, runner and executors use only these.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt

from gristmill.errors import NotSupportedError, StageDefinitionError, UsageError, did_you_mean
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.summary import OutputSummary
from gristmill.ledger.record.trail import QuarantinedRecord
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.files import SourceFiles
from gristmill.storage.formats import Format
from gristmill.storage.partitions import BadRecord, Partition, find_damage
from gristmill.storage.valid_text import TextErrors
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.columns import TableColumns
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gristmill.storage.parquet_blocks import TableBlock
    from gristmill.storage.selection import Selection
    from gristmill.storage.text_repair import Repair


READER_PARTS = ("warc_pages",)
"""Stages that belong to a reader and drop what is not a document in its files; often they drop nothing."""


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns a source will provide, as far as known without reading it.

    `complete` is False if other columns may appear later (JSONL records need not have the same keys). `not_text` names
    the types of columns in which no text was seen. `beside` is a sentence about files of other formats that are not
    read, for a user who misses a column.
    """

    names: tuple[str, ...]
    complete: bool
    looked_at: str
    not_text: Mapping[str, str] = field(default_factory=dict)
    beside: str = ""


class SourceStage(ProcessingStage[EmptyTask, FileGroupTask]):
    """A stage that knows its partitions before anything runs. Called by the driver only.

    Attributes:
        surveyed: Which input files are read and which are not, after `partitions` has run; None for sources without
            files.
        format: Format of its files, for a writer that follows the input.
    """

    is_source_stage = True
    surveyed: SourceFiles | None = None
    format: Format = "jsonl"

    @abstractmethod
    def partitions(self) -> list[Partition]:
        """The partitions, in source order.

        Raises:
            InputNotFoundError: Nothing matches the input.
        """

    @abstractmethod
    def columns(self, partitions: Sequence[Partition], wanted: Sequence[str]) -> SourceColumns | None:
        """The columns to expect, looking for `wanted` in particular; None if unknown."""

    def prepare(self, reader: ProcessingStage[Any, Any], partitions: Sequence[Partition]) -> None:
        """Pass facts about the whole input to the stage that reads these partitions; called on a copy of it."""

    def keep_files_whole(self) -> None:
        """Make every file one partition from now on, instead of splitting large ones; called on a copy of the stage."""

    def gather_files(self) -> None:
        """Put all files into one partition from now on; called on a copy of the stage."""

    def serve(self, stage: ProcessingStage[Any, Any]) -> None:
        """Adapt to the stage that receives the partitions, which does not read ranges or reads another format.

        Called on a copy, before `partitions`.
        """

    def searched_folders(self) -> list[str]:
        """Absolute paths of local folders in which every suitable file is input."""
        return []

    def task(self, partition: Partition, *, total: int = 1) -> FileGroupTask:
        """The task that reads `partition`, one of `total`."""
        paths = list(map(attrgetter("path"), partition.ranges))
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
    """A stage that turns files into documents. The planner sets these on its own copy.

    Attributes:
        hints: Columns that later stages will read.
        salvage: Keep the readable part of a damaged file. Otherwise nothing of it may be kept, and damage found while
            reading is raised: documents returned earlier must be discarded.
        checks_first: Check for damage in a separate pass, and skip damaged files. For plans that would already have
            sent documents to other workers, and when a partition is read again because of damage.
        selection: The documents to read, if not all.
        errors: How to handle text that is not UTF-8: `quarantine` its document, or `replace` invalid bytes with U+FFFD.
        reads_ranges: Reads the ranges of a partition rather than whole files, so that a large file can be split.
        only_format: The format that it reads, if just one.
    """

    hints: tuple[str, ...] = ()
    salvage: bool = False
    checks_first: bool = False
    selection: Selection | None = None
    errors: TextErrors = "quarantine"
    reads_ranges = False
    only_format: Format | None = None

    def handle_errors(self, errors: TextErrors) -> None:
        """Set `errors`. The default is not part of the plan, so that outputs of earlier versions can be resumed."""
        if errors not in get_args(TextErrors):
            raise UsageError(f"errors={errors!r}: must be 'quarantine' or 'replace'.", value=errors)
        if errors != "quarantine":
            self.errors = errors

    def select(self, selection: Selection) -> None:
        """Read only the selected documents; as parameters of the stage they are part of the plan."""
        self.selection = selection
        given = {"sample": selection.sample, "max_documents": selection.max_documents}
        given |= {"seed": None if selection.sample is None else selection.seed}
        vars(self).update({name: value for name, value in given.items() if value is not None})

    def note_repairs(self, batch: DocumentBatch, repairs: Iterable[Repair]) -> None:
        """Record which documents of the batch were repaired: each counts as changed once."""
        places = {int(row): place for place, row in enumerate(batch.rows)}
        by_column: dict[str, npt.NDArray[np.int64]] = {}
        for repair in repairs:
            if repair.row in places:
                marks = by_column.setdefault(repair.column, np.zeros(batch.num_items, np.int64))
                marks[places[repair.row]] = repair.marks
        for column, marks in by_column.items():
            batch.note_change(column, marks > 0, marks)

    def table_batches(
        self, partition: Partition, read: Callable[..., Iterator[TableBlock]], dataset_name: str
    ) -> Iterator[DocumentBatch]:
        """The selected rows of a partition, batch by batch, without damaged files unless the run salvages."""
        left_out = find_damage(partition, read) if self.checks_first else {}
        blocks = read(partition, strict=not self.salvage, left_out=left_out)
        for block in blocks if self.selection is None else self.selection.blocks(blocks, partition.id):
            yield self.batch_of(block, dataset_name)
            del block  # the next one reuses its memory

    def batch_of(self, block: TableBlock, dataset_name: str) -> DocumentBatch:
        """Rows that were read, as a batch that knows their positions."""
        batch = DocumentBatch.from_columns(TableColumns(block.table), rows=block.rows, dataset_name=dataset_name)
        if len(block.sources) == 1:
            path = block.sources[0][1].path
            batch._metadata.update(source_file=path, source_files=[path])
        else:
            rows = [(first, file.path) for first, file in block.sources]
            batch._metadata.update(source_rows=rows, source_files=[path for _, path in rows])
        if block.repaired:
            self.note_repairs(batch, block.repaired)
        for bad in block.bad:
            self.note_bad(batch, bad)
        if block.skipped:
            batch.note_skipped(self.name, block.skipped)
        return batch

    def note_bad(self, batch: DocumentBatch, bad: BadRecord) -> None:
        """Quarantine unreadable records."""
        batch.note_quarantine(
            QuarantinedRecord(
                bad.row, self.name, bad.cause, bad.told, bad.file.path, bad.offset, bad.size, bytes(bad.raw),
                bad.lost, bad.salvaged,
            )
        )  # fmt: skip


class PartFile(Protocol):
    """The output of a partition while it is being written; usually one file."""

    def append(self, payload: Any, /, *, rows: int | None = None) -> None:
        """Add the payload that `SinkStage.encode` returned for one batch."""

    def close(self) -> list[WrittenFile]:
        """Finish, and return the written files."""

    def abort(self) -> None:
        """Discard unfinished files."""


class SinkStage(ProcessingStage[DocumentBatch, FileGroupTask]):
    """A stage that writes. It defines how a batch becomes bytes; the runner decides when a partition is committed.

    Attributes:
        has_summary: Whether it describes the output as a whole: `notes` and `summary`.
    """

    is_sink_stage = True
    has_summary = False
    path: str
    mode: str
    storage_options: dict[str, Any] | None

    @property
    @abstractmethod
    def extension(self) -> str:
        """Extension of output files, including the dot and any compression suffix."""

    @abstractmethod
    def encode(self, batch: DocumentBatch) -> Any:
        """The payload of one batch: bytes or a table, as `open_part` expects."""

    @abstractmethod
    def open_part(self, path: str) -> PartFile:
        """A new file at `path` that accepts payloads in order."""

    def open_piece(self, path: str) -> PartFile:
        """A new file at `path` for the payload of one batch, for `concatenate`; by default a small part."""
        return self.open_part(path)

    @abstractmethod
    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        """Join files that were written piece by piece into the one that `open_part` would have written."""

    def notes(self) -> list[str]:
        """Notes about the output to show before the run starts, one sentence each. Called by the driver."""
        return []

    def summary(self, folder: RunFolder) -> OutputSummary | None:
        """The summary of the whole output, once every partition is committed; None for none.

        Called by the driver at the end of every run. Equal partitions must produce equal bytes.
        """
        return None


Mode = Literal["ignore", "overwrite", "error"]


class BaseWriter(SinkStage):
    """Writes documents to a folder, one file per partition, each complete or absent.

    Args:
        path: Output folder; for a single input file also a file with an extension such as `.jsonl`, unless a folder of
            that name exists.
        write_kwargs: `compression`, and `storage_options` for the file system.
        fields: Columns to write, in this order; all by default.
        mode: How to treat existing files: "ignore" resumes an earlier run and refuses to overwrite other files,
            "overwrite" starts over and replaces them, "error" requires an empty folder.
        compression: Compression of the files.

    Attributes:
        endings: Extensions that files of this format can have.
        file_extension: The extension that they get.
        not_called: Methods that runs do not call. A subclass that defines one is rejected.
    """

    endings: tuple[str, ...] = ()
    file_extension: str = ""
    not_called: ClassVar[tuple[str, ...]] = ("process",)

    def __init__(
        self,
        path: str,
        write_kwargs: Mapping[str, Any] | None = None,
        fields: Sequence[str] | None = None,
        mode: Mode = "ignore",
        *,
        compression: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        settings = dict(write_kwargs or {})
        known = ("compression", "storage_options")
        for key in settings:
            if key not in known:
                raise UsageError(
                    f"{type(self).__name__}(write_kwargs={settings!r}): unknown option {key!r}; valid options are "
                    f"{', '.join(known)}.{did_you_mean(key, known)}"
                )
        if mode not in get_args(Mode):
            hint = ""
            if str(mode) == "append":
                hint = " 'ignore' appends: it adds partitions that do not exist yet."
            kind = NotSupportedError if str(mode) == "append" else UsageError
            raise kind(
                f"{type(self).__name__}(mode={mode!r}): mode must be one of {', '.join(get_args(Mode))}.{hint}",
                mode=mode,
            )
        if not str(path).strip() or str(path).endswith("://"):
            raise UsageError(
                f"{type(self).__name__}(path={str(path)!r}): not a folder name. Pass a folder; if the path comes from "
                "a variable, check that it is set."
            )
        self.path = str(path)
        self.fields = field_names(fields)
        self.mode = mode
        self.compression = settings.get("compression", compression)
        options = settings.get("storage_options", storage_options)
        self.storage_options = None if options is None else dict(options)

    def __init_subclass__(cls, **options: Any) -> None:
        """Reject definitions that look right but would be silently ignored."""
        super().__init_subclass__(**options)
        inherited: Any = super(cls, cls)
        for name in inherited.not_called:
            if name in cls.__dict__:
                raise StageDefinitionError(
                    f"{cls.__module__}.{cls.__qualname__} defines {name}(), which runs do not call: they commit the "
                    "files of a writer by partition. Define encode() and open_part(), or make it a ProcessingStage "
                    "that writes its own files, without a record of them."
                )

    def inputs(self) -> Spec:
        return ["data"], list(self.fields or [])

    def outputs(self) -> Spec:
        return ["data"], []

    def open_alone(self, path: str) -> PartFile:
        """A new file at `path` for a batch that is written outside of a run; by default as in one."""
        return self.open_part(path)

    def process(self, task: DocumentBatch) -> FileGroupTask:
        """Write one batch to its own file; in a pipeline the runner writes partitions instead."""
        sources = task._metadata.get("source_files", [])
        key = "\n".join([*sorted(map(str, sources)), task.task_id])
        name = hashlib.sha256(key.encode()).hexdigest()[:12]
        files = self.write_alone(task, f"{self.path.rstrip('/')}/{name}{self.extension}")
        return FileGroupTask(
            task.dataset_name,
            [file.path for file in files],
            list(task._stage_perf),
            {**task._metadata, "format": self.extension.split(".")[1]},
        )

    def write_alone(self, task: DocumentBatch, path: str) -> list[WrittenFile]:
        """Write one batch to a file at `path`, outside of a run and without a record."""
        part = self.open_alone(path)
        try:
            part.append(self.encode(task), rows=task.num_items)
            return part.close()
        except BaseException:
            part.abort()
            raise


def field_names(fields: Sequence[str] | None) -> tuple[str, ...] | None:
    """The column names as passed, None for all columns.

    Raises:
        UsageError: They are not a list of names; a single string would be treated as a list of characters.
    """
    if fields is None:
        return None
    if isinstance(fields, str):
        raise UsageError(f"fields={fields!r} is a single string; pass a list of column names: fields=[{fields!r}].")
    names = tuple(fields)
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"fields={list(names)!r}: column names must be strings.")
    return names
