"""JSON texts of Arrow values, column by column, and whole tables as JSON lines.

Every value is written so that reading it gives the same value: integers and decimals digit by digit, floats by their
shortest form, temporal values as ISO 8601, binary as base64. Strings, objects and lists are put together by compiled
kernels; nothing here runs once per row except base64.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import UsageError
from gristmill.kernels import json_scan, json_values, json_write

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]

NO_BYTES: Bytes = np.empty(0, np.uint8)


class Texts(NamedTuple):
    """One JSON text per row: spans of `data`."""

    data: Bytes
    starts: Integers
    lengths: Integers

    @property
    def addresses(self) -> Integers:
        """Where each text lies in memory, as long as this object lives."""
        return self.starts + address_of(self.data)


def address_of(data: np.ndarray[Any, Any]) -> int:
    """The address of an array's first element."""
    return int(data.__array_interface__["data"][0])


def packed_names(names: Sequence[str]) -> tuple[Bytes, Integers]:
    """The UTF-8 of the names one after the other, and their offsets."""
    return _packed([name.encode("utf-8", "surrogatepass") for name in names])


def key_texts(names: Sequence[str]) -> tuple[Bytes, Integers]:
    """`"name":` for every name, one after the other, and their offsets."""
    return _packed([json.dumps(name, ensure_ascii=False).encode() + b":" for name in names])


def _packed(pieces: Sequence[bytes]) -> tuple[Bytes, Integers]:
    offsets = np.zeros(len(pieces) + 1, np.int64)
    np.cumsum([len(piece) for piece in pieces], out=offsets[1:])
    return np.frombuffer(b"".join(pieces), np.uint8).copy(), offsets


def string_parts(array: pa.Array) -> tuple[Bytes, Integers, Bytes]:
    """Bytes, offsets and validity (empty when all rows are valid) of a large_string or large_binary array."""
    _, offsets, data = array.buffers()
    rows = len(array)
    if rows == 0:
        return NO_BYTES, np.zeros(1, np.int64), NO_BYTES
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + rows + 1].copy()
    content = NO_BYTES if data is None else np.frombuffer(data, np.uint8)
    return content, bounds, validity(array)


def validity(array: pa.Array) -> Bytes:
    """One byte per row, zero where the value is null; empty when none is."""
    if array.null_count == 0:
        return NO_BYTES
    return np.ascontiguousarray(array.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)


def json_texts(array: pa.Array) -> Texts:
    """The JSON text of every value of an Arrow array.

    An array of Arrow's JSON extension type (`pa.json_()`) holds JSON texts already: they are checked and taken as they
    are. Maps become objects, dictionaries and run-end encoded arrays their values.
    """
    kind = array.type
    if isinstance(kind, pa.JsonType):
        return _checked_json(array.storage)
    if isinstance(kind, pa.BaseExtensionType):
        return json_texts(array.storage)
    if pa.types.is_dictionary(kind):
        return json_texts(array.dictionary_decode())
    if pa.types.is_run_end_encoded(kind):
        return json_texts(pc.run_end_decode(array))
    if pa.types.is_null(kind):
        return _constant(b"null", len(array))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return _quoted(array.cast(pa.large_string()))
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return _plain(array.cast(pa.large_string()))
    if pa.types.is_floating(kind):
        return _floats(array)
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return _quoted(_iso8601(array))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        encoded = [None if value is None else base64.b64encode(value) for value in array.to_pylist()]
        return _quoted(pa.array(encoded, pa.large_binary()).cast(pa.large_string()))
    if pa.types.is_binary_view(kind):
        return json_texts(array.cast(pa.large_binary()))
    if pa.types.is_struct(kind):
        return _objects(array)
    if pa.types.is_map(kind):
        return _maps(array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        offsets = np.asarray(array.offsets).astype(np.int64)
        return _joined(json_texts(array.values), offsets, validity(array), "[")
    if pa.types.is_fixed_size_list(kind):
        offsets = (np.arange(len(array) + 1, dtype=np.int64) + array.offset) * kind.list_size
        return _joined(json_texts(array.values), offsets, validity(array), "[")
    raise UsageError(
        f"A column of Arrow type {kind} cannot be written as JSON. Cast it to a string or a number in a stage before.",
        type=str(kind),
    )


def string_texts(array: pa.LargeStringArray) -> pa.LargeStringArray:
    """The JSON text of every string as an Arrow array; null stays null."""
    texts = _quoted(array)
    texts = texts if not array.null_count else texts._replace(lengths=np.where(validity(array), texts.lengths, 0))
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(texts.lengths, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    json_write.gather(address_of(texts.data), texts.starts, texts.starts + texts.lengths, -1, out)
    bitmap = None if not array.null_count else pa.py_buffer(np.packbits(validity(array), bitorder="little"))
    return pa.Array.from_buffers(pa.large_string(), len(array), [bitmap, pa.py_buffer(offsets), pa.py_buffer(out)])


def encode_table(columns: Mapping[str, pa.Array | pa.ChunkedArray]) -> Bytes:
    r"""JSON lines of columns of equal length, one compact object per row, as bytes.

    Example:
        >>> import pyarrow as pa
        >>> encode_table({"a": pa.array([1, None]), "b": pa.array(["x", "é"])}).tobytes().decode()
        '{"a":1,"b":"x"}\n{"a":null,"b":"é"}\n'
    """
    arrays = [column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns.values()]
    sizes = {name: len(array) for name, array in zip(columns, arrays, strict=True)}
    if len(set(sizes.values())) > 1:
        raise UsageError(f"All columns of a table need the same number of rows; found {sizes}.", sizes=sizes)
    if not arrays:
        return NO_BYTES
    texts = [json_texts(array) for array in arrays]
    return join_objects(texts, list(columns), len(arrays[0]), tail="\n").data


def join_objects(
    texts: Sequence[Texts], names: Sequence[str], rows: int, *, tail: str = "", valid: Bytes = NO_BYTES
) -> Texts:
    """`{"name":text,…}` for every row, followed by `tail`; a text of length -1 leaves its member out."""
    return _members(texts, key_texts(names), rows, valid, brackets=("{", ",", "}", tail))


def _members(
    texts: Sequence[Texts], keys: tuple[Bytes, Integers], rows: int, valid: Bytes, *, brackets: Sequence[str]
) -> Texts:
    shape = (len(texts), rows)
    addresses, lengths = np.empty(shape, np.int64), np.empty(shape, np.int64)
    for column, text in enumerate(texts):
        addresses[column] = text.addresses
        lengths[column] = text.lengths
    key_bytes, key_offsets = keys
    marks = np.array([ord(mark) if mark else 0 for mark in brackets], np.uint8)
    room = int(np.maximum(lengths, 0).sum()) + rows * (len(key_bytes) + len(texts) + 5)
    out, offsets = np.empty(room, np.uint8), np.empty(rows + 1, np.int64)
    used = json_write.join_members(addresses, lengths, valid, key_bytes, key_offsets, marks, out, offsets)
    return Texts(out[:used], offsets[:-1], np.diff(offsets))


def _joined(items: Texts, offsets: Integers, valid: Bytes, opener: str) -> Texts:
    rows = len(offsets) - 1
    starts, ends = offsets[:-1], offsets[1:]
    totals = np.zeros(len(items.lengths) + 1, np.int64)
    np.cumsum(items.lengths, out=totals[1:])
    room = int((totals[ends] - totals[starts]).sum()) + int((ends - starts).sum()) + 4 * rows
    out, out_offsets = np.empty(room, np.uint8), np.empty(rows + 1, np.int64)
    used = json_write.join_items(items.addresses, items.lengths, starts, ends, valid, ord(opener), out, out_offsets)
    return Texts(out[:used], out_offsets[:-1], np.diff(out_offsets))


def _objects(array: pa.StructArray) -> Texts:
    kind = array.type
    texts = [json_texts(array.field(index)) for index in range(kind.num_fields)]
    names = [kind.field(index).name for index in range(kind.num_fields)]
    return join_objects(texts, names, len(array), valid=validity(array))


def _maps(array: pa.MapArray) -> Texts:
    keys, values = json_texts(array.keys), json_texts(array.items)
    if len(keys.lengths) and keys.data[keys.starts[0]] != ord('"'):
        keys = _quoted(
            pa.array([bytes(keys.data[s : s + n]) for s, n in zip(*keys[1:], strict=True)], pa.large_string())
        )
    entries = _members([keys, values], _packed([b"", b":"]), len(array.keys), NO_BYTES, brackets=("", "", "", ""))
    return _joined(entries, np.asarray(array.offsets).astype(np.int64), validity(array), "{")


def _constant(text: bytes, rows: int) -> Texts:
    return Texts(np.frombuffer(text, np.uint8), np.zeros(rows, np.int64), np.full(rows, len(text), np.int64))


def _quoted(array: pa.LargeStringArray) -> Texts:
    data, offsets, valid = string_parts(array)
    out, out_offsets = json_write.quote_strings(address_of(data), offsets, valid)
    return Texts(out, out_offsets[:-1], np.diff(out_offsets))


def _plain(array: pa.LargeStringArray) -> Texts:
    data, offsets, _ = string_parts(array.fill_null("null"))
    return Texts(data, offsets[:-1], np.diff(offsets))


def _floats(array: pa.Array) -> Texts:
    if not len(array):
        return _constant(b"null", 0)
    values = np.ascontiguousarray(array.to_numpy(zero_copy_only=False))  # Null becomes NaN, and NaN is written as null.
    data = np.frombuffer(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8)
    commas = np.flatnonzero(data == ord(","))
    starts = np.concatenate(([0], commas)) + 1
    return Texts(data, starts, np.append(commas, len(data) - 1) - starts)


def _iso8601(array: pa.Array) -> pa.LargeStringArray:
    kind = array.type
    if pa.types.is_timestamp(kind):
        naive = array.cast(pa.timestamp(kind.unit)) if kind.tz else array
        text = pc.replace_substring(naive.cast(pa.large_string()), " ", "T", max_replacements=1)
        return _around("", text, "Z") if kind.tz else text
    if pa.types.is_duration(kind):
        digits = {"s": 0, "ms": 3, "us": 6, "ns": 9}[kind.unit]
        text = array.cast(pa.int64()).cast(pa.decimal128(19, 0))
        if digits:
            text = pc.multiply(text, pa.scalar(Decimal(1).scaleb(-digits), pa.decimal128(digits + 1, digits)))
        text = text.cast(pa.large_string())
        return _around("PT", text, "S")
    return array.cast(pa.large_string())


def _around(prefix: str, text: pa.LargeStringArray, suffix: str) -> pa.LargeStringArray:
    before, after, nothing = (pa.scalar(piece, pa.large_string()) for piece in (prefix, suffix, ""))
    return pc.binary_join_element_wise(before, text, after, nothing)


def _checked_json(array: pa.Array) -> Texts:
    plain = _plain(pc.utf8_trim(array.cast(pa.large_string()), " \t\n\r"))
    wrong = np.flatnonzero(~are_json(plain))
    if len(wrong):
        row = int(wrong[0])
        text = array[row].as_py()[:80]
        raise UsageError(
            f"Row {row} of a column marked as JSON is not JSON: {text!r}. Give valid JSON texts, or strings without the"
            " mark.",
            row=row,
        )
    # A line end can only be white space here, and would split the line the text is written to.
    return plain._replace(data=np.where((plain.data == 10) | (plain.data == 13), np.uint8(32), plain.data))


def are_json(texts: Texts) -> npt.NDArray[np.bool_]:
    """Which of the texts are one valid JSON value of any kind, without white space around it."""
    objects = join_objects([texts], [""], len(texts.lengths))
    starts, ends = objects.starts, objects.starts + objects.lengths
    value_starts, value_ends, _, status, _ = json_scan.scan_records(
        address_of(objects.data), len(objects.data), starts, ends, [b""]
    )
    # A text such as `1,"":2` makes a valid object as well; then the value found is not the whole text.
    whole = (value_starts[0] == starts + len('{"":')) & (value_ends[0] == ends - 1)
    flags: npt.NDArray[np.bool_] = (status == json_values.GOOD) & whole
    return flags
