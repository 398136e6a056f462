"""Bringing tables to a unified schema: casts that lose nothing, and JSON text where the schema asks for it."""

from __future__ import annotations

import datetime as dt
import decimal
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.storage.schemas import is_json_field


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
    if pa.types.is_struct(kind) and pa.types.is_struct(column.type):
        # Arrow's own cast wants equal fields; here fields may be missing.
        return pa.chunked_array([_cast_struct(chunk, kind) for chunk in column.chunks], kind)
    return column.cast(kind, safe=True)


def _cast_struct(array: pa.StructArray, kind: pa.DataType) -> pa.StructArray:
    children = []
    for field in kind:
        at = array.type.get_field_index(field.name)
        if at < 0:
            children.append(pa.nulls(len(array), field.type))
            continue
        # Child buffers of a sliced struct start before it: field() applies the offset.
        child = array.field(at)
        if not child.type.equals(field.type):
            child = (
                _cast_struct(child, field.type) if pa.types.is_struct(field.type) else child.cast(field.type, safe=True)
            )
        children.append(child)
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=pc.is_null(array))


def as_json_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Each value as the JSON text that stands for it; null stays null.

    What JSON has no value for becomes text: dates and times in ISO form, decimals by their digits, bytes as UTF-8 with
    backslash escapes; NaN and infinities become JSON's null.
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
