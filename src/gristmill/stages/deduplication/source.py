"""The documents that a deduplication reads, the same in every step, and the check that they do not change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import InputChangedError, InputNotFoundError, UsageError
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.stages.base import ProcessingStage, Spec, own_copy
from gristmill.stages.source_sink import SourceColumns, SourceStage
from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
from gristmill.storage.files import list_files
from gristmill.storage.formats import COMPRESSED_SUFFIXES, EXTENSIONS, FORMATS, Format, format_of
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import Task
from gristmill.tasks.document import DocumentBatch

FILETYPES: tuple[Format, ...] = ("jsonl", "parquet")
_NAMED = 3
_LOOK_BYTES = 1 << 20
_ROW_BITS = 40
Keys = npt.NDArray[np.uint64]
"""One number for every document: its partition and its row there, so that numbers sort in source order."""


@dataclass(frozen=True)
class DocumentSource:
    """The input of a workflow: its location, its format, and how it is partitioned."""

    paths: str | tuple[str, ...]
    filetype: str
    blocksize: int | str | None = None
    files_per_partition: int | None = None
    file_extensions: tuple[str, ...] | None = None
    read_kwargs: Mapping[str, Any] | None = None

    def reader(self, fields: Sequence[str] | None = None) -> ProcessingStage[Any, Any]:
        """A reader of all documents; `fields` are the needed columns, if not all."""
        kind = ParquetReader if self.filetype == "parquet" else JsonlReader
        return kind(
            self.paths if isinstance(self.paths, str) else list(self.paths),
            files_per_partition=self.files_per_partition,
            blocksize=self.blocksize,
            fields=self._present(fields) if fields is not None and self.filetype == "parquet" else None,
            read_kwargs=self.read_kwargs,
            # The type was chosen or is the only one: files of other types are skipped deliberately.
            file_extensions=self.file_extensions or EXTENSIONS["parquet" if kind is ParquetReader else "jsonl"],
        )

    def partitions(self) -> list[Partition]:
        """The partitions of the files as they are now."""
        return self._files().partitions()

    def _files(self) -> SourceStage:
        source = self.reader().decompose()[0]  # type: ignore[attr-defined]
        assert isinstance(source, SourceStage)
        return source

    def searched_folders(self) -> list[str]:
        """The local folders that are searched for files."""
        return self._files().searched_folders()

    def look_for(self, wanted: Sequence[str]) -> SourceColumns | None:
        """The columns of all files together, as far as they were read to find the wanted ones; None without any."""
        files = self._files()
        return files.columns(files.partitions(), wanted)

    def first_batches(
        self, partitions: Sequence[Partition], fields: Sequence[str] | None = None, *, batch_bytes: int = _LOOK_BYTES
    ) -> Iterator[DocumentBatch | None]:
        """The first documents of each partition, about this many bytes, with these columns; None if it has none."""
        small = replace(self, read_kwargs={**(self.read_kwargs or {}), "batch_bytes": batch_bytes})
        files, reader, *_ = small.reader(fields).decompose()  # type: ignore[attr-defined]
        files.prepare(reader, partitions)
        for partition in partitions:
            yield next((batch for batch in reader.process(files.task(partition)) if batch.num_items), None)

    def _present(self, fields: Sequence[str]) -> list[str]:
        """The fields that any file has (a missing text column is reported by the planner)."""
        found = self.look_for(fields)
        return [field for field in fields if found is None or field in found.names] or list(fields[:1])


def find_filetype(
    paths: str | Sequence[str], *, storage_options: Mapping[str, Any] | None, extensions: Sequence[str] | None = None
) -> str:
    """`jsonl` or `parquet`, by the file names; `extensions` are the extensions to look for, if not the usual ones.

    Raises:
        UsageError: There are both, or a file with the name of another format.
        InputNotFoundError: There is neither.
    """
    usual = [ending for kind in FILETYPES for ending in EXTENSIONS[kind]]
    wanted = list(extensions or usual)
    given = paths if isinstance(paths, str) else list(paths)
    try:
        files = list_files(given, extensions=wanted, storage_options=storage_options)
    except InputNotFoundError:
        files = list_files(given, extensions=sum(EXTENSIONS.values(), ()), storage_options=storage_options)
    endings = tuple(ending + suffix for ending in wanted for suffix in ("", *COMPRESSED_SUFFIXES))
    others = [file.path for file in files if not file.path.lower().endswith(endings)]
    kind = format_of(others[0]) if others else None
    if kind is not None:
        raise UsageError(
            f"{others[0]} is {FORMATS[kind].label}, but this command reads JSONL and Parquet. A recipe deduplicates "
            "every format: one with the stages DocumentReader, ExactDeduplication (or FuzzyDeduplication) and "
            "DocumentWriter, run by: gristmill run RECIPE INPUT OUTPUT",
            paths=others,
        )
    if others:
        raise UsageError(
            f"{others[0]} is neither JSONL nor Parquet by its name (these end with {', '.join(wanted)}). Convert web "
            "pages and other documents to records with a text first; if the file does hold such records, use "
            "--input-filetype (input_filetype='jsonl' or 'parquet').",
            paths=others,
        )
    kinds = {"parquet" if ".parquet" in file.path.rsplit("/", 1)[-1].lower() else "jsonl" for file in files}
    if len(kinds) > 1:
        raise UsageError(
            f"{paths} holds both JSONL and Parquet files. Choose one with --input-filetype (input_filetype='jsonl' or "
            "'parquet').",
            paths=paths,
        )
    return kinds.pop()


def check_unchanged(partitions: Sequence[Partition], step: RunFolder, *, complete: bool) -> None:
    """Refuse to continue if the input changed after an earlier step read it.

    Args:
        partitions: The partitions as they are now.
        step: The folder of the step that read the documents.
        complete: Whether that step is known to have read all partitions.

    Raises:
        InputChangedError: A file was changed, removed, or (if the step is complete) added.
    """
    differences = input_differences(partitions, step, complete=complete)
    if differences:
        raise InputChangedError(
            f"The input changed after the first step of this deduplication read it: {first_named(differences)}. "
            "Duplicates were found among other documents, so continuing would remove the wrong ones. Restore the "
            "same input, or start over with --fresh (fresh=True).",
            differences=differences,
        )


def input_differences(partitions: Sequence[Partition], step: RunFolder, *, complete: bool) -> list[str]:
    """The differences between the current input and what a step read; `complete` if it is known to have read all."""
    read = {name: entry.fingerprint for name, entry in Manifest(step).load().items()}
    now = {partition.id: partition.fingerprint() for partition in partitions}
    differences = [f"{name} was changed" for name in read if name in now and now[name] != read[name]]
    differences += [f"{name} is missing" for name in read if name not in now]
    if complete:
        differences += [f"{name} is new" for name in now if name not in read]
    return differences


def first_named(differences: Sequence[str]) -> str:
    """The first few differences, and the number of others."""
    more = f" and {len(differences) - _NAMED} more" if len(differences) > _NAMED else ""
    return ", ".join(differences[:_NAMED]) + more


def check_disjoint(partitions: Sequence[Partition], kept: Sequence[Partition]) -> None:
    """Reject comparing documents with themselves: all of them would be removed.

    Raises:
        UsageError: A file is on both sides.
    """
    both = {file for partition in partitions for file in partition.source_files}.intersection(
        file for partition in kept for file in partition.source_files
    )
    if both:
        raise UsageError(
            f"{min(both)} is both input and --against (against=…): all of its documents would be duplicates of "
            "themselves. Pass only other documents to --against.",
            paths=sorted(both),
        )


def make_keys(partition: int, rows: npt.NDArray[np.int64]) -> Keys:
    """The keys of some rows of the partition number `partition`."""
    return rows.astype(np.uint64) | np.uint64(partition << _ROW_BITS)


def first_key(partition: int) -> int:
    """The key of row 0 of a partition; that of the next partition is one past its last."""
    return partition << _ROW_BITS


def partitions_of(keys: Keys) -> npt.NDArray[np.int64]:
    """The partition number of every key."""
    return (keys >> np.uint64(_ROW_BITS)).astype(np.int64)


def partition_keys(keys: Keys) -> Keys:
    """The key of row 0 of the partition of every key."""
    return keys >> np.uint64(_ROW_BITS) << np.uint64(_ROW_BITS)


def rows_of(keys: Keys) -> npt.NDArray[np.int64]:
    """The row number of every key within its partition."""
    return (keys & np.uint64((1 << _ROW_BITS) - 1)).astype(np.int64)


class DocumentStage(ProcessingStage[DocumentBatch, DocumentBatch]):
    """A stage that reads documents; its columns are checked before a run starts, not in every batch.

    A column that only some files have counts as missing in the others, without an error.

    Attributes:
        first_partition: The number of the first partition, if documents of other sources are numbered before.
    """

    first_partition = 0

    def keys_of(self, batch: DocumentBatch) -> Keys:
        """The keys of the documents of a batch."""
        return make_keys(batch.partition + self.first_partition, batch.rows)

    def placed(self, first_partition: int, *, preferred: bool) -> DocumentStage:
        """A copy for documents with partitions numbered from `first_partition`; `preferred` ones are always kept."""
        stage = own_copy(self)
        if first_partition:
            stage.first_partition = first_partition
        if preferred and hasattr(stage, "rule"):
            stage.rule = replace(stage.rule, always=True)
        return stage

    def input_spec_for_task(self, task: Task[Any]) -> Spec:
        return ["data"], []

    def filled_columns(self) -> list[str]:
        """Nothing: the stage creates its own table."""
        return []


def texts_of(batch: DocumentBatch, text_field: str) -> pa.Array:
    """The text of every document; missing for all of them if these files have no such column."""
    if batch.columns.has(text_field):
        return batch.text(text_field)
    return pa.nulls(batch.num_items, pa.large_string())
