"""Iteration: reads the records of a downloaded file."""

from __future__ import annotations

import os
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from gristmill.errors import GristmillError, StageDefinitionError, UsageError, is_of_environment
from gristmill.figures import parse_size
from gristmill.stages.base import Spec
from gristmill.stages.source_sink import ReaderStage
from gristmill.stages.text.download.base.download import Downloaded, downloads_of
from gristmill.stages.text.download.base.extract import (
    DocumentExtractor,
    DocumentExtractStage,
    failure_of,
    worker_spec,
)
from gristmill.stages.text.download.base.records import table_of
from gristmill.storage.jsonl_blocks import DEFAULT_BLOCK_BYTES, DEFAULT_MAX_RECORD_BYTES
from gristmill.storage.partitions import FileRange, Partition
from gristmill.storage.row_blocks import read_row_blocks
from gristmill.storage.row_formats import Broken, Rows
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

_GROUP = 64
"""Number of records per table, and its approximate maximum of bytes."""
_GROUP_BYTES = 4 << 20
FILE_NAME_FIELD = "file_name"


class DocumentIterator(ABC):
    """Reads the records of one file. Subclass it and implement the two methods.

    Sent to worker processes, where `iterate` is called once per file.

    Example:
        >>> class Lines(DocumentIterator):
        ...     def iterate(self, file_path):
        ...         with open(file_path, encoding="utf-8") as lines:
        ...             for line in lines:
        ...                 yield {"text": line.rstrip()}
        ...
        ...     def output_columns(self):
        ...         return ["text"]
    """

    @abstractmethod
    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | Broken]:
        """The records of a local file, in order, as dictionaries.

        Yield a `gristmill.storage.row_formats.Broken` for an unreadable record: it is quarantined and reading
        continues. An exception means that the rest of the file is damaged: nothing of it is kept, unless the run
        salvages damaged files.
        """

    @abstractmethod
    def output_columns(self) -> list[str]:
        """The keys of the records."""


class DocumentIterateExtractStage(ReaderStage):
    """Reads downloaded files record by record, and extracts a document from each if there is an extractor.

    Args:
        iterator: Reads the records of a file.
        extractor: Turns a record into a document; by default the records are the documents.
        record_limit: Read at most this many records of each file.
        add_filename_column: Add the name of its file to every document, in the column `file_name` or the one named
            here.
        max_calls_per_worker: Replace a worker after this many files, on executors that support it.
        batch_bytes: Approximate amount of data per batch.
        max_record_bytes: Larger records are quarantined.
    """

    name = "iterate"

    def __init__(
        self,
        iterator: DocumentIterator,
        extractor: DocumentExtractor | None = None,
        record_limit: int | None = None,
        add_filename_column: bool | str = True,
        max_calls_per_worker: int | None = None,
        *,
        batch_bytes: int | str | None = None,
        max_record_bytes: int | str | None = None,
    ) -> None:
        if record_limit is not None and (
            isinstance(record_limit, bool) or not isinstance(record_limit, int) or record_limit < 1
        ):
            raise UsageError(f"record_limit={record_limit!r}: must be a whole number of records, at least 1.")
        self.iterator = iterator
        self.extractor = extractor
        self.record_limit = record_limit
        self.add_filename_column = add_filename_column
        self._max_calls_per_worker = max_calls_per_worker
        self.batch_bytes = batch_bytes
        self.max_record_bytes = max_record_bytes

    @property
    def file_name_field(self) -> str | None:
        """The column for the file name; None without one."""
        given = self.add_filename_column
        return given if isinstance(given, str) else FILE_NAME_FIELD if given else None

    def record_columns(self) -> tuple[str, ...]:
        """The columns of the records, before any extraction."""
        return tuple(dict.fromkeys([*self.iterator.output_columns(), *filter(None, [self.file_name_field])]))

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], list(self.record_columns()) if self.extractor is None else self._extraction().outputs()[1]

    def ray_stage_spec(self) -> dict[str, Any]:
        return {**super().ray_stage_spec(), **worker_spec(self._max_calls_per_worker)}

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        files = {file.part.path: file for file in downloads_of(task)}
        parts = tuple(file.part for file in files.values())
        partition = Partition(0, task.partition_id, parts)
        read = partial(
            read_row_blocks,
            block_bytes=DEFAULT_BLOCK_BYTES if self.batch_bytes is None else parse_size(self.batch_bytes),
            max_record_bytes=(
                DEFAULT_MAX_RECORD_BYTES if self.max_record_bytes is None else parse_size(self.max_record_bytes)
            ),
            errors=self.errors,
            rows_from=partial(self._rows, files),
        )
        extraction = None if self.extractor is None else self._extraction()
        for batch in self.table_batches(partition, read, task.dataset_name):
            yield batch if extraction is None or not batch.num_items else extraction.process(batch)
            del batch  # the next one reuses its memory
        for file in files.values():
            if file.path and not file.is_kept:
                with suppress(FileNotFoundError):
                    os.unlink(file.path)

    def _extraction(self) -> DocumentExtractStage:
        assert self.extractor is not None
        carried = () if self.file_name_field is None else (self.file_name_field,)
        stage = DocumentExtractStage(self.extractor, carried)
        stage.name = self.name
        return stage

    def _rows(self, files: Mapping[str, Downloaded], part: FileRange, *, storage_options: Any = None) -> Rows:
        """The records of one file in small tables."""
        file = files[part.path]
        if file.problem:
            yield Broken("not_downloaded", file.problem)
            return
        names, size = self.record_columns(), 0
        group: list[dict[str, Any]] = []
        for record in self._records(file):
            if isinstance(record, Broken):
                yield from _tables(group, names)
                group, size = [], 0
                yield record
                continue
            group.append(record)
            size += sum(len(value) for value in record.values() if isinstance(value, str | bytes))
            if len(group) >= _GROUP or size >= _GROUP_BYTES:
                yield from _tables(group, names)
                group, size = [], 0
        yield from _tables(group, names)

    def _records(self, file: Downloaded) -> Iterator[dict[str, Any] | Broken]:
        field, name = self.file_name_field, os.path.basename(file.path)
        records = iter(self.iterator.iterate(file.path))
        count = 0
        while self.record_limit is None or count < self.record_limit:
            try:
                record = next(records, None)
            except Exception as error:
                yield _damage(error)
                return
            if record is None:
                return
            if isinstance(record, Broken):
                yield record
                if record.rest:
                    return
            elif isinstance(record, dict):
                yield record if field is None or field in record else {**record, field: name}
            else:
                raise StageDefinitionError(
                    f"{type(self.iterator).__name__}.iterate() yielded a {type(record).__name__}; it must yield "
                    "dictionaries."
                )
            count += 1


def _tables(records: list[dict[str, Any]], names: tuple[str, ...]) -> Rows:
    """The records as one table; records that no table can hold are returned as `Broken`."""
    if not records:
        return
    try:
        yield table_of(records, names)
    except UnicodeEncodeError:
        for record in records:
            try:
                yield table_of([record], names)
            except UnicodeEncodeError as error:
                yield Broken("invalid_utf8", f"a text of the record is not Unicode: {error}", raw=repr(record).encode())


def _damage(error: Exception) -> Broken:
    """The message of an iterator's exception about its file.

    Raises:
        Exception: The same, if it is not about the file.
    """
    if is_of_environment(error) or isinstance(error, StageDefinitionError | UsageError | MemoryError):
        raise error
    if isinstance(error, EOFError):
        cause = getattr(error, "cause", "truncated_file")
    elif isinstance(error, zlib.error | OSError):
        cause = "corrupt_archive"
    else:
        cause = "unreadable_file"
    told = str(error) if isinstance(error, GristmillError) else failure_of(error)
    return Broken(cause, told, rest=True)
