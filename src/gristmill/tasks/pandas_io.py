"""Pandas conversion: columns as an ordinary frame, and a frame as columns with every row accounted for.

A converted frame has a RangeIndex with a name of its own. Filters, sorts and column assignments keep the labels and
the name, so rows are recognised by them; a reset index or a merge loses the name, and then content decides. Labels are
0..n-1, so `frame["x"] = pd.Series(values)` aligns as a user expects.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from gristmill.errors import StageDefinitionError, require_module
from gristmill.storage.valid_text import require_valid_text
from gristmill.tasks.columns import JSON_TYPE, Columns, Indices, one_chunk

if TYPE_CHECKING:
    import pandas as pd

_HALF = re.compile("[\ud800-\udfff]")
_serial = itertools.count()


class _IndexName(str):
    """The name of an index: the column that `reset_index()` would add, but equal to no other frame's."""

    def __init__(self, _: str) -> None:
        self.serial = next(_serial)

    def __eq__(self, other: object) -> bool:
        return self.serial == other.serial if isinstance(other, _IndexName) else str(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _nullable(kind: pa.DataType) -> Any:
    import pandas as pd

    names = {
        "int8": pd.Int8Dtype, "int16": pd.Int16Dtype, "int32": pd.Int32Dtype, "int64": pd.Int64Dtype,
        "uint8": pd.UInt8Dtype, "uint16": pd.UInt16Dtype, "uint32": pd.UInt32Dtype, "uint64": pd.UInt64Dtype,
        "bool": pd.BooleanDtype,
    }  # fmt: skip
    found = names.get(str(kind))
    return found() if found else None


@functools.cache
def introduce_pandas() -> None:
    """Make PyArrow look for pandas, which it does only once, possibly while loading pandas was deferred."""
    pa.table({}).to_pandas()


def to_frame(columns: Columns) -> pd.DataFrame:
    """The columns as a pandas frame.

    Text is pandas' own string type; integers and booleans are plain numpy types, and the nullable ones where a value
    is missing, so that an integer stays an integer; nested and mixed JSON values are Python objects.
    """
    require_module("pandas", "to_pandas()")
    import pandas as pd

    introduce_pandas()
    series: dict[str, Any] = {}
    table = columns.table()
    index = pd.RangeIndex(columns.num_rows, name=_IndexName("level_0" if columns.has("index") else "index"))
    for field in table.schema:
        name = field.name
        if columns.is_json(name):
            values = np.empty(columns.num_rows, object)
            values[:] = columns.python_values(name)
            series[name] = pd.Series(values, index=index, dtype=object)
            continue
        column = one_chunk(table.column(name))
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type):
            series[name] = pd.Series(pd.array(column, dtype="str"), index=index)
        else:
            mapper = _nullable if column.null_count else None
            series[name] = pd.Series(column.to_pandas(types_mapper=mapper).array, index=index)
    return pd.DataFrame(series, index=index)


def index_tag(frame: pd.DataFrame) -> str | None:
    """The name of the index of a frame that `to_frame` made."""
    name = frame.index.name
    return name if isinstance(name, _IndexName) else None


def positions_by_labels(frame: pd.DataFrame, tag: str, num_rows: int) -> Indices | None:
    """The rows that the labels of `frame` name; None if its index is not the one named `tag`."""
    if index_tag(frame) != tag or frame.index.nlevels != 1:
        return None
    labels = frame.index.to_numpy()
    if labels.dtype.kind not in "iu":
        return None
    labels = labels.astype(np.int64)
    return labels if not len(labels) or (labels.min() >= 0 and labels.max() < num_rows) else None


def to_table(frame: pd.DataFrame, before: Columns | None = None) -> pa.Table:
    """The frame as an Arrow table without its index, keeping the types of `before` where the values allow it."""
    introduce_pandas()
    if frame.columns.nlevels != 1:
        raise StageDefinitionError(
            "The frame has several levels of column names; a batch needs one. Join them, for instance with "
            'frame.columns = ["_".join(map(str, name)) for name in frame.columns].'
        )
    names = [str(name) for name in frame.columns]
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise StageDefinitionError(f"The frame has more than one column named {', '.join(map(repr, twice))}.")
    fields, arrays = [], []
    for position, name in enumerate(names):
        array, is_json = _arrow_values(frame.iloc[:, position], name, before)
        arrays.append(array)
        fields.append(pa.field(name, array.type, metadata=JSON_TYPE if is_json else None))
    if not fields:
        return pa.table({"_": pa.nulls(len(frame))}).select([])
    return require_valid_text(pa.table(arrays, schema=pa.schema(fields)))


def _arrow_values(values: pd.Series[Any], name: str, before: Columns | None) -> tuple[pa.Array, bool]:
    known = before is not None and before.has(name)
    if known and before is not None and values.dtype == object and before.is_json(name):
        return _json_texts(values), True
    wanted = _seen_type(before, name) if known and before is not None else None
    if wanted is not None and not _converted(values, wanted):
        try:
            return one_chunk(pa.array(values, type=wanted, from_pandas=True)), False
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, UnicodeEncodeError):
            pass  # the stage changed the column's type: infer it below
    try:
        array = one_chunk(pa.array(values, from_pandas=True))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError):
        return _json_texts(values), True
    if pa.types.is_string(array.type):
        array = array.cast(pa.large_string())
    return array, False


def _converted(values: pd.Series[Any], wanted: pa.DataType) -> bool:
    """Whether the stage changed the kind of value of the column, even if the values can be converted back."""
    import pandas as pd

    kind = values.dtype
    if pd.api.types.is_bool_dtype(kind) and not pd.api.types.is_object_dtype(kind):
        return not pa.types.is_boolean(wanted)
    if pd.api.types.is_integer_dtype(kind):
        return not pa.types.is_integer(wanted)
    # pandas makes floats of integers when a value goes missing, in a join for instance.
    return bool(pd.api.types.is_float_dtype(kind)) and not (pa.types.is_integer(wanted) or pa.types.is_floating(wanted))


def _seen_type(before: Columns, name: str) -> pa.DataType | None:
    kind = before.table([name]).schema.field(name).type
    return None if pa.types.is_null(kind) else kind


def _json_texts(values: pd.Series[Any]) -> pa.Array:
    missing = values.isna()
    texts = [None if none else json_text(value) for value, none in zip(values, missing, strict=True)]
    return pa.array(texts, pa.large_string())


def json_text(value: Any) -> str:
    """The JSON text of a value as UTF-8 can hold it.

    Raises:
        StageDefinitionError: JSON has no form for it.
    """
    text = json.dumps(value, ensure_ascii=False, default=_plain)
    # A lone surrogate has no UTF-8, but JSON can escape it.
    return text if text.isascii() or not _HALF.search(text) else json.dumps(value, default=_plain)


def _plain(value: Any) -> Any:
    """The JSON form of values that pandas and numpy put in object columns."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if type(value).__name__ in ("NAType", "NaTType"):
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise StageDefinitionError(
        f"A value of type {type(value).__name__} cannot be written as JSON or Arrow: {value!r:.200}. "
        "Turn it into text, numbers, lists or dictionaries first."
    )
