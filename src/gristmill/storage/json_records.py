"""The raw lines of a block of JSONL, with columns decoded on demand.

A record stays the bytes it was read from. What a stage needs is decoded from the spans of the values; what it did not
change is written byte for byte as it came, so nothing that Arrow cannot hold (big integers, mixed types, the order of
keys, a key that is missing rather than null) is lost on the way through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.kernels import json_scan, json_values, json_write, utf8
from gristmill.kernels.json_values import ARRAY, MISSING, NULL, OBJECT
from gristmill.kernels.machine import WIDTH
from gristmill.storage.json_decode import Column, Field, arrow_nested, arrow_texts, decode_column, python_list
from gristmill.storage.json_encode import (
    NO_BYTES,
    Texts,
    address_of,
    are_json,
    encode_table,
    join_objects,
    json_texts,
    key_texts,
    packed_names,
)

__all__ = ["JsonRecords", "encode_table"]

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_CAUSES = {
    json_values.MALFORMED: "malformed_json",
    json_values.NOT_AN_OBJECT: "not_an_object",
    json_values.TOO_DEEP: "malformed_json_too_deep",
}


class JsonRecords:
    r"""Records of JSON as spans of one buffer; immutable.

    Deriving (`take`, `slice`) shares the buffer and carries along what is known about the values.

    Attributes:
        buffer: The bytes.
        starts: Where each record starts, at its opening brace.
        ends: Where each record ends, after its closing brace.

    Example:
        >>> lines = b'{"id": 1, "text": "one"}\n{"id": 2, "text": "two"}'
        >>> records, bad, causes = JsonRecords.scan(np.frombuffer(lines, np.uint8), [0, 25], [24, 49], fields=["text"])
        >>> records.column("text").to_pylist()
        ['one', 'two']
        >>> records.take(np.array([1])).encode().tobytes()
        b'{"id": 2, "text": "two"}\n'
    """

    __slots__ = ("_columns", "_fields", "_keys", "_waiting", "buffer", "ends", "starts")

    def __init__(self, buffer: Bytes, starts: Integers, ends: Integers) -> None:
        """Trust the spans to be valid objects; use `scan` for bytes that nobody has checked."""
        self.buffer = buffer
        # Kernels are compiled for one kind of array only; this copies nothing that is of that kind already.
        self.starts: Integers = np.require(starts, np.int64, ["C", "W"])
        self.ends: Integers = np.require(ends, np.int64, ["C", "W"])
        self._fields: dict[str, Field] = {}
        self._columns: dict[str, Column] = {}
        self._waiting: dict[str, tuple[Column, Integers]] = {}  # Columns of an ancestor and the rows to take of them.
        self._keys: list[str] | None = None

    @classmethod
    def scan(
        cls, buffer: Bytes, starts: Integers, ends: Integers, *, fields: Sequence[str] = ()
    ) -> tuple[JsonRecords, Integers, list[str]]:
        """Check that every record is one strict JSON object, and find the values of `fields` in the same pass.

        Strict means RFC 8259 in valid UTF-8 with nothing after the object. A key that occurs twice is allowed: decoding
        takes the last value, the line stays as it is.

        Args:
            buffer: Bytes, contiguous.
            starts: Where each record starts.
            ends: Where each record ends, without the line end.
            fields: Keys whose values will be asked for.

        Returns:
            The good records, the indices of the bad ones, and for each of these its cause: `malformed_json`,
            `malformed_json_too_deep`, `not_an_object`, `invalid_utf8` or `nul_byte`.
        """
        records = cls(buffer, np.array(starts, np.int64), np.array(ends, np.int64))
        status = records._scan(list(dict.fromkeys(fields)))
        invalid = records._invalid_utf8()
        if invalid.any():
            records._keys = None
        bad = np.flatnonzero(invalid | (status != json_values.GOOD))
        if not len(bad):
            return records, bad, []
        values = are_json(
            Texts(
                buffer, records.starts, np.where(status == json_values.NOT_AN_OBJECT, records.ends - records.starts, -1)
            )
        )
        causes = []
        for index in bad:
            if invalid[index]:
                causes.append("invalid_utf8")
            elif not buffer[records.starts[index] : records.ends[index]].all():
                causes.append("nul_byte")
            elif status[index] == json_values.NOT_AN_OBJECT and not values[index]:
                causes.append(_CAUSES[json_values.MALFORMED])
            else:
                causes.append(_CAUSES[int(status[index])])
        keep = np.ones(len(records), np.bool_)
        keep[bad] = False
        good = records.take(np.flatnonzero(keep))
        good._keys = records._keys
        return good, bad, causes

    @classmethod
    def from_arrow(cls, array: pa.Array) -> JsonRecords:
        """The records that `to_arrow` gave, without checking them again."""
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if array.null_count:
            raise UsageError("Raw records cannot be null; drop those rows before.", nulls=array.null_count)
        array = array.cast(pa.large_binary())
        if not len(array):
            return cls(NO_BYTES, np.empty(0, np.int64), np.empty(0, np.int64))
        _, offsets, data = array.buffers()
        bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
        return cls(np.frombuffer(data, np.uint8), bounds[:-1].copy(), bounds[1:].copy())

    def __len__(self) -> int:
        return len(self.starts)

    def __repr__(self) -> str:
        return f"JsonRecords({len(self)} records, {self.nbytes} bytes)"

    def __reduce__(self) -> tuple[Callable[[pa.Array], JsonRecords], tuple[pa.Array]]:
        return JsonRecords.from_arrow, (self.compact().to_arrow(),)

    @property
    def nbytes(self) -> int:
        """How many bytes the records have together, line ends not counted."""
        return int((self.ends - self.starts).sum())

    def keys(self) -> list[str]:
        """All top-level keys in the order in which the records first show them.

        Those of the records that these were taken from, where they were known: a filter removes no columns.
        """
        keys = self._keys
        if keys is None:
            self._scan([])
            keys = self._keys or []
        return list(keys)

    def has(self, name: str) -> Flags:
        """Which records have the key at all, be its value null or not."""
        present: Flags = self._field(name).kinds != MISSING
        return present

    def column(self, name: str) -> pa.Array:
        """The values under a top-level key as an Arrow array; missing and null are both null.

        Only strings give large_string, only booleans bool, integers int64, integers and floats float64 as long as every
        integer is exact in it. Anything else (objects, arrays, a mixture, integers beyond 64 bits, numbers beyond the
        largest float) gives large_string with the JSON text of each value, and `is_json` is True. Half of a surrogate
        pair is decoded as U+FFFD.
        """
        return self._column(name).array

    def columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Several columns by name; keys that were never looked for are found in one pass together."""
        self._find(names)
        return {name: self.column(name) for name in names}

    def is_json(self, name: str) -> bool:
        """Does `column` give JSON text for this key rather than decoded values?"""
        return self._column(name).is_json

    def python_values(self, name: str) -> list[Any]:
        """What Python's `json` makes of each value; None where the key is missing."""
        field = self._field(name)
        lengths = np.where(field.kinds == MISSING, -1, field.ends - field.starts)
        out = np.empty(int(lengths.sum()) + 6 * len(self) + 2, np.uint8)
        used = json_write.join_items(
            address_of(self.buffer) + field.starts, lengths, np.zeros(1, np.int64), np.full(1, len(self), np.int64),
            NO_BYTES, ord("["), out, np.empty(2, np.int64),
        )  # fmt: skip
        return python_list(out[:used].tobytes())

    def nested(self, name: str) -> pa.Array | None:
        """A struct or list array of a column that holds only objects or only arrays, else None.

        None also when the values do not fit one Arrow type without loss. A key that is missing in one of the objects is
        null in the struct.
        """
        field = self._field(name)
        present = np.unique(field.kinds[field.kinds > NULL])
        if len(present) != 1 or present[0] not in (OBJECT, ARRAY):
            return None
        return arrow_nested(join_objects([self._raw(field)], ["v"], len(self), tail="\n").data)

    def take(self, indices: Integers) -> JsonRecords:
        """The records at `indices`, in that order."""
        indices = np.asarray(indices, np.int64)
        taken = JsonRecords(self.buffer, self.starts[indices], self.ends[indices])
        taken._keys = self._keys
        taken._fields = {
            name: Field(field.starts[indices], field.ends[indices], field.kinds[indices])
            for name, field in self._fields.items()
        }
        composed: dict[int, Integers] = {}
        for name, (column, rows) in self._waiting.items():
            if id(rows) not in composed:
                composed[id(rows)] = rows[indices]
            taken._waiting[name] = column, composed[id(rows)]
        for name, column in self._columns.items():
            taken._waiting[name] = column, indices
        return taken

    def slice(self, start: int, length: int | None = None) -> JsonRecords:
        """`length` records from `start` on (or all that follow)."""
        stop = len(self) if length is None else start + length
        part = slice(start, stop)
        sliced = JsonRecords(self.buffer, self.starts[part], self.ends[part])
        sliced._keys = self._keys
        sliced._fields = {
            name: Field(field.starts[part], field.ends[part], field.kinds[part]) for name, field in self._fields.items()
        }
        sliced._waiting = {name: (column, rows[part]) for name, (column, rows) in self._waiting.items()}
        sliced._columns = {
            name: Column(column.array.slice(start, length), column.is_json) for name, column in self._columns.items()
        }
        return sliced

    def compact(self) -> JsonRecords:
        """The same records in a buffer that holds nothing else."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.ends - self.starts, out=offsets[1:])
        out = np.empty(int(offsets[-1]), np.uint8)
        json_write.gather(address_of(self.buffer), self.starts, self.ends, -1, out)
        compacted = JsonRecords(out, offsets[:-1], offsets[1:])
        moved = offsets[:-1] - self.starts
        compacted._fields = {
            name: Field(field.starts + moved, field.ends + moved, field.kinds) for name, field in self._fields.items()
        }
        compacted._columns = dict(self._columns)
        compacted._waiting = dict(self._waiting)
        compacted._keys = self._keys
        return compacted

    def to_arrow(self) -> pa.Array:
        """The raw records as a large_binary array; without a copy when they lie side by side."""
        if len(self) and bool((self.starts[1:] == self.ends[:-1]).all()):
            offsets = np.append(self.starts, self.ends[-1])
            return pa.Array.from_buffers(
                pa.large_binary(), len(self), [None, pa.py_buffer(offsets), pa.py_buffer(self.buffer)]
            )
        return arrow_texts(pa.large_binary(), self.buffer, self.starts, self.ends, None)

    def encode(
        self,
        *,
        changes: Mapping[str, tuple[pa.Array, Flags | None]] | None = None,
        fields: Sequence[str] | None = None,
        drop: Collection[str] = (),
    ) -> Bytes:
        """The records as JSON lines, each with its line end; every byte that need not change stays as it was.

        Where a key occurs twice in a record, the last is replaced and all are dropped.

        Args:
            changes: For a top-level key, new values and the rows they are for (None for all): the old value is replaced
                where it stands, a missing key is added at the end. Values of Arrow's JSON type (`pa.json_()`) are
                written as the JSON they hold.
            fields: Write only these keys, in this order; a key missing in a record stays missing.
            drop: Leave these keys out.
        """
        new = {
            name: self._new_texts(name, *change)
            for name, change in (changes or {}).items()
            if name not in drop and (fields is None or name in fields)
        }
        if fields is not None:
            return self._encode_fields([name for name in dict.fromkeys(fields) if name not in drop], new)
        records = self._without(drop) if drop else self
        return records._encode_changed(new) if new else records._encode_raw()

    def _encode_raw(self) -> Bytes:
        out = np.empty(self.nbytes + len(self), np.uint8)
        json_write.gather(address_of(self.buffer), self.starts, self.ends, ord("\n"), out)
        return out

    def _encode_fields(self, fields: Sequence[str], new: Mapping[str, Texts]) -> Bytes:
        self._find([name for name in fields if name not in new or (new[name].lengths < 0).any()])
        texts = []
        for name in fields:
            text = new.get(name)
            if text is None or (text.lengths < 0).any():
                raw = self._raw(self._field(name))
                text = raw if text is None else _preferred(text, raw)
            texts.append(text)
        return join_objects(texts, fields, len(self), tail="\n").data

    def _encode_changed(self, new: Mapping[str, Texts]) -> Bytes:
        names = list(new)
        self._find(names)
        found = [self._field(name) for name in names]
        texts = list(new.values())
        lengths = np.stack([text.lengths for text in texts])
        present = np.stack([field.kinds for field in found])
        keys, key_offsets = key_texts(names)
        added = ((present == MISSING) & (lengths >= 0)).sum(axis=1)
        room = (
            self.nbytes
            + len(self)
            + int(np.maximum(lengths, 0).sum())
            + int((added * (np.diff(key_offsets) + 1)).sum())
        )
        out = np.empty(room, np.uint8)
        used = json_write.splice_records(
            address_of(self.buffer), self.starts, self.ends, np.stack([field.starts for field in found]),
            np.stack([field.ends for field in found]), present, np.stack([text.addresses for text in texts]), lengths,
            keys, key_offsets, out,
        )  # fmt: skip
        return out[:used]

    def _new_texts(self, name: str, values: pa.Array, mask: Flags | None) -> Texts:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if len(values) != len(self):
            raise UsageError(
                f"New values of {name!r} are for {len(values)} rows, but there are {len(self)} records. Give one value"
                " per record and a mask for the rows that change.",
                field=name,
                rows=len(values),
                records=len(self),
            )
        if mask is None or mask.all():
            return json_texts(values)
        rows = np.flatnonzero(mask)
        texts = json_texts(values.take(pa.array(rows)))
        starts, lengths = np.zeros(len(self), np.int64), np.full(len(self), -1, np.int64)
        starts[rows] = texts.starts
        lengths[rows] = texts.lengths
        return Texts(texts.data, starts, lengths)

    def _without(self, drop: Collection[str]) -> JsonRecords:
        names, name_offsets = packed_names(list(drop))
        out = np.empty(self.nbytes + WIDTH, np.uint8)
        offsets = np.empty(len(self) + 1, np.int64)
        json_scan.drop_members(
            address_of(self.buffer), len(self.buffer), self.starts, self.ends, names, name_offsets, out, offsets
        )
        return JsonRecords(out, offsets[:-1], offsets[1:])

    def _scan(self, names: Sequence[str]) -> Bytes:
        starts, ends, kinds, status, keys = json_scan.scan_records(
            address_of(self.buffer),
            len(self.buffer),
            self.starts,
            self.ends,
            [name.encode("utf-8", "surrogatepass") for name in names],
        )
        self._fields.update({name: Field(starts[row], ends[row], kinds[row]) for row, name in enumerate(names)})
        self._keys = [key.decode("utf-8", "replace") for key in keys]
        return status

    def _invalid_utf8(self) -> Flags:
        base = address_of(self.buffer)
        invalid = np.zeros(len(self), np.bool_)
        if len(self):
            # What lies between records cannot complete a broken character, so one look at the whole block will do.
            whole = np.array([self.starts.min()]), np.array([self.ends.max()])
            if utf8.find_invalid_utf8(base, *whole, np.empty(1, np.bool_)):
                utf8.find_invalid_utf8(base, self.starts, self.ends, invalid)
        return invalid

    def _find(self, names: Sequence[str]) -> None:
        unknown = [name for name in dict.fromkeys(names) if name not in self._fields]
        if unknown:
            self._scan(unknown)

    def _field(self, name: str) -> Field:
        self._find([name])
        return self._fields[name]

    def _raw(self, field: Field) -> Texts:
        lengths = np.where(field.kinds == MISSING, -1, field.ends - field.starts)
        return Texts(self.buffer, field.starts, lengths)

    def _column(self, name: str) -> Column:
        column = self._columns.get(name)
        if column is None:
            if name in self._waiting:
                waiting, rows = self._waiting[name]
                column = Column(waiting.array.take(pa.array(rows)), waiting.is_json)
            else:
                column = decode_column(self.buffer, self._field(name))
            self._columns[name] = column
            self._waiting.pop(name, None)
        return column


def _preferred(texts: Texts, others: Texts) -> Texts:
    """The texts that are there, and in the rows where they are not the others, whose buffer the caller keeps alive."""
    # Addresses are all that is ever made of these spans, so the distance between the two buffers leads to the second.
    distance = address_of(others.data) - address_of(texts.data)
    chosen = texts.lengths >= 0
    return Texts(
        texts.data,
        np.where(chosen, texts.starts, others.starts + distance),
        np.where(chosen, texts.lengths, others.lengths),
    )
