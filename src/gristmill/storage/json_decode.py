"""Arrow arrays and Python values from the spans of raw JSON values; the rules of what becomes which type."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Collection
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json

from gristmill.kernels import json_scan, json_values, json_write
from gristmill.kernels.json_values import ESCAPED, FALSE, FLOAT, INTEGER, MISSING, NULL, STRING, TRUE
from gristmill.kernels.machine import WIDTH
from gristmill.storage.json_encode import Texts, address_of, are_json, string_parts

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_EXACT_FLOAT_DIGITS = 15
_MAX_LEVELS = 64  # Of a nested Arrow type; what is deeper stays JSON.
_LONG_INTEGER = re.compile(rb"[0-9]{16}")
_SPACE_AFTER_NULL = re.compile(rb"null[ \t\r\n]+[,\]}]")
_LARGE_EXPONENT = re.compile(rb"[0-9][eE]\+?[0-9]{3}")


class Field(NamedTuple):
    """Where the values of one key lie in a buffer, and what they are."""

    starts: Integers
    ends: Integers
    kinds: Bytes


class Column(NamedTuple):
    """The values of one key, decoded or (`is_json`) as their JSON texts."""

    array: pa.Array
    is_json: bool


def decode_column(buffer: Bytes, field: Field) -> Column:
    """The values by the rules that `JsonRecords.column` describes."""
    present = np.flatnonzero(np.bincount(field.kinds, minlength=10))
    kinds = {int(kind) for kind in present} - {MISSING, NULL}
    valid = None if int(present.min(initial=NULL + 1)) > NULL else field.kinds > NULL
    if not kinds:
        return Column(pa.nulls(len(field.kinds)), False)
    if kinds <= {STRING, ESCAPED}:
        return Column(_strings(buffer, field, valid), False)
    if kinds <= {TRUE, FALSE}:
        return Column(pa.array(field.kinds == TRUE, mask=None if valid is None else ~valid), False)
    text = arrow_texts(pa.large_string(), buffer, field.starts, field.ends, valid)
    numbers = _numbers(text, field, kinds) if kinds <= {INTEGER, FLOAT} else None
    return Column(text, True) if numbers is None else Column(numbers, False)


def texts_of_json(values: pa.LargeStringArray) -> pa.LargeStringArray:
    """What JSON texts stand for, as texts: strings as they are, null as null, anything else as its JSON.

    Half of a surrogate pair is decoded as U+FFFD; what begins like a string and is no JSON stays as it is.
    """
    data, offsets, valid = string_parts(values)
    starts, ends = offsets[:-1], offsets[1:]
    quoted = np.zeros(len(values), bool)
    long = np.flatnonzero((ends - starts > 1) & (valid != 0) if len(valid) else ends - starts > 1)
    quoted[long] = (data[starts[long]] == ord('"')) & (data[ends[long] - 1] == ord('"'))
    backslashes = pc.fill_null(pc.match_substring(values, "\\"), False).to_numpy(zero_copy_only=False)
    escaped = np.flatnonzero(quoted & backslashes)
    quoted[escaped] = are_json(Texts(data, starts[escaped], (ends - starts)[escaped]))
    kinds = np.where(quoted, STRING, MISSING).astype(np.uint8)
    kinds[escaped[quoted[escaped]]] = ESCAPED
    strings = _strings(data, Field(starts, ends, kinds), None)
    # A string of these letters has quotes, so that it is not taken for null.
    others = pc.if_else(pc.equal(values, "null"), pa.scalar(None, pa.large_string()), values)
    return pc.if_else(pa.array(quoted), strings, others)


def _strings(buffer: Bytes, field: Field, valid: Flags | None) -> pa.Array:
    out = np.empty(int((field.ends - field.starts).sum()) + WIDTH, np.uint8)
    offsets = np.empty(len(field.kinds) + 1, np.int64)
    used = json_scan.decode_strings(
        address_of(buffer), len(buffer), field.starts, field.ends, field.kinds, out, offsets
    )
    return _arrow(pa.large_string(), offsets, out[:used], valid)


def _arrow(kind: pa.DataType, offsets: Integers, data: Bytes, valid: Flags | None) -> pa.Array:
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(offsets) - 1, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


def arrow_texts(kind: pa.DataType, buffer: Bytes, starts: Integers, ends: Integers, valid: Flags | None) -> pa.Array:
    """The bytes of the spans as a large_string or large_binary array; rows that are not valid become null."""
    if valid is not None:
        ends = np.where(valid, ends, starts)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    json_write.gather(address_of(buffer), starts, ends, -1, out)
    return _arrow(kind, offsets, out, valid)


def _numbers(text: pa.Array, field: Field, kinds: Collection[int]) -> pa.Array | None:
    """The numbers as int64 or float64, or None where one of them does not fit."""
    try:
        if FLOAT not in kinds:
            return text.cast(pa.int64())
        long = np.flatnonzero((field.kinds == INTEGER) & (field.ends - field.starts > _EXACT_FLOAT_DIGITS))
        if len(long):
            integers = text.take(pa.array(long)).cast(pa.int64())
            if pc.any(pc.or_(pc.greater_equal(integers, 2**53), pc.less_equal(integers, -(2**53)))).as_py():
                return None
    except pa.ArrowInvalid:
        return None
    try:
        floats = text.cast(pa.float64())
    except pa.ArrowInvalid:  # Arrow refuses what Python reads as infinite or zero.
        floats = pa.array([None if value is None else float(value) for value in text.to_pylist()], pa.float64())
    # A number beyond the largest float would come out as null, because JSON has no infinity.
    return None if pc.any(pc.is_inf(floats)).as_py() else floats


def arrow_nested(lines: Bytes) -> pa.Array | None:
    """The values under "v" as Arrow reads them, or None where it cannot or would change them."""
    # Arrow miscounts the items of a list in which white space follows a null.
    if _SPACE_AFTER_NULL.search(lines.tobytes()):
        return None
    read = ReadOptions(use_threads=False, block_size=len(lines) + 1)
    try:
        table = read_json(pa.BufferReader(lines), read)
        schema = pa.schema([(field.name, _without_times(field.type)) for field in table.schema])
        if schema != table.schema:
            table = read_json(pa.BufferReader(lines), read, ParseOptions(explicit_schema=schema))
        table.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowIndexError):
        return None
    if "double" in str(schema):
        text = lines.tobytes()
        # Arrow reads long integers beside floats as float64, which drops digits, and numbers beyond it as infinite.
        if _LONG_INTEGER.search(text) or _LARGE_EXPONENT.search(text):
            return None
    return table.column("v").combine_chunks()


def _without_times(kind: pa.DataType, level: int = 0) -> pa.DataType:
    """The same type with strings for the timestamps that Arrow guesses from strings."""
    if level > _MAX_LEVELS:
        raise pa.ArrowInvalid("nested too deeply for a column type")
    if pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise pa.ArrowInvalid("an object without members, which Parquet cannot store")
        return pa.struct([(field.name, _without_times(field.type, level + 1)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type, level + 1))
    return kind


def _integer(digits: str) -> int:
    # Python refuses to read integers of more than 4,300 digits from a string; a decimal has no such limit.
    return int(digits) if len(digits) < 4000 else int(Decimal(digits))


def python_list(text: bytes) -> list[Any]:
    """What Python's `json` reads from the text of an array, however long an integer, however deep the nesting."""
    try:
        values: list[Any] = json.loads(text)
    except RecursionError:
        # Python 3.11 counts levels of JSON as calls; the scan has bounded them, so the machine's stack is safe.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 2 * json_values.MAX_DEPTH)
        try:
            values = json.loads(text, parse_int=_integer)
        finally:
            sys.setrecursionlimit(limit)
    except ValueError:
        values = json.loads(text, parse_int=_integer)
    return values
