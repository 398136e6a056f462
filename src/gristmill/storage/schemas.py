"""Merging the schemas of several files, and converting tables to the merged schema, without losing a value.

Columns that are missing from a file become nullable; types are widened only if every value stays exact. A column that
one file holds as JSON text (field metadata ``gristmill.type`` = ``json``) becomes JSON text everywhere. Files that were
written from JSONL (file metadata ``gristmill.source`` = ``jsonl``) had their types guessed batch by batch: if such
files contradict each other, the column becomes JSON text as well, because the values never had one type.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import SchemaConflictError

JSON_KEY = b"gristmill.type"
JSON_VALUE = b"json"
SOURCE_KEY = b"gristmill.source"
JSONL_SOURCE = b"jsonl"

Exact = Callable[[str, str], bool]
"""Returns whether all integers of a column of a file are exact as float64."""

_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_FLOATS = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
# The largest whole numbers, in bits, that a float of this width holds exactly.
_EXACT_BITS = {16: 11, 32: 24, 64: 53}
_TIME_UNITS = ("s", "ms", "us", "ns")


def is_json_field(field: pa.Field) -> bool:
    """Whether the column holds JSON text instead of plain strings."""
    return bool((field.metadata or {}).get(JSON_KEY) == JSON_VALUE)


def clean_schema(schema: pa.Schema) -> pa.Schema:
    """`schema` without technical details: field numbers of the file, the pandas index, and view types.

    An index that pandas stored as a column is kept as an ordinary column; a range index is not stored as one.
    """
    fields = []
    for field in schema:
        kept = {key: value for key, value in (field.metadata or {}).items() if key != b"PARQUET:field_id"}
        fields.append(field.with_metadata(kept or None).with_type(plain_type(field.type)))
    metadata = dict(schema.metadata or {})
    if b"pandas" in metadata:
        try:
            described = json.loads(metadata[b"pandas"])
            described["index_columns"] = []
            metadata[b"pandas"] = json.dumps(described).encode()
        except (ValueError, TypeError):
            del metadata[b"pandas"]
    return pa.schema(fields, metadata=metadata or None)


def plain_type(kind: pa.DataType, *, dictionaries: bool = False) -> pa.DataType:
    """`kind` without view types, which many of Arrow's functions do not support, or without `dictionaries` too."""
    if "_view" not in str(kind) and not (dictionaries and "dictionary<" in str(kind)):
        return kind
    plain, types = partial(plain_type, dictionaries=dictionaries), pa.types
    if types.is_dictionary(kind):
        return plain(kind.value_type)
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_map(kind):
        return pa.map_(plain(kind.key_type), plain(kind.item_type))
    if types.is_struct(kind):
        return pa.struct([field.with_type(plain(field.type)) for field in kind])
    if types.is_fixed_size_list(kind):
        return pa.list_(plain(kind.value_type), kind.list_size)
    return pa.large_list(plain(kind.value_type)) if hasattr(kind, "value_type") else kind


def plain_table(table: pa.Table, *, dictionaries: bool = False) -> pa.Table:
    """`table` with the types of `plain_type`."""
    for at, field in enumerate(table.schema):
        kind = plain_type(field.type, dictionaries=dictionaries)
        if not kind.equals(field.type):
            table = table.set_column(at, field.with_type(kind), _cast(table.column(at), kind))
    return table


def is_from_jsonl(schema: pa.Schema) -> bool:
    """Whether the file was written from records whose types were guessed."""
    return bool((schema.metadata or {}).get(SOURCE_KEY) == JSONL_SOURCE)


@dataclass(slots=True)
class _Column:
    """What is known about a column so far.

    Attributes:
        guessed: All files with the column were written from JSONL.
        kinds: The types found, each with the files that have it.
        doubtful: Integers were widened to float64, which must be checked.
    """

    field: pa.Field
    source: str
    seen: int
    guessed: bool
    kinds: dict[pa.DataType, list[str]]
    doubtful: bool = False


def merge_schemas(schemas: Iterable[tuple[str, pa.Schema]], *, exact: Exact | None = None) -> pa.Schema:
    """One schema for all of `schemas`, passed as (file, schema) in order.

    Columns are in order of first occurrence. File-level metadata is kept if all files agree.

    Args:
        schemas: The schemas.
        exact: Called if a column has 64-bit integers and floats, which are merged if it returns True for every file.

    Raises:
        SchemaConflictError: A column has incompatible types (the error names both files), or a file has duplicate
            column names.
    """
    columns: dict[str, _Column] = {}
    metadata: dict[bytes, bytes] | None = None
    total = 0
    previous: pa.Schema | None = None
    for source, raw in schemas:
        total += 1
        if previous is not None and raw.equals(previous, check_metadata=True):
            for field in raw:
                columns[field.name].seen += 1
                columns[field.name].kinds.setdefault(field.type, []).append(source)
            continue
        previous = raw
        schema = clean_schema(raw)
        _check_names(schema, source)
        here = dict(schema.metadata or {})
        metadata = here if metadata is None else {k: v for k, v in metadata.items() if here.get(k) == v}
        for field in schema:
            known = columns.get(field.name)
            if known is None:
                columns[field.name] = _Column(field, source, 1, is_from_jsonl(schema), {field.type: [source]})
            else:
                known.guessed = known.guessed and is_from_jsonl(schema)
                known.field = _merge_fields(known, field, source)
                known.kinds.setdefault(field.type, []).append(source)
                known.seen += 1
    for column in columns.values():
        if column.doubtful and not is_json_field(column.field):
            column.field = _proven(column, exact)
    fields = [column.field if column.seen == total else column.field.with_nullable(True) for column in columns.values()]
    return pa.schema(fields, metadata=metadata or None)


def _check_names(schema: pa.Schema, source: str) -> None:
    twice = next((name for name, times in Counter(schema.names).items() if times > 1), None)
    if twice is not None:
        first, second, *_ = (field.type for field in schema if field.name == twice)
        raise SchemaConflictError(
            f"{source!r} has several columns named {twice!r}, which is ambiguous. Rewrite the file with unique names.",
            column=twice,
            first_file=source,
            first_type=str(first),
            second_file=source,
            second_type=str(second),
        )


def _merge_fields(known: _Column, right: pa.Field, right_file: str) -> pa.Field:
    left = known.field
    if left.equals(right, check_metadata=True):
        return left
    nullable = left.nullable or right.nullable
    if is_json_field(left) or is_json_field(right):
        marked = left if is_json_field(left) else right
        both_text = pa.types.is_large_string(left.type) or pa.types.is_large_string(right.type)
        return marked.with_type(pa.large_string() if both_text else pa.string()).with_nullable(True)
    merged = merge_types(left.type, right.type)
    if merged is None:
        merged = merge_types(left.type, right.type, loosely=True)
        known.doubtful = known.doubtful or merged is not None
    if merged is not None:
        return left.with_type(merged).with_nullable(nullable)
    if known.guessed:
        return _as_json(left)
    raise _conflict(left.name, left.type, known.source, right.type, right_file)


def _as_json(field: pa.Field) -> pa.Field:
    return pa.field(field.name, pa.large_string(), True, {**(field.metadata or {}), JSON_KEY: JSON_VALUE})


def _conflict(name: str, left: pa.DataType, left_file: str, right: pa.DataType, right_file: str) -> SchemaConflictError:
    return SchemaConflictError(
        f"The column {name!r} is {left} in {left_file!r} and {right} in {right_file!r}, and no type "
        "holds both exactly. Rewrite one of the files, read them in separate runs, or set fields=[…] without it.",
        column=name,
        first_file=left_file,
        first_type=str(left),
        second_file=right_file,
        second_type=str(right),
    )


def _proven(column: _Column, exact: Exact | None) -> pa.Field:
    """The field of a column in which integers were widened to floats, after checking that all of them are exact."""
    name = column.field.name
    for kind, files in column.kinds.items():
        if not _has_long_integers(kind):
            continue
        doubted = next((file for file in files if exact is None or not exact(file, name)), None)
        if doubted is None:
            continue
        if column.guessed:
            return _as_json(column.field)
        other, others = next((k, v) for k, v in column.kinds.items() if merge_types(kind, k) is None)
        raise _conflict(name, kind, doubted, other, others[0])
    return column.field


def _has_long_integers(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_long_integers(kind.field(at).type) for at in range(kind.num_fields))
    return bool(pa.types.is_integer(kind) and kind.bit_width == 64)


def merge_types(left: pa.DataType, right: pa.DataType, *, loosely: bool = False) -> pa.DataType | None:
    """The narrowest type that holds every value of both exactly; None if there is none.

    `loosely` accepts float64 for 64-bit integers and floats, which is exact only up to 2^53.
    """
    if left.equals(right):
        return left
    types = pa.types
    if types.is_null(left):
        return right
    if types.is_null(right):
        return left
    if types.is_dictionary(left) and types.is_dictionary(right):
        value = merge_types(left.value_type, right.value_type, loosely=loosely)
        # Indices of the wider width: a dictionary of few values still fits.
        wide = max(left.index_type, right.index_type, key=lambda index: int(index.bit_width))
        return None if value is None else pa.dictionary(wide, value)
    if types.is_dictionary(left):
        return merge_types(left.value_type, right, loosely=loosely)
    if types.is_dictionary(right):
        return merge_types(left, right.value_type, loosely=loosely)
    if is_text(left) and is_text(right):
        return pa.large_string()
    if _is_bytes(left) and _is_bytes(right):
        return pa.large_binary()
    if types.is_integer(left) and types.is_integer(right):
        return _merge_integers(left, right)
    if types.is_floating(left) and types.is_floating(right):
        return _FLOATS[max(left.bit_width, right.bit_width)]
    if types.is_integer(left) and types.is_floating(right):
        return _merge_integer_float(left, right, loosely)
    if types.is_floating(left) and types.is_integer(right):
        return _merge_integer_float(right, left, loosely)
    if types.is_timestamp(left) and types.is_timestamp(right) and left.tz == right.tz:
        return pa.timestamp(max(left.unit, right.unit, key=_TIME_UNITS.index), left.tz)
    if types.is_decimal(left) and types.is_decimal(right):
        scale = max(left.scale, right.scale)
        digits = max(left.precision - left.scale, right.precision - right.scale) + scale
        return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale) if digits <= 76 else None
    if _is_list(left) and _is_list(right):
        item = merge_types(left.value_type, right.value_type, loosely=loosely)
        return None if item is None else pa.large_list(item)
    if types.is_struct(left) and types.is_struct(right):
        return _merge_structs(left, right, loosely)
    return None


def is_text(kind: pa.DataType) -> bool:
    """Whether values of the type are strings."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _merge_integers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    signed = pa.types.is_signed_integer(left), pa.types.is_signed_integer(right)
    wide = max(left.bit_width, right.bit_width)
    if signed[0] == signed[1]:
        return _SIGNED[wide] if signed[0] else _UNSIGNED[wide]
    unsigned_bits = right.bit_width if signed[0] else left.bit_width
    return _SIGNED.get(max(wide, unsigned_bits * 2))


def _merge_integer_float(integer: pa.DataType, floating: pa.DataType, loosely: bool) -> pa.DataType | None:
    if loosely and integer.bit_width == 64:
        return _FLOATS[64]
    bits = integer.bit_width - (1 if pa.types.is_signed_integer(integer) else 0)
    return next((_FLOATS[w] for w, exact in _EXACT_BITS.items() if w >= floating.bit_width and bits <= exact), None)


def _merge_structs(left: pa.DataType, right: pa.DataType, loosely: bool) -> pa.DataType | None:
    fields = {field.name: field for field in left}
    for field in right:
        known = fields.get(field.name)
        if known is None:
            fields[field.name] = field.with_nullable(True)
            continue
        kind = merge_types(known.type, field.type, loosely=loosely)
        if kind is None:
            return None
        fields[field.name] = known.with_type(kind).with_nullable(known.nullable or field.nullable)
    there = {field.name for field in right}
    return pa.struct([field if name in there else field.with_nullable(True) for name, field in fields.items()])


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """`table` with exactly the columns of `schema`; missing ones are null."""
    arrays = []
    for field in schema:
        at = table.schema.get_field_index(field.name)
        if at < 0:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
            continue
        column = table.column(at)
        if is_json_field(field) and not is_json_field(table.schema.field(at)):
            column = as_json_text(column)
        if not column.type.equals(field.type):
            column = _cast(column, field.type)
        arrays.append(column)
    return pa.table(arrays, schema=schema)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if "_view" in str(column.type) or (pa.types.is_struct(kind) and pa.types.is_struct(column.type)):
        return pa.chunked_array([_cast_array(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind, safe=True)


def _cast_array(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Like Arrow's own cast, which supports neither structs whose fields differ nor dictionaries of views."""
    if array.type.equals(kind):
        return array
    if pa.types.is_dictionary(array.type) and not pa.types.is_dictionary(kind):
        return _cast_array(array.dictionary, kind).take(array.indices)
    if not (pa.types.is_struct(kind) and pa.types.is_struct(array.type)):
        if "_view, ind" in str(array.type):  # lists of dictionaries of views
            return pa.array(array.to_pylist(), kind)
        return array.cast(kind, safe=True)
    children = []
    for field in kind:
        at = array.type.get_field_index(field.name)
        # Child buffers of a sliced struct start before it: field() applies the offset.
        children.append(pa.nulls(len(array), field.type) if at < 0 else _cast_array(array.field(at), field.type))
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))


def as_json_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each value as JSON text; null stays null.

    Values without a JSON equivalent become text: dates and times in ISO form, decimals by their digits, bytes as UTF-8
    with backslash escapes; NaN and infinities become JSON's null.
    """
    return pa.chunked_array(
        [[_json_text(value) for value in chunk.to_pylist()] for chunk in column.chunks], pa.large_string()
    )


def _json_text(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value, default=_plain).decode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, dt.timedelta):
        return value.total_seconds()
    return str(value)
