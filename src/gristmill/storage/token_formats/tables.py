"""Arrow and Parquet: a row per sequence, its tokens as a list in the column `input_ids`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.storage.atomic import WrittenFile
from gristmill.storage.files import StorageOptions
from gristmill.storage.parquet_sink import ParquetSink
from gristmill.storage.table_sinks import ArrowSink
from gristmill.storage.token_formats.shard import Integers, Tokens

INPUT_IDS = "input_ids"
_GROUP_TOKENS = 1 << 20
"""Tokens per row group or record batch: files are cut at the same rows, however they were batched."""


class TableShard:
    """A table of sequences under construction.

    Args:
        path: Path of the file; its extension decides between Parquet and Arrow.
        dtype: Type of a token.
        compression: `zstd` and others; None for none.
        storage_options: File system options for URLs.
    """

    def __init__(
        self, path: str, dtype: npt.DTypeLike, *, compression: str | None, storage_options: StorageOptions = None
    ) -> None:
        self._path = path
        self._dtype = np.dtype(dtype)
        self._compression = compression
        self._storage_options = storage_options
        self._waiting: list[pa.Table] = []
        self._tokens = 0
        self._sink: ParquetSink | ArrowSink | None = None

    def append(self, ids: Tokens, lengths: Integers, extra: pa.Table | None) -> None:
        """Add sequences."""
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(ids, self._dtype)))
        table = pa.table({INPUT_IDS: lists})
        if extra is not None:
            for name in extra.column_names:
                table = table.append_column(extra.schema.field(name), extra.column(name))
        start = 0
        while start < len(lengths):
            # The rows up to the one with which the group is full.
            room = _GROUP_TOKENS - self._tokens
            end = int(np.searchsorted(offsets[start + 1 :] - offsets[start], room)) + 1 + start
            end = min(end, len(lengths))
            self._waiting.append(table.slice(start, end - start))
            self._tokens += int(offsets[end] - offsets[start])
            start = end
            if self._tokens >= _GROUP_TOKENS:
                self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).combine_chunks()
        self._waiting, self._tokens = [], 0
        self._open(table.schema).append(table)

    def _open(self, schema: pa.Schema) -> ParquetSink | ArrowSink:
        if self._sink is None:
            if self._path.endswith(".parquet"):
                self._sink = ParquetSink(
                    self._path, schema=schema, compression=self._compression, storage_options=self._storage_options
                )
            else:
                self._sink = ArrowSink(self._path, schema, self._compression, storage_options=self._storage_options)
        return self._sink

    def close(self, rows: int, bounds: tuple[Integers, Integers]) -> list[WrittenFile]:
        """Finish the file."""
        self._flush()
        schema = pa.schema([pa.field(INPUT_IDS, pa.large_list(pa.from_numpy_dtype(self._dtype)))])
        written = self._open(schema).close()
        return [WrittenFile(written.path, written.size, rows, written.hash)]

    def abort(self) -> None:
        """Discard the rows."""
        if self._sink is not None:
            self._sink.abort()
