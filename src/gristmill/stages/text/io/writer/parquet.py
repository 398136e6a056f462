"""Writes Parquet with the types of the documents, and no index column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import pyarrow as pa

from gristmill.stages.source_sink import BaseWriter, Mode, PartFile
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.parquet_blocks import open_parquet
from gristmill.storage.parquet_sink import DEFAULT_COMPRESSION, ParquetSink, concatenate_parquet, known_compression
from gristmill.storage.schemas import JSONL_SOURCE, SOURCE_KEY
from gristmill.tasks.columns import RecordColumns
from gristmill.tasks.document import DocumentBatch


def _numbered(path: str, number: int) -> str:
    """Path of file number `number` of a partition; `~` does not occur in partition ids."""
    return path if number == 0 else f"{path.removesuffix('.parquet')}~{number}.parquet"


class _ParquetPart:
    """The Parquet output of one partition.

    A file has one schema, but JSONL records may differ: if a later batch has other columns or types, a new file begins.
    """

    def __init__(self, path: str, compression: str | None, storage_options: Mapping[str, Any] | None) -> None:
        self._path = path
        self._compression = compression
        self._storage_options = storage_options
        self._schema: pa.Schema | None = None
        self._sink: ParquetSink | None = None
        self._done: list[WrittenFile] = []

    def append(self, payload: pa.Table, /, *, rows: int | None = None) -> None:
        if self._sink is None or self._schema is None or not payload.schema.equals(self._schema, check_metadata=True):
            if self._sink is not None:
                self._done.append(self._sink.close())
            self._schema = payload.schema
            self._sink = ParquetSink(
                _numbered(self._path, len(self._done)),
                schema=self._schema,
                compression=self._compression,
                storage_options=self._storage_options,
            )
        self._sink.append(payload)

    def close(self) -> list[WrittenFile]:
        if self._sink is not None:
            self._done.append(self._sink.close())
            self._sink = None
        return self._done

    def abort(self) -> None:
        if self._sink is not None:
            self._sink.abort()


class ParquetWriter(BaseWriter):
    """Writes documents as Parquet.

    Example:
        >>> pipeline.add_stage(ParquetWriter(path="clean/", fields=["id", "text"]))
    """

    name = "parquet_writer"
    fork_safe = True
    endings = ("parquet",)
    file_extension = "parquet"
    not_called = (*BaseWriter.not_called, "write_data")
    extension = ".parquet"

    def __init__(
        self,
        path: str,
        write_kwargs: Mapping[str, Any] | None = None,
        fields: Sequence[str] | None = None,
        mode: Mode = "ignore",
        *,
        compression: str | None = DEFAULT_COMPRESSION,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, write_kwargs, fields, mode, compression=compression, storage_options=storage_options)
        known_compression(self.compression)

    def write_data(self, task: DocumentBatch, file_path: str) -> None:
        """Write one batch to `file_path`, outside of a run and without a record; for use in scripts."""
        self.write_alone(task, file_path)

    def encode(self, batch: DocumentBatch) -> pa.Table:
        names = None if self.fields is None else [name for name in self.fields if batch.columns.has(name)]
        table = batch.columns.table(names)
        metadata = {key: value for key, value in (table.schema.metadata or {}).items() if key != b"pandas"}
        if isinstance(batch.columns, RecordColumns):
            metadata[SOURCE_KEY] = JSONL_SOURCE
        return table.replace_schema_metadata(metadata or None)

    def open_part(self, path: str) -> PartFile:
        return _ParquetPart(path, self.compression, self.storage_options)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        schemas = []
        for piece in pieces:
            with open_parquet(piece.path, storage_options=self.storage_options) as opened:
                schemas.append(opened.schema_arrow)
        # Neighbours with the same schema share a file, as if they had been appended one after the other.
        numbers = [0]
        for before, after in pairwise(schemas):
            numbers.append(numbers[-1] + (not after.equals(before, check_metadata=True)))
        done = []
        for number, group in groupby(zip(numbers, pieces, strict=True), key=lambda pair: pair[0]):
            members = [piece for _, piece in group]
            done.append(concatenate_parquet(members, _numbered(path, number), storage_options=self.storage_options))
        return done
