"""Writes tables for other tools: CSV, TSV and Arrow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.stages.source_sink import BaseWriter, Mode, PartFile
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.table_sinks import (
    ArrowSink,
    CsvSink,
    TablePart,
    arrow_schema,
    concatenate_arrow,
    concatenate_csv,
    csv_names,
    numbered,
)
from gristmill.tasks.document import DocumentBatch

_SUFFIXES = {None: "", "none": "", "gzip": ".gz", "gz": ".gz", "zstd": ".zst", "zst": ".zst", "bz2": ".bz2"}
_ARROW_CODECS = {None: None, "none": None, "zst": "zstd", "zstd": "zstd", "lz4": "lz4"}


class CsvWriter(BaseWriter):
    """Writes documents as CSV with a header, or as TSV if the delimiter is a tab.

    Texts are quoted, a null is an empty value without quotes, lists and objects are JSON; `CsvReader` reads all values
    back as text. If the columns change within a partition, a new file begins.

    Example:
        >>> pipeline.add_stage(CsvWriter(path="clean/", fields=["id", "text"], compression="gz"))
    """

    name = "csv_writer"
    fork_safe = True

    def __init__(
        self,
        path: str,
        write_kwargs: Mapping[str, Any] | None = None,
        fields: Sequence[str] | None = None,
        mode: Mode = "ignore",
        *,
        delimiter: str = ",",
        compression: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, write_kwargs, fields, mode, compression=compression, storage_options=storage_options)
        if len(delimiter) != 1 or delimiter in '"\r\n' or not delimiter.isascii():
            raise UsageError(
                f"CsvWriter(delimiter={delimiter!r}): must be a single ASCII character, such as ',' or a tab."
            )
        if self.compression not in _SUFFIXES:
            raise UsageError(f"CsvWriter(compression={self.compression!r}): must be None, 'gzip', 'zstd' or 'bz2'.")
        self.delimiter = delimiter

    @property
    def extension(self) -> str:
        return (".tsv" if self.delimiter == "\t" else ".csv") + _SUFFIXES[self.compression]

    def encode(self, batch: DocumentBatch) -> pa.Table:
        return chosen(batch, self.fields)

    def open_part(self, path: str) -> PartFile:
        return TablePart(path, self.extension, _names, self._sink)

    def _sink(self, path: str, table: pa.Table) -> CsvSink:
        return CsvSink(path, table.column_names, self.delimiter, storage_options=self.storage_options)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        found = [csv_names(piece.path, self.delimiter, storage_options=self.storage_options) for piece in pieces]
        join = partial(concatenate_csv, delimiter=self.delimiter, storage_options=self.storage_options)
        return _joined(pieces, found, path, self.extension, join)


class ArrowWriter(BaseWriter):
    """Writes documents as Arrow files (IPC file format, also called Feather), which other tools can memory-map.

    Example:
        >>> pipeline.add_stage(ArrowWriter(path="clean/", compression="zstd"))
    """

    name = "arrow_writer"
    fork_safe = True
    extension = ".arrow"

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
        super().__init__(path, write_kwargs, fields, mode, compression=compression, storage_options=storage_options)
        if self.compression not in _ARROW_CODECS:
            raise UsageError(f"ArrowWriter(compression={self.compression!r}): must be None, 'zstd' or 'lz4'.")

    def encode(self, batch: DocumentBatch) -> pa.Table:
        return chosen(batch, self.fields)

    def open_part(self, path: str) -> PartFile:
        return TablePart(path, self.extension, _schema, self._sink)

    def _sink(self, path: str, table: pa.Table) -> ArrowSink:
        codec = _ARROW_CODECS[self.compression]
        return ArrowSink(path, table.schema, codec, storage_options=self.storage_options)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        found = [arrow_schema(piece.path, storage_options=self.storage_options) for piece in pieces]
        codec = _ARROW_CODECS[self.compression]
        join = partial(concatenate_arrow, compression=codec, storage_options=self.storage_options)
        return _joined(pieces, found, path, self.extension, join)


def chosen(batch: DocumentBatch, fields: Sequence[str] | None) -> pa.Table:
    """The columns to write, without metadata of other libraries."""
    names = None if fields is None else [name for name in fields if batch.columns.has(name)]
    return batch.columns.table(names).replace_schema_metadata(None)


def _names(table: pa.Table) -> list[str]:
    return list(table.column_names)


def _schema(table: pa.Table) -> pa.Schema:
    return table.schema


def _joined(pieces: Sequence[WrittenFile], keys: Sequence[Any], path: str, ending: str, join: Any) -> list[WrittenFile]:
    """Adjacent pieces with the same key share a file, as if they had been appended one after another."""
    done: list[WrittenFile] = []
    numbers = [0]
    for before, after in pairwise(keys):
        numbers.append(numbers[-1] + (before != after))
    for number, group in groupby(zip(numbers, pieces, strict=True), key=lambda pair: pair[0]):
        done.append(join([piece for _, piece in group], numbered(path, number, ending)))
    return done
