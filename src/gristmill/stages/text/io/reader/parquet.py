"""Reads Parquet, keeping its types, with one schema for all files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from gristmill.figures import parse_size
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec
from gristmill.stages.source_sink import ReaderStage, field_names
from gristmill.stages.text.io.reader.assign_ids import AssignRowIds
from gristmill.stages.text.io.reader.jsonl import check_reader_options
from gristmill.stages.text.io.reader.partitioning import Paths, partitioned, plain_paths, whole_files
from gristmill.storage.parquet_blocks import (
    DEFAULT_BLOCK_BYTES,
    DEFAULT_MAX_RECORD_BYTES,
    read_parquet_blocks,
)
from gristmill.storage.partitions import Partition
from gristmill.storage.valid_text import TextErrors
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask


class ParquetReaderStage(ReaderStage):
    """Turns a group of Parquet files (or row groups of one) into batches.

    Args:
        fields: Columns to read; all by default.
        batch_bytes: Approximate amount of data per batch.
        max_record_bytes: Larger rows are quarantined.
        storage_options: File system options for URLs.
        errors: How to handle text that is not UTF-8: `quarantine` its document, or `replace` the invalid bytes with
            U+FFFD and count the document as changed.
    """

    name = "parquet_reader"
    fork_safe = True
    reads_ranges = True
    only_format = "parquet"
    max_record_bytes: int | str | None = None

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
        self.storage_options = None if storage_options is None else dict(storage_options)
        self.schema: Any = None
        if max_record_bytes is not None:  # by default not part of the plan, as in outputs of earlier versions
            self.max_record_bytes = max_record_bytes

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], list(self.fields or [])

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        partition: Partition = task._metadata.get("partition") or whole_files(task, "parquet", self.storage_options)
        read = partial(
            read_parquet_blocks,
            schema=self.schema,
            fields=self.fields,
            block_bytes=DEFAULT_BLOCK_BYTES if self.batch_bytes is None else parse_size(self.batch_bytes),
            max_record_bytes=(
                DEFAULT_MAX_RECORD_BYTES if self.max_record_bytes is None else parse_size(self.max_record_bytes)
            ),
            storage_options=self.storage_options,
            errors=self.errors,
        )
        return self.table_batches(partition, read, task.dataset_name)


class ParquetReader(CompositeStage[EmptyTask, DocumentBatch]):
    """Reads Parquet files from any file system fsspec supports.

    Files may lack columns that others have; conflicting types are an error that names both files. Nothing of a damaged
    file is kept, unless the run salvages (`Pipeline.run(salvage=True)`).

    Args:
        file_paths: A file, folder, glob or URL, or a list of these. In folders, names that begin with `_` or `.` are
            skipped.
        files_per_partition: Number of whole files per partition; small ones are read as one batch.
        blocksize: Approximate partition size; large files are split at row groups.
        fields: Columns to read; all by default.
        read_kwargs: `batch_bytes`, `max_record_bytes` and `errors` of the reader, `storage_options` for the file
            system.
        task_type: Only "document".
        file_extensions: Extensions of the files to read in a folder. Without it, a folder that also holds JSONL files
            is an error.
        limit: Read at most this many partitions.
        max_documents: Read at most this many documents, from the start (of the sample, if there is one).
        sample: Fraction of documents to sample at random, such as 0.01.
        seed: Random seed of the sample.
        errors: How to handle text that is not UTF-8: `quarantine` its document, or `replace` the invalid bytes with
            U+FFFD and count the document as changed.

    Example:
        >>> pipeline.add_stage(ParquetReader(file_paths="corpus/", fields=["id", "text"]))
    """

    name = "parquet_reader"

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
        errors: TextErrors = "quarantine",
    ) -> None:
        settings = dict(read_kwargs or {})
        check_reader_options(type(self).__name__, settings, task_type, _generate_ids, _assign_ids)
        self.storage_options = settings.pop("storage_options", storage_options)
        self.read_kwargs = settings if errors == "quarantine" else {**settings, "errors": errors}
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
        reader = ParquetReaderStage(self.fields, storage_options=self.storage_options, **self.read_kwargs)
        stages = partitioned(self, reader, "parquet")
        return [*stages, AssignRowIds()] if self.with_ids else [*stages]
