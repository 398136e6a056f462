"""Reads JSONL, plain or compressed, without changing a value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gristmill.errors import NotSupportedError, UsageError
from gristmill.figures import parse_size
from gristmill.ledger.record.trail import TOO_MANY, QuarantinedRecord
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec
from gristmill.stages.source_sink import ReaderStage, field_names
from gristmill.stages.text.io.reader.assign_ids import AssignRowIds
from gristmill.stages.text.io.reader.partitioning import Paths, partitioned, plain_paths, whole_files
from gristmill.storage.formats import codec_of
from gristmill.storage.jsonl_blocks import DEFAULT_BLOCK_BYTES, DEFAULT_MAX_RECORD_BYTES, RecordBlock, read_blocks
from gristmill.storage.partitions import MAX_RAW_BYTES, Partition, find_damage
from gristmill.storage.valid_text import TextErrors
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.columns import RecordColumns
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

MOST_BAD = 200_000
"""Maximum number of bad lines per partition to keep, since each takes memory; the others are only counted."""


class JsonlReaderStage(ReaderStage):
    """Turns a group of JSONL files (or a block of one) into batches.

    Args:
        fields: Keys to read; other keys are discarded.
        batch_bytes: Approximate amount of text per batch.
        max_record_bytes: Longer records are quarantined.
        storage_options: File system options for URLs.
        errors: How to handle text that is not UTF-8: `quarantine` its record, or `replace` invalid bytes with U+FFFD
            and count the record as changed.
    """

    name = "jsonl_reader"
    fork_safe = True
    reads_ranges = True
    only_format = "jsonl"

    def __init__(
        self,
        fields: Sequence[str] | None = None,
        *,
        batch_bytes: int | str | None = None,
        max_record_bytes: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        errors: TextErrors = "quarantine",
    ) -> None:
        self.fields = field_names(fields)
        self.batch_bytes = batch_bytes
        if errors != "quarantine":
            self.handle_errors(errors)
        self.max_record_bytes = max_record_bytes
        self.storage_options = None if storage_options is None else dict(storage_options)

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], list(self.fields or [])

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        partition: Partition = task._metadata.get("partition") or whole_files(task, "jsonl", self.storage_options)
        read = partial(
            read_blocks,
            block_bytes=DEFAULT_BLOCK_BYTES if self.batch_bytes is None else parse_size(self.batch_bytes),
            max_record_bytes=(
                DEFAULT_MAX_RECORD_BYTES if self.max_record_bytes is None else parse_size(self.max_record_bytes)
            ),
            storage_options=self.storage_options,
        )
        left_out = {}
        if self.checks_first and any(codec_of(path) != "none" for path in partition.source_files):
            left_out = find_damage(partition, read)
        blocks = read(partition, strict=not self.salvage, left_out=left_out)
        room = MOST_BAD
        for block in blocks if self.selection is None else self.selection.blocks(blocks, partition.id):
            batch = self._batch(block, task.dataset_name, room)
            room = max(0, room + batch.num_items - len(block.rows))
            yield batch
            del batch, block  # the next block reuses their memory

    def _batch(self, block: RecordBlock, dataset_name: str, room: int) -> DocumentBatch:
        known = self.hints if self.fields is None else self.fields
        buffer, starts, ends, fixed = block.buffer, block.starts, block.ends, None
        if self.errors == "replace":
            from gristmill.storage.text_repair import repair_records

            fixed = repair_records(buffer, starts, ends)
            buffer, starts, ends = fixed.buffer, fixed.starts, fixed.ends
        from gristmill.storage.json_records import JsonRecords

        records, wrong, causes = JsonRecords.scan(buffer, starts, ends, fields=known, most_causes=room)
        rows = block.rows
        if len(wrong):
            good = np.ones(len(rows), bool)
            good[wrong] = False
            rows = rows[good]
        columns = RecordColumns(records)
        if self.fields is not None:
            columns = RecordColumns(records, names=self.fields)
        batch = DocumentBatch.from_columns(columns, rows=rows, dataset_name=dataset_name)
        if len(block.sources) == 1:
            path = block.sources[0][1].path
            batch._metadata.update(source_file=path, source_files=[path])
        else:
            spans = [(first, file.path) for first, file in block.sources]
            batch._metadata.update(source_rows=spans, source_files=[path for _, path in spans])
        if fixed is not None and len(fixed.repaired):
            self.note_repairs(batch, fixed.told(records, block.rows, rows))
        for bad in block.bad:
            self.note_bad(batch, bad)
        more = len(wrong) - len(causes)
        if more:
            causes.append(TOO_MANY)
        for index, cause in zip(wrong[: len(causes)].tolist(), causes, strict=True):
            start, end = int(block.starts[index]), int(block.ends[index])
            raw = block.buffer[start : min(end, start + MAX_RAW_BYTES)].tobytes()
            told, lost, salvaged = _hint(raw), 0, None
            if cause == TOO_MANY:
                told = f"this and {more - 1:,} more lines are not records; the quarantine holds the first {MOST_BAD:,}"
                lost, salvaged = more, 0 if self.salvage else None
            batch.note_quarantine(
                QuarantinedRecord(
                    int(block.rows[index]),
                    self.name,
                    cause,
                    told,
                    block.file_of(int(block.rows[index])).path,
                    int(block.offsets[index]),
                    end - start,
                    raw,
                    lost,
                    salvaged,
                )
            )
        return batch


def _hint(raw: bytes) -> str:
    """A hint about a record that is not an object, if it is a common mistake."""
    text = raw.strip()
    if text.startswith(b"[") or text == b"{":
        return "JSONL has one whole object per line; this looks like JSON in another layout"
    return ""


class JsonlReader(CompositeStage[EmptyTask, DocumentBatch]):
    """Reads JSONL files and JSON arrays: plain, .gz, .zst, .bz2 or .xz, from any file system fsspec supports.

    Every value is kept exactly as written; an unreadable record is quarantined and reading continues. Nothing of a
    damaged archive is kept, unless the run salvages (`Pipeline.run(salvage=True)`).

    Args:
        file_paths: A file, folder, glob or URL, or a list of these. In folders, names that begin with `_` or `.` are
            skipped.
        files_per_partition: Number of whole files per partition; small ones are read as one batch.
        blocksize: Approximate partition size; large files are split at line ends. If neither is set, every file is a
            partition, and files above 128 MB are split.
        fields: Keys to read; all by default.
        read_kwargs: `batch_bytes`, `errors` and `max_record_bytes` of the reader, `storage_options` for the file
            system.
        task_type: Only "document".
        file_extensions: Extensions of the files to read in a folder. Without it, a folder that also holds Parquet files
            is an error.
        limit: Read at most this many partitions.
        max_documents: Read at most this many documents, from the start (of the sample, if there is one).
        sample: Fraction of documents to sample at random, such as 0.01.
        seed: Random seed of the sample.
        errors: How to handle text that is not UTF-8: `quarantine` its record, or `replace` invalid bytes with U+FFFD
            and count the record as changed.

    Example:
        >>> pipeline.add_stage(JsonlReader(file_paths="crawl/*.jsonl.zst", fields=["id", "text"]))
    """

    name = "jsonl_reader"

    def __init__(
        self,
        file_paths: Paths,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        fields: Sequence[str] | None = None,
        read_kwargs: Mapping[str, Any] | None = None,
        task_type: str = "document",
        file_extensions: Sequence[str] | None = None,
        _generate_ids: bool = False,
        _assign_ids: bool = False,
        *,
        limit: int | None = None,
        max_documents: int | None = None,
        sample: float | None = None,
        seed: int = 0,
        storage_options: Mapping[str, Any] | None = None,
        max_record_bytes: int | str | None = None,
        errors: TextErrors = "quarantine",
    ) -> None:
        settings = dict(read_kwargs or {})
        check_reader_options(type(self).__name__, settings, task_type, _generate_ids, _assign_ids)
        self.storage_options = settings.pop("storage_options", storage_options)
        self.read_kwargs = settings if errors == "quarantine" else {**settings, "errors": errors}
        if max_record_bytes is not None:
            self.read_kwargs["max_record_bytes"] = max_record_bytes
        self.file_paths = plain_paths(file_paths)
        self.files_per_partition = files_per_partition
        self.blocksize = blocksize
        self.fields = fields
        self.file_extensions = file_extensions
        self.limit = limit
        self.max_documents = max_documents
        self.sample = sample
        self.seed = seed
        self.with_ids = _generate_ids or _assign_ids
        self.decompose()

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        reader = JsonlReaderStage(self.fields, storage_options=self.storage_options, **self.read_kwargs)
        stages = partitioned(self, reader, "jsonl")
        return [*stages, AssignRowIds()] if self.with_ids else [*stages]


def check_reader_options(
    reader: str, settings: Mapping[str, Any], task_type: str, generate_ids: bool, assign_ids: bool
) -> None:
    """Reject invalid reader options."""
    if task_type != "document":
        raise NotSupportedError(f"{reader}(task_type={task_type!r}): only 'document' can be read.")
    if generate_ids and assign_ids:
        raise UsageError(f"{reader}: _generate_ids and _assign_ids are mutually exclusive: both assign the same ids.")
    known = {"batch_bytes", "errors", "max_record_bytes", "storage_options"}
    unknown = set(settings) - known
    if unknown:
        raise UsageError(
            f"{reader}(read_kwargs={dict(settings)!r}): unknown option {', '.join(map(repr, sorted(unknown)))}; valid "
            f"options are {', '.join(map(repr, sorted(known)))}."
        )
