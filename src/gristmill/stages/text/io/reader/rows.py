"""Base classes of the readers of formats other than JSONL and Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from gristmill.errors import UsageError
from gristmill.figures import parse_size
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec
from gristmill.stages.source_sink import ReaderStage, field_names
from gristmill.stages.text.io.reader.partitioning import Paths, partitioned, plain_paths, whole_files
from gristmill.storage.formats import Format
from gristmill.storage.jsonl_blocks import DEFAULT_BLOCK_BYTES, DEFAULT_MAX_RECORD_BYTES
from gristmill.storage.partitions import Partition
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.valid_text import TextErrors
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask


class RowReaderStage(ReaderStage):
    """Turns a group of files into batches; the plan holds for each file how to read it.

    Args:
        format: Format of the files.
        options: Options of the format, as defined by its module in `gristmill.storage.row_formats`.
        fields: Columns to read; all by default.
        batch_bytes: Approximate amount of data per batch.
        max_record_bytes: Larger documents are quarantined.
        storage_options: File system options for URLs.
        errors: How to handle text that is not UTF-8: `quarantine` its document, or `replace` the invalid bytes with
            U+FFFD and count the document as changed.
    """

    name = "row_reader"
    fork_safe = True
    reads_ranges = True

    def __init__(
        self,
        format: Format,
        options: Mapping[str, Any] | None = None,
        fields: Sequence[str] | None = None,
        *,
        batch_bytes: int | str | None = None,
        max_record_bytes: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        errors: TextErrors = "quarantine",
    ) -> None:
        self.name = f"{format}_reader"
        self.format = format
        self.options = dict(options or {})
        self.fields = field_names(fields)
        self.batch_bytes = batch_bytes
        self.max_record_bytes = max_record_bytes
        self.storage_options = None if storage_options is None else dict(storage_options)
        if errors != "quarantine":
            self.handle_errors(errors)

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], list(self.fields or [])

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        partition: Partition = task._metadata.get("partition") or whole_files(
            task, self.format, self.storage_options, self.options
        )
        read = partial(
            read_row_blocks,
            fields=self.fields,
            block_bytes=DEFAULT_BLOCK_BYTES if self.batch_bytes is None else parse_size(self.batch_bytes),
            max_record_bytes=(
                DEFAULT_MAX_RECORD_BYTES if self.max_record_bytes is None else parse_size(self.max_record_bytes)
            ),
            storage_options=self.storage_options,
            errors=self.errors,
        )
        return self.table_batches(partition, read, task.dataset_name)


class RowReader(CompositeStage[EmptyTask, DocumentBatch]):
    """Base class of the readers of formats other than JSONL and Parquet.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these. In folders, names that begin with `_` or `.` are
            skipped.
        files_per_partition: Number of whole files per partition.
        blocksize: Approximate partition size; small files are combined.
        fields: Columns to read; all by default.
        file_extensions: Extensions of the files to read in a folder.
        limit: Read at most this many partitions.
        max_documents: Read at most this many documents, from the start (of the sample, if there is one).
        sample: Fraction of documents to sample at random, such as 0.01.
        seed: Random seed of the sample.
        max_record_bytes: Larger documents are quarantined.
        storage_options: File system options for URLs.
        errors: How to handle text that is not UTF-8: `quarantine` its document, or `replace` the invalid bytes with
            U+FFFD and count the document as changed.
    """

    format: ClassVar[Format]

    def __init__(
        self,
        file_paths: Paths,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        fields: Sequence[str] | None = None,
        file_extensions: Sequence[str] | None = None,
        *,
        limit: int | None = None,
        max_documents: int | None = None,
        sample: float | None = None,
        seed: int = 0,
        max_record_bytes: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        errors: TextErrors = "quarantine",
    ) -> None:
        self.file_paths = plain_paths(file_paths)
        self.files_per_partition = files_per_partition
        self.blocksize = blocksize
        self.fields = fields
        self.file_extensions = file_extensions
        self.limit = limit
        self.max_documents = max_documents
        self.sample = sample
        self.seed = seed
        self.max_record_bytes = max_record_bytes
        self.storage_options = storage_options
        self.errors = errors
        self.decompose()  # refuses invalid options

    def options(self) -> dict[str, Any]:
        """Options of this format; None leaves the choice to the format."""
        return {}

    def inputs(self) -> Spec:
        return [], []

    def outputs(self) -> Spec:
        return ["data"], list(self.fields or [])

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        options = self.options()
        reader = RowReaderStage(
            self.format,
            options,
            self.fields,
            max_record_bytes=self.max_record_bytes,
            storage_options=self.storage_options,
            errors=self.errors,
        )
        return [*partitioned(self, reader, self.format, options)]


def one_of(reader: str, name: str, value: str, known: Sequence[str]) -> str:
    """Returns `value` if it is known.

    Raises:
        UsageError: It is unknown.
    """
    if value not in known:
        raise UsageError(f"{reader}({name}={value!r}): must be one of {', '.join(map(repr, known))}.", value=value)
    return value


def known_encoding(reader: str, encoding: str | None) -> str | None:
    """Returns `encoding` if there is a text encoding of this name.

    Raises:
        UsageError: The encoding is unknown.
    """
    if encoding is not None:
        try:
            "".encode(encoding)
        except LookupError as error:
            told = f"{reader}(encoding={encoding!r}): unknown encoding. Common ones are latin-1, cp1252, utf-16."
            raise UsageError(told, value=encoding) from error
    return encoding
