"""Writing Parquet parts: one row group per append, with fixed settings, so that equal tables give equal bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.errors import InputError, UsageError, did_you_mean
from gristmill.storage.atomic import output_errors
from gristmill.storage.compression import open_raw
from gristmill.storage.parquet_footer import MAGIC, joined_footer, split_footer
from gristmill.storage.part_sink import HashedFile, WrittenFile, total_rows
from gristmill.storage.remote import StorageOptions

# On text, zstd at level 1 needs a third less space than snappy, writes at four fifths of its speed and reads faster;
# level 3 would save another tenth for nearly twice the time. Checksums of pages let a reader tell damage from data.
DEFAULT_COMPRESSION = "zstd"
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_SPELLINGS = {"zst": "zstd", "gz": "gzip", "uncompressed": "none"}
_LEVELS = {"zstd": 1}
_TAIL_BYTES = 64 * 1024


class ParquetSink:
    """A Parquet file under construction.

    Args:
        path: Where it will appear.
        schema: Of every table; by default that of the first. A file without rows needs it.
        compression: "zstd" (default), "snappy", "gzip", "lz4", "brotli" or None.
        token: Marks the temporary file of this run.
        fsync: Wait until the file is on the disk.
        storage_options: Handed to fsspec for URLs.
    """

    def __init__(
        self,
        path: str,
        *,
        schema: pa.Schema | None = None,
        compression: str | None = DEFAULT_COMPRESSION,
        token: str = "x",
        fsync: bool = False,
        storage_options: StorageOptions = None,
    ) -> None:
        self._compression = known_compression(compression)
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._file = HashedFile(path, token=token, fsync=fsync, storage_options=storage_options)
        self._rows = 0

    def append(self, data: pa.Table, /, *, rows: int | None = None) -> None:
        """Add `data` as one row group; a table without rows adds none."""
        if self._schema is None:
            self._schema = data.schema
        if not data.schema.equals(self._schema):
            raise UsageError(
                f"A table with the columns {_columns(data.schema)} was appended to a Parquet file with "
                f"{_columns(self._schema)}. Bring it to that schema first.",
                path=self._file.path,
            )
        if not data.num_rows:
            return
        # Page borders follow chunk borders, so equal tables in different chunks would give different bytes.
        if any(column.num_chunks > 1 for column in data.columns):
            data = data.combine_chunks()
        with output_errors(self._file.path):
            self._open().write_table(data, row_group_size=data.num_rows)
        self._rows += data.num_rows

    def finish(self) -> None:
        """Complete the file without making it appear yet."""
        with output_errors(self._file.path):
            self._open().close()
        self._file.finish()

    def close(self) -> WrittenFile:
        """Publish the file; without rows it still has its schema."""
        self.finish()
        return self._file.publish(rows=self._rows)

    def abort(self) -> None:
        """Throw away what was appended."""
        self._file.discard()
        if self._writer is not None:
            # Closed now, into nothing: its destructor would raise after a failed write.
            with contextlib.suppress(OSError, pa.ArrowException):
                self._writer.close()
            self._writer.is_open = False

    def _open(self) -> pq.ParquetWriter:
        if self._schema is None:
            raise UsageError(
                "A Parquet file without rows needs a schema. Pass schema= to ParquetSink.", path=self._file.path
            )
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                pa.PythonFile(self._file, mode="w"),
                self._schema,
                compression=self._compression,
                compression_level=_LEVELS.get(self._compression),
                version="2.6",
                data_page_version="1.0",
                use_dictionary=True,
                write_statistics=True,
                write_page_checksum=True,
                store_schema=True,
            )
        return self._writer


def known_compression(compression: str | None) -> str:
    """The name that Arrow has for `compression`.

    Raises:
        UsageError: Parquet does not know it.
    """
    name = "none" if compression is None else compression.lower()
    name = _SPELLINGS.get(name, name)
    if name not in _COMPRESSIONS:
        raise UsageError(
            f"compression={compression!r} is not known for Parquet.{did_you_mean(str(compression), _COMPRESSIONS)} "
            f"Use one of {', '.join(_COMPRESSIONS)}.",
            value=compression,
        )
    return name


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def concatenate_parquet(
    pieces: Sequence[WrittenFile],
    path: str,
    *,
    token: str = "x",
    fsync: bool = False,
    storage_options: StorageOptions = None,
) -> WrittenFile:
    """One file with the bytes that appending all row groups to it directly would have given.

    Row groups are copied as they are stored; nothing is decoded.

    Args:
        pieces: Files from `ParquetSink` with one schema and compression; at least one.
        path: Where the result appears; the pieces stay.
        token: As for `ParquetSink`.
        fsync: As for `ParquetSink`.
        storage_options: Handed to fsspec for URLs.
    """
    if not pieces:
        raise UsageError("concatenate_parquet needs at least one piece: it takes the schema from there.", path=path)
    target = HashedFile(path, token=token, fsync=fsync, storage_options=storage_options)
    try:
        target.write(MAGIC)
        footers, moves = [], []
        for piece in pieces:
            with open_raw(piece.path, storage_options=storage_options) as source:
                length, footer = split_footer(_tail(source, piece.size), path=piece.path)
                source.seek(len(MAGIC))
                moves.append(target.size - len(MAGIC))
                footers.append(footer)
                expected = target.size + piece.size - length - len(MAGIC)
                target.copy(source, piece.size - length - len(MAGIC))
                if target.size != expected:
                    raise InputError(
                        f"{piece.path!r} is shorter than it was when it was written. Write it again.", path=piece.path
                    )
        target.write(joined_footer(footers, moves, paths=[piece.path for piece in pieces]))
        return target.publish(rows=total_rows(pieces))
    except BaseException:
        target.discard()
        raise


def _tail(source: Any, size: int) -> bytes:
    """The last bytes of `source`, the whole footer among them."""
    count = min(size, _TAIL_BYTES)
    source.seek(size - count)
    tail = bytes(source.read(count))
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if needed > count and needed <= size:
        source.seek(size - needed)
        tail = bytes(source.read(needed))
    return tail
