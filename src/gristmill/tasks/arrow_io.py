"""Arrow and Polars conversion: what a table or frame that user code returns still shares with the original.

Both libraries pass on unchanged columns as the same memory. A column at the same address proves that the rows are the
same ones in the same order; this is not a guess by position.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import StageDefinitionError
from gristmill.storage.schemas import is_json_field, is_text
from gristmill.tasks.columns import JSON_TYPE, Columns, one_chunk


def polars_memory(frame: Any) -> pa.Table:
    """The frame as Arrow sees it without a copy, so that addresses can be compared."""
    import polars as pl

    return frame.to_arrow(compat_level=pl.CompatLevel.newest())


def table_of_polars(frame: Any) -> pa.Table:
    """The frame as a table that the kernels can read: strings as large_string and not as views."""
    import polars as pl

    return frame.to_arrow(compat_level=pl.CompatLevel.oldest())


def arrow_values(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    """The values of column `name`, as user code has them: a list, a NumPy array, a Polars or pandas series."""
    try:
        if hasattr(values, "to_frame") and hasattr(values, "to_arrow"):  # a Polars series
            return table_of_polars(values.to_frame("values")).column(0)
        return pa.array(values)
    except (TypeError, ValueError, pa.ArrowException) as error:  # values of several types, or not a sequence at all
        raise StageDefinitionError(
            f"Column {name!r}: a {type(values).__name__} cannot be a column ({error}). Pass one value per row, all"
            " of one type: an Arrow or NumPy array, a Polars or pandas series, or a list."
        ) from None


def shares_rows(before: pa.Table, after: pa.Table) -> bool:
    """Whether `after` shares the memory of a column with `before`, so that its rows are the same, in order."""
    if before.num_rows != after.num_rows or not before.num_rows:
        return False
    return any(
        same_memory(before.column(name), after.column(name))
        for name in after.column_names
        if name in before.column_names
    )


def same_memory(left: pa.ChunkedArray, right: pa.ChunkedArray) -> bool:
    """Whether two columns share the same memory."""
    if left.type != right.type or left.num_chunks != right.num_chunks:
        return False
    places = [(_place(a), _place(b)) for a, b in zip(left.chunks, right.chunks, strict=True)]
    return all(a is not None and a == b for a, b in places)


def _place(chunk: pa.Array) -> tuple[int, int, int] | None:
    """The addresses of the values, offsets or views of a chunk; None for types without such a buffer."""
    if pa.types.is_dictionary(chunk.type):
        return None
    buffers = chunk.buffers()
    own = buffers[1] if len(buffers) > 1 else None
    return None if own is None else (own.address, chunk.offset, len(chunk))


def restore_json(before: Columns, after: pa.Table) -> pa.Table:
    """`after` with columns marked that user code received as JSON texts and returned as plain strings.

    Polars has no such marks, and a replaced Arrow column loses them. A value that equals one of the original texts
    still stands for its JSON; any other is a plain string from the stage.
    """
    for place, field in enumerate(after.schema):
        if is_json_field(field) or not before.has(field.name) or not is_text(field.type):
            continue
        seen = before.table([field.name])
        if not is_json_field(seen.schema.field(0)):
            continue
        texts = one_chunk(after.column(place)).cast(pa.large_string())
        known = pc.is_in(texts, value_set=one_chunk(seen.column(0)).cast(pa.large_string()))
        fresh = np.flatnonzero(~np.asarray(pc.or_(known, pc.is_null(texts)).to_numpy(zero_copy_only=False), bool))
        if len(fresh):
            values = texts.to_pylist()
            for row in fresh.tolist():
                values[row] = json.dumps(values[row], ensure_ascii=False)
            texts = pa.array(values, pa.large_string())
        after = after.set_column(place, pa.field(field.name, texts.type, metadata=JSON_TYPE), texts)
    return after
