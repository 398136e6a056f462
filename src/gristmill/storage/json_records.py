"""The raw lines of a block of JSONL, with columns decoded on demand.

A record keeps the bytes it was read from. Values that a stage needs are decoded from their spans; everything unchanged
is written byte for byte as read, so nothing that Arrow cannot represent (big integers, mixed types, the order of keys,
a key that is missing rather than null) is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import filterfalse
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.kernels import json_scan, json_values, json_write, utf8
from gristmill.kernels.json_values import ARRAY, MISSING, NULL, OBJECT
from gristmill.kernels.machine import BLOCK
from gristmill.storage.json_columns import (
    NO_BYTES,
    Bytes,
    Column,
    Field,
    Flags,
    Integers,
    Pieces,
    are_json,
    arrow_nested,
    arrow_texts,
    decode_column,
    json_texts,
    key_texts,
    lines_of,
    packed,
    pieces_of,
    python_list,
    string_parts,
)

_CAUSES = {
    json_values.MALFORMED: "malformed_json",
    json_values.NOT_AN_OBJECT: "not_an_object",
    json_values.TOO_DEEP: "malformed_json_too_deep",
}

KINDS = {
    **dict.fromkeys((json_values.STRING, json_values.ESCAPED), "text"),
    **dict.fromkeys((json_values.INTEGER, json_values.FLOAT), "numbers"),
    **dict.fromkeys((json_values.TRUE, json_values.FALSE), "truth values"),
    ARRAY: "lists",
    OBJECT: "objects",
}
"""Names of value types other than null."""


class JsonRecords:
    r"""Records of JSON as spans of one buffer; immutable.

    Derived objects (`take`, `slice`) share the buffer and everything known about the values.

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
        """Assumes that the spans are valid objects; use `scan` for unchecked bytes."""
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
        cls,
        buffer: Bytes,
        starts: Integers,
        ends: Integers,
        *,
        fields: Sequence[str] = (),
        most_causes: int | None = None,
    ) -> tuple[JsonRecords, Integers, list[str]]:
        """Check that every record is a strict JSON object, and find the values of `fields` in the same pass.

        Strict means RFC 8259 in valid UTF-8 with nothing after the object. Duplicate keys are allowed: decoding uses
        the last value, and the line is not changed.

        Args:
            buffer: Bytes, contiguous.
            starts: Where each record starts.
            ends: Where each record ends, without the line end.
            fields: Keys whose values will be requested.
            most_causes: Maximum number of bad records whose cause is determined; all by default.

        Returns:
            The good records, the indices of the bad ones, and the cause for each of these (or the first ones):
            `malformed_json`, `malformed_json_too_deep`, `not_an_object`, `invalid_utf8` or `nul_byte`.
        """
        records = cls(buffer, np.array(starts, np.int64), np.array(ends, np.int64))
        status = records._scan(list(dict.fromkeys(fields)))
        invalid = np.zeros(len(records), np.bool_)
        if len(records):
            # What lies between records cannot complete a broken character, so one look at the whole block will do.
            base, whole = buffer.ctypes.data, (np.array([records.starts.min()]), np.array([records.ends.max()]))
            if utf8.find_invalid_utf8(base, *whole, np.empty(1, np.bool_)):
                utf8.find_invalid_utf8(base, records.starts, records.ends, invalid)
        if invalid.any():
            records._keys = None
        bad = np.flatnonzero(invalid | (status != json_values.GOOD))
        if not len(bad):
            return records, bad, []
        others = np.flatnonzero(~invalid & (status == json_values.NOT_AN_OBJECT))[:most_causes]
        spans = buffer, records.starts[others], records.ends[others]
        values = dict(zip(others.tolist(), are_json(arrow_texts(pa.large_string(), *spans, None)), strict=True))
        causes = []
        for index in bad[:most_causes]:
            if invalid[index]:
                causes.append("invalid_utf8")
            elif not buffer[records.starts[index] : records.ends[index]].all():
                causes.append("nul_byte")
            elif not values.get(int(index), True):
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
        """The records from `to_arrow`, without checking them again."""
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        if array.null_count:
            raise UsageError("Raw records cannot be null; drop those rows first.", nulls=array.null_count)
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
        """Total size of the records in bytes, without line ends."""
        return int((self.ends - self.starts).sum())

    def keys(self) -> list[str]:
        """All top-level keys, in order of first occurrence.

        If known, those of the records that these were derived from: a filter removes no columns.
        """
        keys = self._keys
        if keys is None:
            self._scan([])
            keys = self._keys or []
        return list(keys)

    def has(self, name: str) -> Flags:
        """Which records have the key, whether or not its value is null."""
        if name not in self._fields:
            self._scan([name])
        present: Flags = self._fields[name].kinds != MISSING
        return present

    def key_at(self, row: int, place: int) -> str | None:
        """The key whose value contains the byte at this position of a record; None if no requested value does."""
        for name, field in self._fields.items():
            if field.kinds[row] != MISSING and field.starts[row] <= self.starts[row] + place < field.ends[row]:
                return name
        return None

    def kinds(self, name: str) -> set[str]:
        """The type name of the key's values, from `KINDS`; null has none."""
        self._find([name])
        found = set(self._fields[name].kinds.tolist()).intersection(KINDS)
        return set(map(KINDS.__getitem__, found))

    def column(self, name: str) -> pa.Array:
        """The values under a top-level key as an Arrow array; missing and null are both null.

        A column of only strings becomes large_string, of booleans bool, of integers int64, of integers and floats
        float64 if every integer is exact in it. Anything else (objects, arrays, a mixture, integers beyond 64 bits,
        numbers beyond the largest float) becomes large_string with the JSON text of each value, and `is_json` is True.
        Half of a surrogate pair is decoded as U+FFFD.
        """
        if name not in self._columns:
            self._decode(name)
        return self._columns[name].array

    def remember(self, name: str, texts: pa.Array) -> None:
        """Reuse texts under a key that were already decoded instead of searching for them again."""
        self._columns[name] = Column(texts, False)

    def columns(self, names: Sequence[str]) -> dict[str, pa.Array]:
        """Several columns by name; keys that were not located before are found together in one pass."""
        self._find(names)
        return {name: self.column(name) for name in names}

    def is_json(self, name: str) -> bool:
        """Whether `column` returns JSON text for this key rather than decoded values."""
        if name not in self._columns:
            self._decode(name)
        return self._columns[name].is_json

    def _decode(self, name: str) -> None:
        if name in self._waiting:
            waiting, rows = self._waiting.pop(name)
            self._columns[name] = Column(waiting.array.take(pa.array(rows)), waiting.is_json)
            return
        if name not in self._fields:
            self._scan([name])
        self._columns[name] = decode_column(self.buffer, self._fields[name])

    def python_values(self, name: str) -> list[Any]:
        """Each value as Python's `json` parses it; None if the key is missing."""
        self._find([name])
        field = self._fields[name]
        there = None if field.kinds.all() else field.kinds != MISSING
        texts = arrow_texts(pa.large_string(), self.buffer, field.starts, field.ends, there).fill_null("null")
        data, offsets, _ = string_parts(texts)
        out = np.empty(len(data) + len(texts), np.uint8)
        used = json_write.gather(data.ctypes.data, offsets[:-1], offsets[1:], ord(","), out)
        return python_list(b"[" + out[: max(used - 1, 0)].tobytes() + b"]")

    def nested(self, name: str) -> pa.Array | None:
        """A struct or list array of a column that holds only objects or only arrays; otherwise None.

        Also None if the values do not fit one Arrow type without loss. A key that is missing from an object is null in
        the struct.
        """
        self._find([name])
        kinds = self._fields[name].kinds
        present = np.unique(kinds[kinds > NULL])
        if len(present) != 1 or present[0] not in (OBJECT, ARRAY):
            return None
        return arrow_nested(lines_of([self._raw(name)], ["v"], len(self)))

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
        """`length` records (or all remaining ones), starting at `start`."""
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
        """The same records in a buffer of their own."""
        offsets = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self.ends - self.starts, out=offsets[1:])
        out = np.empty(int(offsets[-1]), np.uint8)
        json_write.gather(self.buffer.ctypes.data, self.starts, self.ends, -1, out)
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
        """The raw records as a large_binary array; without a copy if they are contiguous."""
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
        """The records as JSON lines, each with its line end; every byte that need not change is kept.

        Of duplicate keys in a record, the last is replaced; dropping removes all.

        Args:
            changes: For a top-level key, new values and the rows they apply to (None for all): an old value is replaced
                in place, a missing key is added at the end. Values of Arrow's JSON type (`pa.json_()`) are written as
                JSON.
            fields: Write only these keys, in this order; a key missing in a record stays missing.
            drop: Keys to omit.
        """
        new = {
            name: self._new_texts(name, *change)
            for name, change in (changes or {}).items()
            if name not in drop and (fields is None or name in fields)
        }
        if fields is not None:
            return self._encode_fields([name for name in dict.fromkeys(fields) if name not in drop], new)
        records = self._without(drop) if drop else self
        if new:
            return records._encode_changed(new)
        out = np.empty(records.nbytes + len(self), np.uint8)
        json_write.gather(records.buffer.ctypes.data, records.starts, records.ends, ord("\n"), out)
        return out

    def _encode_fields(self, fields: Sequence[str], new: Mapping[str, Pieces]) -> Bytes:
        self._find([name for name in fields if name not in new or (new[name].lengths < 0).any()])
        texts = []
        for name in fields:
            text = new.get(name)
            if text is None or (text.lengths < 0).any():
                raw = self._raw(name)
                if text is not None:
                    chosen = text.lengths >= 0
                    raw.addresses[chosen], raw.lengths[chosen] = text.addresses[chosen], text.lengths[chosen]
                text = raw
            texts.append(text)
        return lines_of(texts, fields, len(self))

    def _encode_changed(self, new: Mapping[str, Pieces]) -> Bytes:
        names = list(new)
        self._find(names)
        found = [self._fields[name] for name in names]
        addresses = np.stack([text.addresses for text in new.values()])
        lengths = np.stack([text.lengths for text in new.values()])
        present = np.stack([field.kinds for field in found])
        keys, key_offsets = key_texts(names)
        added = ((present == MISSING) & (lengths >= 0)).sum(axis=1)
        room = self.nbytes + len(self) + int(np.maximum(lengths, 0).sum())
        out = np.empty(room + int((added * (np.diff(key_offsets) + 1)).sum()), np.uint8)
        used = json_write.splice_records(
            self.buffer.ctypes.data, self.starts, self.ends, np.stack([field.starts for field in found]),
            np.stack([field.ends for field in found]), present, addresses, lengths, keys, key_offsets, out,
        )  # fmt: skip
        return out[:used]

    def _new_texts(self, name: str, values: pa.Array, mask: Flags | None) -> Pieces:
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if len(values) != len(self):
            raise UsageError(
                f"New values of {name!r} are for {len(values)} rows, but there are {len(self)} records. Pass one "
                "value per record and a mask for the rows that change.",
                field=name,
                rows=len(values),
                records=len(self),
            )
        if mask is None or mask.all():
            return pieces_of(json_texts(values))
        texts = pieces_of(json_texts(values.filter(pa.array(mask))))
        addresses, lengths = np.zeros(len(self), np.int64), np.full(len(self), -1, np.int64)
        addresses[mask], lengths[mask] = texts.addresses, texts.lengths
        return Pieces(texts.owner, addresses, lengths)

    def _without(self, drop: Collection[str]) -> JsonRecords:
        names, name_offsets = packed([name.encode("utf-8", "surrogatepass") for name in drop])
        out = np.empty(self.nbytes + BLOCK, np.uint8)
        offsets = np.empty(len(self) + 1, np.int64)
        json_scan.drop_members(
            self.buffer.ctypes.data, len(self.buffer), self.starts, self.ends, names, name_offsets, out, offsets
        )
        return JsonRecords(out, offsets[:-1], offsets[1:])

    def _scan(self, names: Sequence[str]) -> Bytes:
        starts, ends, kinds, status, keys = json_scan.scan_records(
            self.buffer.ctypes.data,
            len(self.buffer),
            self.starts,
            self.ends,
            [name.encode("utf-8", "surrogatepass") for name in names],
        )
        self._fields.update({name: Field(starts[row], ends[row], kinds[row]) for row, name in enumerate(names)})
        self._keys = [key.decode("utf-8", "replace") for key in keys]
        return status

    def _find(self, names: Sequence[str]) -> None:
        unknown = dict.fromkeys(filterfalse(self._fields.__contains__, names))
        if unknown:
            self._scan(list(unknown))

    def _raw(self, name: str) -> Pieces:
        """The JSON text of each value as it appears in its record; none if the key is missing."""
        self._find([name])
        field = self._fields[name]
        lengths = np.where(field.kinds == MISSING, -1, field.ends - field.starts)
        return Pieces(self.buffer, field.starts + self.buffer.ctypes.data, lengths)
