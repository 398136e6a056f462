"""Columns of JSON: Arrow arrays from the spans of raw values, and JSON texts from Arrow arrays.

Every value is written so that reading it returns the same value: integers and decimals digit by digit, floats by their
shortest form, temporal values as ISO 8601, binary as base64. A compiled kernel quotes strings, orjson writes floats and
Arrow puts objects and lists together; nothing here runs once per row except base64.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json

from gristmill.errors import UsageError
from gristmill.kernels import json_scan, json_values, json_write
from gristmill.kernels.json_values import ESCAPED, FALSE, FLOAT, INTEGER, MISSING, NULL, STRING, TRUE
from gristmill.kernels.machine import BLOCK
from gristmill.storage.block_memory import room_for

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

NO_BYTES: Bytes = np.empty(0, np.uint8)

_EXACT_FLOAT_DIGITS = 15
_MAX_LEVELS = 64  # Of a nested Arrow type; what is deeper stays JSON.
_LONG_INTEGER = re.compile(rb"[0-9]{16}")
_SPACE_AFTER_NULL = re.compile(rb"null[ \t\r\n]+[,\]}]")
_LARGE_EXPONENT = re.compile(rb"[0-9][eE]\+?[0-9]{3}")


class Field(NamedTuple):
    """The positions of one key's values in a buffer, and their types."""

    starts: Integers
    ends: Integers
    kinds: Bytes


class Column(NamedTuple):
    """The values of one key, decoded or (`is_json`) as their JSON texts."""

    array: pa.Array
    is_json: bool


class Pieces(NamedTuple):
    """One text per row, by memory address and length; -1 if there is none.

    Attributes:
        owner: The object that keeps the memory alive.
    """

    owner: Any
    addresses: Integers
    lengths: Integers


def packed(pieces: Sequence[bytes]) -> tuple[Bytes, Integers]:
    """Concatenated pieces of bytes, and their offsets."""
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return np.frombuffer(b"".join(pieces), np.uint8).copy(), offsets


def string_parts(array: pa.Array) -> tuple[Bytes, Integers, Bytes]:
    """Bytes, offsets and validity (a byte per row, empty if all are valid) of a large_string or binary array."""
    _, offsets, data = array.buffers()
    rows = len(array)
    if rows == 0:
        return NO_BYTES, np.zeros(1, np.int64), NO_BYTES
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + rows + 1].copy()
    content = NO_BYTES if data is None else np.frombuffer(data, np.uint8)
    valid = NO_BYTES
    if array.null_count:
        valid = np.ascontiguousarray(array.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)
    return content, bounds, valid


def arrow_strings(kind: pa.DataType, offsets: Integers, data: Bytes, valid: Flags | None = None) -> pa.Array:
    """A large_string or large_binary array over bytes and offsets; invalid rows are null."""
    bitmap = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(offsets) - 1, [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)])


# Decoding --------------------------------------------------------------------------------------------------------


def decode_column(buffer: Bytes, field: Field) -> Column:
    """The values by the rules that `JsonRecords.column` describes."""
    present = np.flatnonzero(np.bincount(field.kinds, minlength=10))
    kinds = {int(kind) for kind in present} - {MISSING, NULL}
    valid = None if int(present.min(initial=NULL + 1)) > NULL else field.kinds > NULL
    if not kinds:
        return Column(pa.nulls(len(field.kinds)), False)
    if kinds <= {STRING, ESCAPED}:
        out = room_for(int((field.ends - field.starts).sum()) + BLOCK)
        offsets = np.empty(len(field.kinds) + 1, np.int64)
        spans = field.starts, field.ends, field.kinds
        used = json_scan.decode_strings(buffer.ctypes.data, len(buffer), *spans, out, offsets)
        return Column(arrow_strings(pa.large_string(), offsets, out[:used], valid), False)
    if kinds <= {TRUE, FALSE}:
        return Column(pa.array(field.kinds == TRUE, mask=None if valid is None else ~valid), False)
    text = arrow_texts(pa.large_string(), buffer, field.starts, field.ends, valid)
    numbers = _numbers(text, field, kinds) if kinds <= {INTEGER, FLOAT} else None
    return Column(text, True) if numbers is None else Column(numbers, False)


def texts_of_json(values: pa.LargeStringArray) -> pa.LargeStringArray:
    """The values of JSON texts as text: strings as they are, null as null, anything else as its JSON.

    Half of a surrogate pair is decoded as U+FFFD; text that begins like a string but is not JSON stays as it is.
    """
    data, offsets, valid = string_parts(values)
    starts, ends = offsets[:-1], offsets[1:]
    quoted = np.zeros(len(values), bool)
    long = np.flatnonzero((ends - starts > 1) & (valid != 0) if len(valid) else ends - starts > 1)
    quoted[long] = (data[starts[long]] == ord('"')) & (data[ends[long] - 1] == ord('"'))
    backslashes = pc.fill_null(pc.match_substring(values, "\\"), False).to_numpy(zero_copy_only=False)
    escaped = np.flatnonzero(quoted & backslashes)
    quoted[escaped] = are_json(values.take(pa.array(escaped)))
    kinds = np.where(quoted, STRING, MISSING).astype(np.uint8)
    kinds[escaped[quoted[escaped]]] = ESCAPED
    strings = decode_column(data, Field(starts, ends, kinds)).array.cast(pa.large_string())
    # A string of these letters has quotes, so that it is not taken for null.
    others = pc.if_else(pc.equal(values, "null"), pa.scalar(None, pa.large_string()), values)
    return pc.if_else(pa.array(quoted), strings, others)


def arrow_texts(kind: pa.DataType, buffer: Bytes, starts: Integers, ends: Integers, valid: Flags | None) -> pa.Array:
    """The bytes of the spans as a large_string or large_binary array; invalid rows become null."""
    if valid is not None:
        ends = np.where(valid, ends, starts)
    offsets = np.zeros(len(starts) + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    json_write.gather(buffer.ctypes.data, starts, ends, -1, out)
    return arrow_strings(kind, offsets, out, valid)


def _numbers(text: pa.Array, field: Field, kinds: Collection[int]) -> pa.Array | None:
    """The numbers as int64 or float64; None if one of them does not fit."""
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
    # A number beyond the largest float would become null, because JSON has no infinity.
    return None if pc.any(pc.is_inf(floats)).as_py() else floats


def arrow_nested(lines: Bytes) -> pa.Array | None:
    """The values under "v" as Arrow reads them; None if it cannot, or would change them."""
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
    """The result of Python's `json` for the text of an array, for integers of any length and nesting of any depth."""
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


# Encoding --------------------------------------------------------------------------------------------------------


def json_texts(array: pa.Array) -> pa.LargeStringArray:
    """The JSON text of every value of an Arrow array; that of null is `null`.

    An array of Arrow's JSON extension type (`pa.json_()`) already holds JSON texts: they are checked and used
    unchanged. Maps become objects, dictionaries and run-end encoded arrays their values.
    """
    kind, types = array.type, pa.types
    if isinstance(kind, pa.JsonType):
        texts = _checked_json(array.storage)
    elif isinstance(kind, pa.BaseExtensionType):
        texts = json_texts(array.storage)
    elif types.is_dictionary(kind):
        texts = json_texts(array.dictionary_decode())
    elif types.is_run_end_encoded(kind):
        texts = json_texts(pc.run_end_decode(array))
    elif types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        texts = _quoted(array.cast(pa.large_string()))
    elif types.is_null(kind) or types.is_boolean(kind) or types.is_integer(kind) or types.is_decimal(kind):
        texts = array.cast(pa.large_string())
    elif types.is_floating(kind):
        texts = _floats(array)
    elif types.is_temporal(kind) and not types.is_interval(kind):
        texts = _quoted(_iso8601(array))
    elif types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        encoded = [None if value is None else base64.b64encode(value) for value in array.to_pylist()]
        texts = _quoted(pa.array(encoded, pa.large_binary()).cast(pa.large_string()))
    elif types.is_binary_view(kind):
        texts = json_texts(array.cast(pa.large_binary()))
    elif types.is_struct(kind):
        members = [pieces_of(json_texts(array.field(index))) for index in range(kind.num_fields)]
        names = [kind.field(index).name for index in range(kind.num_fields)]
        texts = join_objects(members, names, len(array))
    elif types.is_map(kind):
        keys = json_texts(array.keys)
        if len(keys) and not keys[0].as_py().startswith('"'):
            keys = _quoted(keys)
        texts = _lists(array, _joined(keys, ":", json_texts(array.items)), "{}")
    elif types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        texts = _lists(array, json_texts(array.values), "[]")
    else:
        raise UsageError(
            f"A column of Arrow type {kind} cannot be written as JSON. Cast it to a string or a number in an earlier "
            "stage.",
            type=str(kind),
        )
    if array.null_count and types.is_nested(kind):
        texts = pc.if_else(array.is_valid(), texts, _scalar(None))
    return texts.fill_null("null")


def string_texts(array: pa.LargeStringArray) -> pa.LargeStringArray:
    """The JSON text of every string as an Arrow array; null stays null."""
    return pc.if_else(array.is_valid(), _quoted(array), _scalar(None))


def encode_table(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> Bytes:
    r"""JSON lines of columns of equal length, one compact object per row, as bytes.

    Example:
        >>> import pyarrow as pa
        >>> encode_table({"a": pa.array([1, None]), "b": pa.array(["x", "é"])}).tobytes().decode()
        '{"a":1,"b":"x"}\n{"a":null,"b":"é"}\n'
    """
    arrays = []
    for column in columns.values():
        if isinstance(column, pa.ChunkedArray):
            if column.num_chunks > 1 and pa.types.is_string(column.type):
                column = column.cast(pa.large_string())  # together they may have more bytes than 32 bits can count
            column = column.combine_chunks()
        arrays.append(column)
    sizes = {name: len(array) for name, array in zip(columns, arrays, strict=True)}
    if len(set(sizes.values())) > 1:
        raise UsageError(f"All columns of a table need the same number of rows; found {sizes}.", sizes=sizes)
    if not arrays:
        return NO_BYTES
    return lines_of([pieces_of(json_texts(array)) for array in arrays], list(columns), len(arrays[0]))


def pieces_of(texts: pa.LargeStringArray) -> Pieces:
    """The texts of an Arrow array; nulls are omitted."""
    data, offsets, valid = string_parts(texts)
    lengths = np.diff(offsets)
    return Pieces(texts, offsets[:-1] + data.ctypes.data, np.where(valid, lengths, -1) if len(valid) else lengths)


def key_texts(names: Sequence[str]) -> tuple[Bytes, Integers]:
    """`"name":` for every name, concatenated, and their offsets."""
    return packed([json.dumps(name, ensure_ascii=False).encode() + b":" for name in names])


def join_objects(texts: Sequence[Pieces], names: Sequence[str], rows: int, *, tail: str = "") -> pa.LargeStringArray:
    """`{"name":text,…}` for every row, followed by `tail`; a missing text omits its member."""
    keys, key_offsets = key_texts(names)
    addresses, lengths = np.empty((len(texts), rows), np.int64), np.empty((len(texts), rows), np.int64)
    for place, text in enumerate(texts):
        addresses[place], lengths[place] = text.addresses, text.lengths
    room = int(np.maximum(lengths, 0).sum()) + rows * (len(keys) + len(texts) + 3)
    out, offsets = np.empty(room, np.uint8), np.zeros(rows + 1, np.int64)
    used = json_write.join_members(addresses, lengths, keys, key_offsets, ord(tail or "\0"), out, offsets)
    return arrow_strings(pa.large_string(), offsets, out[:used])


def lines_of(texts: Sequence[Pieces], names: Sequence[str], rows: int) -> Bytes:
    """The bytes of JSON lines built from the texts of their members."""
    data, offsets, _ = string_parts(join_objects(texts, names, rows, tail="\n"))
    return data[: offsets[-1]]


def are_json(texts: pa.LargeStringArray) -> Flags:
    """Which of the texts are a single valid JSON value of any type, without surrounding whitespace."""
    data, offsets, _ = string_parts(join_objects([pieces_of(texts)], [""], len(texts)))
    starts, ends = offsets[:-1].copy(), offsets[1:].copy()
    value_starts, value_ends, _, status, _ = json_scan.scan_records(data.ctypes.data, len(data), starts, ends, [b""])
    # A text such as `1,"":2` makes a valid object as well; then the value found is not the whole text.
    whole = (value_starts[0] == starts + len('{"":')) & (value_ends[0] == ends - 1)
    flags: Flags = (status == json_values.GOOD) & whole
    return flags


def _scalar(text: str | None) -> pa.LargeStringScalar:
    return pa.scalar(text, pa.large_string())


def _joined(*pieces: pa.LargeStringArray | str) -> pa.LargeStringArray:
    """The concatenated pieces of every row (a text is the same for all rows); null if a piece is null."""
    arrays = [_scalar(piece) if isinstance(piece, str) else piece for piece in pieces]
    return pc.binary_join_element_wise(*arrays, _scalar(""))


def _lists(array: pa.Array, items: pa.LargeStringArray, brackets: str) -> pa.LargeStringArray:
    """The texts of items in brackets, for each row of the list or map array that holds them."""
    if pa.types.is_fixed_size_list(array.type):
        offsets = (np.arange(len(array) + 1, dtype=np.int64) + array.offset) * array.type.list_size
    else:
        offsets = np.asarray(array.offsets).astype(np.int64)
    lists = pa.LargeListArray.from_arrays(pa.array(offsets), items)
    return _joined(brackets[0], pc.binary_join(lists, _scalar(",")), brackets[1])


def _quoted(array: pa.LargeStringArray) -> pa.LargeStringArray:
    data, offsets, valid = string_parts(array)
    out, out_offsets = json_write.quote_strings(data.ctypes.data, offsets, valid)
    return arrow_strings(pa.large_string(), out_offsets, out)


def _floats(array: pa.Array) -> pa.LargeStringArray:
    if not len(array):
        return pa.array([], pa.large_string())
    values = np.ascontiguousarray(array.to_numpy(zero_copy_only=False))  # Null becomes NaN, and NaN is written as null.
    text = orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    commas = np.flatnonzero(np.frombuffer(text, np.uint8) == ord(","))
    offsets = np.concatenate(([0], commas - np.arange(len(commas)), [len(text) - len(commas)]))
    return arrow_strings(pa.large_string(), offsets, np.frombuffer(text.replace(b",", b""), np.uint8))


def _iso8601(array: pa.Array) -> pa.LargeStringArray:
    kind = array.type
    if pa.types.is_timestamp(kind):
        naive = array.cast(pa.timestamp(kind.unit)) if kind.tz else array
        text = pc.replace_substring(naive.cast(pa.large_string()), " ", "T", max_replacements=1)
        return _joined(text, "Z") if kind.tz else text
    if pa.types.is_duration(kind):
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        text = array.cast(pa.int64()).cast(pa.decimal128(19, 0))
        if digits:
            text = pc.multiply(text, pa.scalar(Decimal(1).scaleb(-digits), pa.decimal128(digits + 1, digits)))
        text = text.cast(pa.large_string())
        return _joined("PT", text, "S")
    return array.cast(pa.large_string())


def _checked_json(array: pa.Array) -> pa.LargeStringArray:
    texts = pc.utf8_trim(array.cast(pa.large_string()), " \t\n\r")
    wrong = np.flatnonzero(~are_json(texts.fill_null("null")))
    if len(wrong):
        row = int(wrong[0])
        text = array[row].as_py()[:80]
        raise UsageError(
            f"Row {row} of a column marked as JSON is not JSON: {text!r}. Use valid JSON, or strings without the mark.",
            row=row,
        )
    # A line end can only be white space here, and would split the line the text is written to.
    return pc.replace_substring_regex(texts, "[\n\r]", " ")
