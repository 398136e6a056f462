"""Writing Parquet parts: one row group per append, with fixed settings, so that equal tables produce equal bytes.

Parts are joined without decoding them: row groups are copied, and only the footer is rewritten. The footer is a Thrift
struct in compact encoding. It is read into plain lists, its byte positions are shifted, and it is encoded again; fields
that this module does not know are kept unchanged. Field numbers are those of parquet.thrift of the Apache Parquet
format specification.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from gristmill.errors import InputError, UsageError, did_you_mean
from gristmill.storage.atomic import AtomicFile, WrittenFile, output_errors
from gristmill.storage.compression import open_raw
from gristmill.storage.files import StorageOptions

# On text, zstd at level 1 needs a third less space than snappy, writes at four fifths of its speed and reads faster;
# level 3 would save another tenth for nearly twice the time. Checksums of pages let a reader tell damage from data.
DEFAULT_COMPRESSION = "zstd"
_COMPRESSIONS = ("zstd", "snappy", "gzip", "lz4", "brotli", "none")
_SPELLINGS = {"zst": "zstd", "gz": "gzip", "uncompressed": "none"}
_LEVELS = {"zstd": 1}
_TAIL_BYTES = 64 * 1024

_MAGIC = b"PAR1"
# Types of Thrift's compact encoding that a footer may hold.
_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _STRUCT = (*range(1, 10), 12)

# A struct is a list of [field number, type, value]; a list is (element type, values).
_Struct = list[list[Any]]

_FILE_ROWS, _FILE_ROW_GROUPS = 3, 4
_GROUP_COLUMNS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_OFFSET, _CHUNK_META = 2, 3
_CHUNK_INDEX_FIELDS = (4, 5, 6, 7)
_META_OFFSETS = (9, 10, 11)
_META_BLOOM_OFFSET = 14


class ParquetSink:
    """A Parquet file under construction.

    Args:
        path: Final path.
        schema: Schema of every table; defaults to that of the first. Required for a file without rows.
        compression: "zstd" (default), "snappy", "gzip", "lz4", "brotli" or None.
        token: Token of this run, for the temporary file.
        fsync: Wait until the file is on disk.
        storage_options: File system options for URLs.
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
        self._file = AtomicFile(path, token=token, fsync=fsync, storage_options=storage_options)
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
        # Page borders follow chunk borders, so equal tables in different chunks would produce different bytes.
        if any(column.num_chunks > 1 for column in data.columns):
            data = data.combine_chunks()
        with output_errors(self._file.path):
            self._open().write_table(data, row_group_size=data.num_rows)
        self._rows += data.num_rows

    def finish(self) -> None:
        """Complete the file without publishing it yet."""
        with output_errors(self._file.path):
            self._open().close()
        self._file.finish()

    def close(self) -> WrittenFile:
        """Publish the file; without rows it still has its schema."""
        self.finish()
        return self._file.publish(rows=self._rows)

    def abort(self) -> None:
        """Discard what was appended."""
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
    """Arrow's name for `compression`.

    Raises:
        UsageError: Parquet does not support it.
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
    """Join files; the result has the same bytes as appending all row groups directly to one file.

    Row groups are copied as they are stored; nothing is decoded.

    Args:
        pieces: Files from `ParquetSink` with the same schema and compression; at least one.
        path: Path of the result; the pieces are kept.
        token: As for `ParquetSink`.
        fsync: As for `ParquetSink`.
        storage_options: File system options for URLs.
    """
    if not pieces:
        raise UsageError("concatenate_parquet needs at least one piece: it takes the schema from there.", path=path)
    target = AtomicFile(path, token=token, fsync=fsync, storage_options=storage_options)
    try:
        target.write(_MAGIC)
        footers, moves = [], []
        for piece in pieces:
            with open_raw(piece.path, storage_options=storage_options) as source:
                length, footer = _split_footer(_tail(source, piece.size), path=piece.path)
                source.seek(len(_MAGIC))
                moves.append(target.size - len(_MAGIC))
                footers.append(footer)
                expected = target.size + piece.size - length - len(_MAGIC)
                target.copy(source, piece.size - length - len(_MAGIC))
                if target.size != expected:
                    raise InputError(
                        f"{piece.path!r} has been truncated since it was written. Write it again.", path=piece.path
                    )
        target.write(_joined_footer(footers, moves, paths=[piece.path for piece in pieces]))
        return target.publish(rows=sum(piece.rows for piece in pieces))
    except BaseException:
        target.discard()
        raise


def _tail(source: Any, size: int) -> bytes:
    """The last bytes of `source`, including the whole footer."""
    count = min(size, _TAIL_BYTES)
    source.seek(size - count)
    tail = bytes(source.read(count))
    needed = int.from_bytes(tail[-8:-4], "little") + 8
    if needed > count and needed <= size:
        source.seek(size - needed)
        tail = bytes(source.read(needed))
    return tail


# Footers ---------------------------------------------------------------------------------------------------------


def _split_footer(tail: bytes, *, path: str) -> tuple[int, _Struct]:
    """The length of the footer with its frame, and its content, from the last bytes of a file.

    Args:
        tail: At least the footer, its length and the magic number.
        path: Path for error messages.
    """
    if len(tail) < 8 or tail[-4:] != _MAGIC:
        raise InputError(
            f"{path!r} is not a complete Parquet file (it does not end with PAR1). Write it again.", path=path
        )
    length = int.from_bytes(tail[-8:-4], "little")
    if len(tail) < length + 8:
        raise InputError(
            f"The footer of {path!r} claims {length} bytes, more than the file has. Write it again.", path=path
        )
    return length + 8, _Decoder(tail[-8 - length : -8]).struct()


def _joined_footer(footers: Sequence[_Struct], moves: Sequence[int], *, paths: Sequence[str]) -> bytes:
    """The footer, with its length and magic number, of a file with the row groups of several files.

    Args:
        footers: One per file; all must agree in everything but rows and row groups.
        moves: Number of bytes by which each file's row groups are shifted in the joined file.
        paths: Paths for error messages.
    """
    joined = [list(item) for item in footers[0]]
    rows = 0
    groups: list[_Struct] = []
    for footer, move, path in zip(footers, moves, paths, strict=True):
        if _unchanging(footer) != _unchanging(joined):
            raise InputError(
                f"{paths[0]!r} and {path!r} differ in schema, metadata or writer and cannot be joined. "
                "Write both with one version and one schema.",
                path=path,
            )
        rows += _get(footer, _FILE_ROWS)
        for group in _get(footer, _FILE_ROW_GROUPS)[1]:
            _move(group, move, ordinal=len(groups), path=path)
            groups.append(group)
    _set(joined, _FILE_ROWS, rows)
    _set(joined, _FILE_ROW_GROUPS, (_STRUCT, groups))
    encoded = bytearray()
    _encode_struct(encoded, joined)
    return bytes(encoded) + len(encoded).to_bytes(4, "little") + _MAGIC


def _unchanging(footer: _Struct) -> _Struct:
    return [item for item in footer if item[0] not in (_FILE_ROWS, _FILE_ROW_GROUPS)]


def _move(group: _Struct, move: int, *, ordinal: int, path: str) -> None:
    _shift(group, _GROUP_OFFSET, move)
    if _get(group, _GROUP_ORDINAL) is not None:
        _set(group, _GROUP_ORDINAL, ordinal)
    for chunk in _get(group, _GROUP_COLUMNS)[1]:
        meta = _get(chunk, _CHUNK_META)
        if (
            any(_get(chunk, number) is not None for number in _CHUNK_INDEX_FIELDS)
            or _get(meta, _META_BLOOM_OFFSET) is not None
        ):
            raise InputError(
                f"{path!r} has page indexes or bloom filters, which cannot be joined by copying.", path=path
            )
        _shift(chunk, _CHUNK_OFFSET, move)
        for number in _META_OFFSETS:
            _shift(meta, number, move)


def _get(fields: _Struct, number: int) -> Any:
    return next((item[2] for item in fields if item[0] == number), None)


def _set(fields: _Struct, number: int, value: Any) -> None:
    for item in fields:
        if item[0] == number:
            item[2] = value


def _shift(fields: _Struct, number: int, move: int) -> None:
    value = _get(fields, number)
    if value:  # 0 means "not set": no data starts at the magic number
        _set(fields, number, value + move)


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> _Struct:
        fields: _Struct = []
        number = 0
        while head := self._byte():
            kind = head & 15
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields.append([number, kind, kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind)])
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind == _BINARY:
            return self._take(self._unsigned())
        if kind == _STRUCT:
            return self.struct()
        if kind == _LIST:
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            return head & 15, [self._value(head & 15) for _ in range(count)]
        if kind in (_TRUE, _FALSE, _I8):
            return self._byte()
        if kind == _DOUBLE:
            return self._take(8)
        raise InputError(f"The footer holds the unknown Thrift type {kind}.")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def _unsigned(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)


def _encode_struct(out: bytearray, fields: _Struct) -> None:
    before = 0
    for number, kind, value in fields:
        shown = (_TRUE if value else _FALSE) if kind in (_TRUE, _FALSE) else kind
        if 0 < number - before < 16:
            out.append((number - before) << 4 | shown)
        else:
            out.append(shown)
            _encode_signed(out, number)
        before = number
        if kind not in (_TRUE, _FALSE):
            _encode(out, kind, value)
    out.append(0)


def _encode(out: bytearray, kind: int, value: Any) -> None:
    if kind in (_I16, _I32, _I64):
        _encode_signed(out, value)
    elif kind == _BINARY:
        _encode_unsigned(out, len(value))
        out += value
    elif kind == _STRUCT:
        _encode_struct(out, value)
    elif kind == _LIST:
        element, values = value
        if len(values) < 15:
            out.append(len(values) << 4 | element)
        else:
            out.append(0xF0 | element)
            _encode_unsigned(out, len(values))
        for item in values:
            _encode(out, element, item)
    elif kind == _DOUBLE:
        out += value
    else:
        out.append(value)


def _encode_unsigned(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _encode_signed(out: bytearray, value: int) -> None:
    _encode_unsigned(out, (value << 1) ^ (value >> 63))
