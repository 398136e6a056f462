"""Joining Parquet files without decoding them: row groups are copied, only the footer is written anew.

The footer is a Thrift struct in compact encoding. It is read into plain lists, the byte positions in it are moved, and
it is encoded again; whatever this module does not know passes through unchanged. Field numbers are those of
parquet.thrift of the Apache Parquet format specification.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from gristmill.errors import InputError

MAGIC = b"PAR1"

_TRUE, _FALSE, _I8, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)

# A struct is a list of [field number, type, value]; a list is (element type, values).
Struct = list[list[Any]]

_FILE_ROWS, _FILE_ROW_GROUPS = 3, 4
_GROUP_COLUMNS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_OFFSET, _CHUNK_META = 2, 3
_CHUNK_INDEX_FIELDS = (4, 5, 6, 7)
_META_OFFSETS = (9, 10, 11)
_META_BLOOM_OFFSET = 14


def split_footer(tail: bytes, *, path: str) -> tuple[int, Struct]:
    """The length of the footer with its frame, and its content, from the last bytes of a file.

    Args:
        tail: At least the footer, its length and the magic number.
        path: Named in errors.
    """
    if len(tail) < 8 or tail[-4:] != MAGIC:
        raise InputError(
            f"{path!r} is not a complete Parquet file (it does not end with PAR1). Write it again.", path=path
        )
    length = int.from_bytes(tail[-8:-4], "little")
    if len(tail) < length + 8:
        raise InputError(
            f"The footer of {path!r} claims {length} bytes, more than there are. Write it again.", path=path
        )
    return length + 8, _Decoder(tail[-8 - length : -8]).struct()


def joined_footer(footers: Sequence[Struct], moves: Sequence[int], *, paths: Sequence[str]) -> bytes:
    """The footer, with its length and magic number, of a file made of the row groups of several.

    Args:
        footers: One per file; all must agree in everything but rows and row groups.
        moves: How many bytes further back each file's row groups lie in the joined file.
        paths: Named in errors.
    """
    joined = [list(item) for item in footers[0]]
    rows = 0
    groups: list[Struct] = []
    for footer, move, path in zip(footers, moves, paths, strict=True):
        if _unchanging(footer) != _unchanging(joined):
            raise InputError(
                f"{paths[0]!r} and {path!r} differ in schema, metadata or writer and can't be joined. "
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
    return bytes(encoded) + len(encoded).to_bytes(4, "little") + MAGIC


def _unchanging(footer: Struct) -> Struct:
    return [item for item in footer if item[0] not in (_FILE_ROWS, _FILE_ROW_GROUPS)]


def _move(group: Struct, move: int, *, ordinal: int, path: str) -> None:
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
                f"{path!r} has page indexes or bloom filters, which can't be joined by copying.", path=path
            )
        _shift(chunk, _CHUNK_OFFSET, move)
        for number in _META_OFFSETS:
            _shift(meta, number, move)


def _get(fields: Struct, number: int) -> Any:
    return next((item[2] for item in fields if item[0] == number), None)


def _set(fields: Struct, number: int, value: Any) -> None:
    for item in fields:
        if item[0] == number:
            item[2] = value


def _shift(fields: Struct, number: int, move: int) -> None:
    value = _get(fields, number)
    if value:  # 0 means "not given": no data lies on the magic number
        _set(fields, number, value + move)


class _Decoder:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self) -> Struct:
        fields: Struct = []
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
        if kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            return head & 15, [self._value(head & 15) for _ in range(count)]
        if kind in (_TRUE, _FALSE, _I8):
            return self._byte()
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _MAP:
            count = self._unsigned()
            kinds = self._byte() if count else 0
            return kinds, [(self._value(kinds >> 4), self._value(kinds & 15)) for _ in range(count)]
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


def _encode_struct(out: bytearray, fields: Struct) -> None:
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
    elif kind in (_LIST, _SET):
        element, values = value
        if len(values) < 15:
            out.append(len(values) << 4 | element)
        else:
            out.append(0xF0 | element)
            _encode_unsigned(out, len(values))
        for item in values:
            _encode(out, element, item)
    elif kind == _MAP:
        kinds, pairs = value
        _encode_unsigned(out, len(pairs))
        if pairs:
            out.append(kinds)
        for key, item in pairs:
            _encode(out, kinds >> 4, key)
            _encode(out, kinds & 15, item)
    elif kind == _DOUBLE:
        out += value
    else:
        out += struct.pack("B", value)


def _encode_unsigned(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)


def _encode_signed(out: bytearray, value: int) -> None:
    _encode_unsigned(out, (value << 1) ^ (value >> 63))
