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
from gristmill.storage.table_sinks import TablePart, numbered
from gristmill.tasks.columns import RecordColumns
from gristmill.tasks.document import DocumentBatch


def _key(table: pa.Table) -> tuple[Any, ...]:
    schema = table.schema
    return schema, schema.metadata, [field.metadata for field in schema]


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
        return TablePart(path, self.extension, _key, self._sink)

    def _sink(self, path: str, table: pa.Table) -> ParquetSink:
        options = self.storage_options
        return ParquetSink(path, schema=table.schema, compression=self.compression, storage_options=options)

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
            done.append(
                concatenate_parquet(
                    members, numbered(path, number, self.extension), storage_options=self.storage_options
                )
            )
        return done
