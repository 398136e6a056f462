"""Records of iterators and extractors (dictionaries with any keys) as tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from gristmill.errors import StageDefinitionError


def table_of(records: Sequence[Mapping[str, Any]], names: Iterable[str] = ()) -> pa.Table:
    """The records as rows; missing keys are null.

    Args:
        records: The records.
        names: Columns that the table always has, before those that only the records have.

    Raises:
        StageDefinitionError: Values of one key have types that no column can hold together.
        UnicodeEncodeError: A text is not Unicode (half of a surrogate pair).
    """
    keys = dict.fromkeys(names)
    for record in records:
        keys.update(dict.fromkeys(record))
    return pa.table({key: _column(key, [record.get(key) for record in records]) for key in keys})


def _column(key: str, values: list[Any]) -> pa.Array:
    try:
        column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        kinds = sorted({type(value).__name__ for value in values if value is not None})
        raise StageDefinitionError(
            f"The records have values of different types in {key!r} ({', '.join(kinds)}), which a column cannot hold: "
            f"{error}. Use the same type in every record, as text if necessary."
        ) from error
    if pa.types.is_null(column.type) or pa.types.is_string(column.type):
        column = column.cast(pa.large_string())
    elif pa.types.is_binary(column.type):
        column = column.cast(pa.large_binary())
    return column
