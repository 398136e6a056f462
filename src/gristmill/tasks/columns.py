"""The columns of a batch: immutable, Arrow inside, and for JSONL backed by the raw records.

`TableColumns` is an Arrow table. `RecordColumns` keeps each JSONL record as it was read, decodes a column on demand,
and on the way out re-serialises only changed values; everything else is written with its original bytes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gristmill.errors import MissingColumnError, did_you_mean
from gristmill.storage.schemas import JSON_KEY, JSON_VALUE, is_json_field

if TYPE_CHECKING:
    from gristmill.storage.json_records import JsonRecords
    from gristmill.storage.jsonl_sink import RecordLines

Array: TypeAlias = "pa.Array | pa.ChunkedArray"
Mask: TypeAlias = npt.NDArray[np.bool_]
Indices: TypeAlias = npt.NDArray[np.int64]

JSON_TYPE = {JSON_KEY: JSON_VALUE}
"""The field metadata of a column that holds JSON texts because Arrow has no exact type for its values."""

_RECORD = "__record__"
_MASK = "__mask__:"


def one_chunk(array: Array) -> pa.Array:
    """`array` as a single contiguous chunk."""
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def as_text(array: Array) -> pa.Array:
    """`array` as one contiguous large_string chunk, which is what the kernels read; numbers become their digits.

    JSON texts stay as they are: of a whole column, `Columns.text` returns their values.
    """
    if pa.types.is_string(array.type):
        array = array.cast(pa.large_string())  # first: together the chunks may have more bytes than 32 bits can count
    whole = one_chunk(array)
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks)
    if pa.types.is_large_string(whole.type):
        return whole
    if pa.types.is_nested(whole.type):
        texts = [None if value is None else json.dumps(value, default=str) for value in whole.to_pylist()]
        return pa.array(texts, pa.large_string())
    if pa.types.is_null(whole.type):
        return pa.nulls(len(whole), pa.large_string())
    if pa.types.is_dictionary(whole.type):
        whole = whole.cast(whole.type.value_type)
    if pa.types.is_binary(whole.type) or pa.types.is_large_binary(whole.type):
        values = [None if v is None else v.decode("utf-8", "replace") for v in whole.to_pylist()]
        return pa.array(values, pa.large_string())
    return whole.cast(pa.large_string())


class Columns(ABC):
    """The interface that tasks use; every method that changes something returns a new object."""

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The visible columns, in order."""

    @property
    @abstractmethod
    def num_rows(self) -> int:
        """The number of rows."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Approximate memory use in bytes."""

    @abstractmethod
    def column(self, name: str) -> Array:
        """The values of a column.

        Raises:
            MissingColumnError: There is no such column.
        """

    @abstractmethod
    def is_json(self, name: str) -> bool:
        """Whether the values of `name` have no exact Arrow type and are kept as JSON texts."""

    @abstractmethod
    def python_values(self, name: str) -> list[Any]:
        """The values of a column as Python objects, those of a JSON column exactly."""

    @abstractmethod
    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        """All columns, or the named ones, as an Arrow table."""

    @abstractmethod
    def with_column(self, name: str, values: Array, *, changed: Mask | None = None, is_json: bool = False) -> Columns:
        """A copy in which `name` has the given values; `changed` marks the rows that actually differ."""

    @abstractmethod
    def select(self, names: Sequence[str]) -> Columns:
        """A copy with only the named columns, in that order."""

    @abstractmethod
    def take(self, indices: Indices) -> Columns:
        """A copy with the rows at `indices`."""

    @abstractmethod
    def slice(self, start: int, length: int) -> Columns:
        """A view of `length` rows from `start`."""

    @abstractmethod
    def encode_jsonl(self, fields: Sequence[str] | None = None) -> npt.NDArray[np.uint8]:
        """The rows as JSONL bytes."""

    def jsonl_lines(self, fields: Sequence[str] | None = None) -> npt.NDArray[np.uint8] | RecordLines:
        """Like `encode_jsonl`, but assembled lazily while writing if the records are unchanged."""
        return self.encode_jsonl(fields)

    @abstractmethod
    def transport(self) -> pa.Table:
        """An Arrow table from which `from_transport` rebuilds the same object in another process."""

    def has(self, name: str) -> bool:
        """Whether the column exists."""
        return name in self.names

    def same_names(self, other: Columns) -> bool:
        """Whether columns that were derived from these have the same names."""
        return set(self.names) == set(other.names)

    def text(self, name: str) -> pa.Array:
        """The values of a column as contiguous large strings: a string as it is, null as null, others as their JSON.

        The result for a row does not depend on the types of values in other rows.
        """
        values = as_text(self.column(name))
        if not self.is_json(name):
            return values
        from gristmill.storage.json_columns import texts_of_json

        return texts_of_json(values)

    def with_text(self, name: str, texts: pa.Array, *, changed: Mask) -> Columns:
        """A copy in which the `changed` rows of `name` have the given texts, and all others keep their values."""
        values = self.column(name)
        if self.is_json(name):
            from gristmill.storage.json_columns import string_texts

            merged = pc.if_else(pa.array(changed), string_texts(as_text(texts)), as_text(values))
            return self.with_column(name, merged, changed=changed, is_json=True)
        # All batches of a run keep one schema, whether a document in them changed or not.
        texts = texts.cast(values.type) if pa.types.is_string(values.type) else texts
        return self.with_column(name, texts, changed=changed)

    def without(self, names: Collection[str]) -> Columns:
        """A copy without the named columns."""
        return self.select([name for name in self.names if name not in names])

    def missing(self, name: str) -> MissingColumnError:
        """The error for a missing column."""
        return MissingColumnError(
            f"No column {name!r}; this batch has {', '.join(map(repr, self.names)) or 'no columns'}."
            f"{did_you_mean(name, self.names)}",
            column=name,
            available=list(self.names),
        )


class TableColumns(Columns):
    """Columns that are an Arrow table, as read from Parquet or returned by user code."""

    __slots__ = ("_nbytes", "_table")

    def __init__(self, table: pa.Table) -> None:
        self._table = table
        self._nbytes = -1

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._table.column_names)

    @property
    def num_rows(self) -> int:
        return int(self._table.num_rows)

    @property
    def nbytes(self) -> int:
        if self._nbytes < 0:
            self._nbytes = int(self._table.nbytes)
        return self._nbytes

    def column(self, name: str) -> Array:
        if name not in self._table.column_names:
            raise self.missing(name)
        return self._table.column(name)

    def is_json(self, name: str) -> bool:
        place = self._table.schema.get_field_index(name)
        return place >= 0 and is_json_field(self._table.schema.field(place))

    def python_values(self, name: str) -> list[Any]:
        values: list[Any] = one_chunk(self.column(name)).to_pylist()
        return [None if value is None else json.loads(value) for value in values] if self.is_json(name) else values

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        return self._table if names is None else self._table.select(list(names))

    def with_column(self, name: str, values: Array, *, changed: Mask | None = None, is_json: bool = False) -> Columns:
        field = pa.field(name, values.type, metadata=JSON_TYPE if is_json else None)
        if name in self._table.column_names:
            return TableColumns(self._table.set_column(self._table.column_names.index(name), field, values))
        if not self._table.num_columns and not self._table.num_rows:
            return TableColumns(pa.table([values], schema=pa.schema([field])))
        return TableColumns(self._table.append_column(field, values))

    def select(self, names: Sequence[str]) -> Columns:
        for name in names:
            if name not in self._table.column_names:
                raise self.missing(name)
        return TableColumns(self._table.select(list(names)))

    def take(self, indices: Indices) -> Columns:
        table = self._table
        if table.num_columns and table.nbytes >= 1 << 31:
            # Taking joins the chunks of a column first, whose bytes 32 bits may not be able to count.
            for place, field in enumerate(table.schema):
                if pa.types.is_string(field.type) and table.column(place).num_chunks > 1:
                    wide = table.column(place).cast(pa.large_string())
                    table = table.set_column(place, field.with_type(pa.large_string()), wide)
        return TableColumns(table.take(pa.array(indices)))

    def slice(self, start: int, length: int) -> Columns:
        return TableColumns(self._table.slice(start, length))

    def encode_jsonl(self, fields: Sequence[str] | None = None) -> npt.NDArray[np.uint8]:
        from gristmill.storage.json_columns import encode_table

        present = self.names if fields is None else [name for name in fields if name in self.names]
        flagged = {name for name in present if is_json_field(self._table.schema.field(name))}
        return encode_table({name: writable(self._table.column(name), name in flagged) for name in present})

    def transport(self) -> pa.Table:
        return self._table


class RecordColumns(Columns):
    """Columns over raw JSONL records: decoded on demand, written back untouched unless changed."""

    __slots__ = ("_arrays", "_changed", "_json", "_names", "_nested", "_records")

    def __init__(
        self,
        records: JsonRecords,
        *,
        names: tuple[str, ...] | None = None,
        arrays: Mapping[str, Array] | None = None,
        changed: Mapping[str, Mask | None] | None = None,
        json_names: Iterable[str] = (),
    ) -> None:
        self._records = records
        self._names = names
        self._arrays: dict[str, Array] = dict(arrays or {})
        self._changed: dict[str, Mask | None] = dict(changed or {})
        self._json: frozenset[str] = frozenset(json_names)
        self._nested: dict[str, Array | None] = {}

    @property
    def records(self) -> JsonRecords:
        """The raw records, without the changes made since."""
        return self._records

    @property
    def names(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(dict.fromkeys((*self._records.keys(), *self._changed)))
        return self._names

    @property
    def num_rows(self) -> int:
        return len(self._records)

    @property
    def nbytes(self) -> int:
        return int(self._records.nbytes + sum(map(attrgetter("nbytes"), self._arrays.values())))

    def has(self, name: str) -> bool:
        return name in self._arrays or name in self.names

    def is_json(self, name: str) -> bool:
        return name in self._json if name in self._changed else self._records.is_json(name)

    def is_changed(self, name: str) -> bool:
        """Whether a stage has set this column."""
        return name in self._changed

    def same_names(self, other: Columns) -> bool:
        # The keys of all records are examined only if what is known about both does not decide.
        if isinstance(other, RecordColumns) and self._names == other._names:
            return self._changed.keys() == other._changed.keys() or super().same_names(other)
        return super().same_names(other)

    def column(self, name: str) -> Array:
        if name not in self._arrays:
            unnamed = self._names is None and len(self._records) > 0
            if not (unnamed and bool(self._records.has(name).any())) and name not in self.names:
                raise self.missing(name)
            self._arrays[name] = self._records.column(name)
        return self._arrays[name]

    def table(self, names: Sequence[str] | None = None) -> pa.Table:
        wanted = list(self.names if names is None else names)
        self._records.columns([name for name in wanted if name not in self._arrays])
        fields, arrays = [], []
        for name in wanted:
            array, is_json = self.column(name), self.is_json(name)
            if is_json and name not in self._changed:
                if name not in self._nested:
                    self._nested[name] = self._records.nested(name)
                nested = self._nested[name]
                if nested is not None:
                    array, is_json = nested, False
            arrays.append(array)
            fields.append(pa.field(name, array.type, metadata=JSON_TYPE if is_json else None))
        if not wanted:
            return pa.table({}).slice(0, 0) if not self.num_rows else _rows_without_columns(self.num_rows)
        return pa.table(arrays, schema=pa.schema(fields))

    def python_values(self, name: str) -> list[Any]:
        if not self.is_json(name):
            return list(one_chunk(self.column(name)).to_pylist())
        if name in self._changed:
            return [None if text is None else json.loads(text) for text in one_chunk(self.column(name)).to_pylist()]
        return self._records.python_values(name)

    def with_column(self, name: str, values: Array, *, changed: Mask | None = None, is_json: bool = False) -> Columns:
        earlier = self._changed.get(name, np.zeros(self.num_rows, bool) if name not in self._changed else None)
        marks = None if changed is None or earlier is None else (changed | earlier)
        names = self.names if name in self.names else (*self.names, name)
        return RecordColumns(
            self._records,
            names=names,
            arrays={**self._arrays, name: values},
            changed={**self._changed, name: marks},
            json_names=self._json | {name} if is_json else self._json - {name},
        )

    def select(self, names: Sequence[str]) -> Columns:
        for name in names:
            if not self.has(name):
                raise self.missing(name)
        return RecordColumns(
            self._records,
            names=tuple(names),
            arrays={name: array for name, array in self._arrays.items() if name in names},
            changed={name: mask for name, mask in self._changed.items() if name in names},
            json_names=self._json,
        )

    def take(self, indices: Indices) -> Columns:
        positions = pa.array(indices)
        return RecordColumns(
            self._records.take(indices),
            names=self._names,
            # Decoded columns are cached with the records for later use.
            arrays={name: self._arrays[name].take(positions) for name in self._changed},
            changed={name: None if mask is None else mask[indices] for name, mask in self._changed.items()},
            json_names=self._json,
        )

    def slice(self, start: int, length: int) -> Columns:
        end = start + length
        return RecordColumns(
            self._records.slice(start, length),
            names=self._names,
            arrays={name: array.slice(start, length) for name, array in self._arrays.items()},
            changed={name: None if mask is None else mask[start:end] for name, mask in self._changed.items()},
            json_names=self._json,
        )

    def jsonl_lines(self, fields: Sequence[str] | None = None) -> npt.NDArray[np.uint8] | RecordLines:
        untouched = fields is None and not self._changed
        if untouched and (self._names is None or set(self._names).issuperset(self._records.keys())):
            from gristmill.storage.jsonl_sink import RecordLines

            return RecordLines(self._records)
        return self.encode_jsonl(fields)

    def encode_jsonl(self, fields: Sequence[str] | None = None) -> npt.NDArray[np.uint8]:
        changes = {
            name: (one_chunk(writable(self._arrays[name], name in self._json)), mask)
            for name, mask in self._changed.items()
        }
        if fields is None and self._names is not None:
            dropped = sorted(set(self._records.keys()).difference(self._names))
            return self._records.encode(changes=changes, drop=dropped)
        if fields is not None:
            changes = {name: change for name, change in changes.items() if name in fields}
            present = [name for name in fields if self.has(name)]
            return self._records.encode(changes=changes, fields=present)
        return self._records.encode(changes=changes)

    def transport(self) -> pa.Table:
        fields = [pa.field(_RECORD, pa.large_binary())]
        arrays: list[Array] = [self._records.to_arrow()]
        for name, mask in self._changed.items():
            fields.append(pa.field(name, self._arrays[name].type))
            arrays.append(self._arrays[name])
            if mask is not None:
                fields.append(pa.field(_MASK + name, pa.bool_()))
                arrays.append(pa.array(mask))
        notes = {"names": self._names, "changed": list(self._changed), "json": sorted(self._json)}
        return pa.table(arrays, schema=pa.schema(fields, metadata={b"gristmill.records": json.dumps(notes).encode()}))


def _rows_without_columns(num_rows: int) -> pa.Table:
    # Arrow keeps the number of rows of a table without columns only when they were removed.
    return pa.table({"_": pa.nulls(num_rows)}).select([])


def from_transport(table: pa.Table) -> Columns:
    """The columns from a table made by `Columns.transport`."""
    metadata = table.schema.metadata or {}
    if b"gristmill.records" not in metadata:
        return TableColumns(table)
    from gristmill.storage.json_records import JsonRecords

    notes = json.loads(metadata[b"gristmill.records"])
    records = JsonRecords.from_arrow(one_chunk(table.column(_RECORD)))
    changed: dict[str, Mask | None] = {}
    for name in notes["changed"]:
        marks = _MASK + name
        changed[name] = table.column(marks).to_numpy() if marks in table.column_names else None
    return RecordColumns(
        records,
        names=None if notes["names"] is None else tuple(notes["names"]),
        arrays={name: one_chunk(table.column(name)) for name in notes["changed"]},
        changed=changed,
        json_names=notes["json"],
    )


def records_of_lines(lines: npt.NDArray[np.uint8]) -> JsonRecords:
    """The records of JSONL bytes that we have encoded ourselves."""
    from gristmill.storage.json_records import JsonRecords

    ends = np.flatnonzero(lines == ord("\n"))
    starts = np.zeros(len(ends), np.int64)
    starts[1:] = ends[:-1] + 1
    return JsonRecords(lines, starts, ends)


def writable(values: Array, is_json: bool) -> Array:
    """The values as the encoder takes them; JSON texts are marked, so that they are not quoted."""
    if not is_json:
        return values
    texts = as_text(values)
    return pa.ExtensionArray.from_storage(pa.json_(texts.type), texts)
