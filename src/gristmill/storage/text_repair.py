"""Repairs text that is not UTF-8: invalid bytes become U+FFFD, as with `bytes.decode("utf-8", "replace")`.

Only for readers with `errors="replace"`; imported when a document needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels import utf8
from gristmill.storage.json_records import JsonRecords
from gristmill.storage.valid_text import find_invalid_text

Bytes = npt.NDArray[np.uint8]
Integers = npt.NDArray[np.int64]
MARK = "\ufffd".encode()
RECORD = "record"
"""Placeholder for an unknown column: the repaired text is a key, or a value that no stage reads."""


class Repair(NamedTuple):
    """A repaired document: its row number, the (first) repaired column, and the number of U+FFFD inserted."""

    row: int
    column: str
    marks: int


class RepairedRecords(NamedTuple):
    """Records, some of them repaired.

    Attributes:
        buffer: The original bytes, followed by the repaired records.
        starts: Where each record starts.
        ends: Where each record ends.
        repaired: Which records were repaired.
        places: For each of these, the byte (from its start) at which the first U+FFFD was inserted.
        marks: For each of these, the number of U+FFFD inserted.
    """

    buffer: Bytes
    starts: Integers
    ends: Integers
    repaired: Integers
    places: Integers
    marks: Integers

    def told(self, records: JsonRecords, numbers: Integers, kept: Integers) -> Iterator[Repair]:
        """The repairs, once the records were read.

        Args:
            records: Those that could be read.
            numbers: The row numbers of all records.
            kept: The row numbers of `records`.
        """
        where = np.searchsorted(kept, numbers[self.repaired])
        for at, row, place, marks in zip(where, numbers[self.repaired], self.places, self.marks, strict=True):
            if at < len(kept) and kept[at] == row:
                yield Repair(int(row), records.key_at(int(at), int(place)) or RECORD, int(marks))


def repair(text: bytes) -> tuple[bytes, int]:
    """The text as valid UTF-8, and the number of U+FFFD inserted."""
    fixed = text.decode("utf-8", "replace").encode()
    # An U+FFFD that was there is three bytes which no error can be a part of.
    return fixed, fixed.count(MARK) - text.count(MARK)


def repair_records(buffer: Bytes, starts: Integers, ends: Integers) -> RepairedRecords:
    """Records with their text repaired; the same arrays if nothing was wrong."""
    invalid = np.zeros(len(starts), np.bool_)
    utf8.find_invalid_utf8(buffer.ctypes.data, starts, ends, invalid)
    rows = np.flatnonzero(invalid)
    places, marks = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    if not len(rows):
        return RepairedRecords(buffer, starts, ends, rows, places, marks)
    starts, ends, at = starts.copy(), ends.copy(), len(buffer)
    pieces = [buffer.tobytes()]
    for number, row in enumerate(rows.tolist()):
        text = buffer[starts[row] : ends[row]].tobytes()
        try:
            text.decode()
        except UnicodeDecodeError as error:
            places[number] = error.start
        fixed, marks[number] = repair(text)
        starts[row], ends[row] = at, at + len(fixed)
        pieces += [fixed, b"\n"]
        at += len(fixed) + 1
    return RepairedRecords(np.frombuffer(bytearray(b"".join(pieces)), np.uint8), starts, ends, rows, places, marks)


def repair_table(table: pa.Table, rows: Integers) -> tuple[pa.Table, list[Repair]]:
    """A table with its texts repaired, and the repairs of the rows with these numbers.

    Other problems, such as texts outside of their buffers, are not repaired.
    """
    found: dict[int, Repair] = {}
    for place, name in enumerate(table.column_names):
        invalid = find_invalid_text(table.select([place]))
        if invalid is None:
            continue
        old = table.column(place)
        new = pa.chunked_array([_repaired(chunk) for chunk in old.chunks], old.type)
        table = table.set_column(place, table.schema.field(place), new)
        for at in np.flatnonzero(invalid[0]).tolist():
            row = int(rows[at])
            before = found.get(row, Repair(row, name, 0))
            found[row] = before._replace(marks=before.marks + _count_marks(new.slice(at, 1), old.slice(at, 1)))
    return table, sorted(found.values())


def _repaired(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pa.array([None if text is None else repair(text)[0].decode() for text in _as_bytes(array)], kind)
    if pa.types.is_dictionary(kind):
        return pa.DictionaryArray.from_arrays(array.indices, _repaired(array.dictionary), ordered=kind.ordered)
    if not pa.types.is_nested(kind) or _cannot_be_followed(array):
        return array
    array = array.take(pa.array(np.arange(len(array))))  # no longer a slice: its children begin where it does
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(kind):
        children = [_repaired(array.field(number)) for number in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=nulls)
    if pa.types.is_map(kind):
        children = [_repaired(array.keys), _repaired(array.items)]
        return pa.MapArray.from_arrays(array.offsets, *children, kind, mask=nulls)
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(_repaired(array.values), type=kind, mask=nulls)
    return type(array).from_arrays(array.offsets, _repaired(array.values), kind, mask=nulls)


def _cannot_be_followed(array: pa.Array) -> bool:
    try:
        array.validate()
    except pa.ArrowInvalid:
        return True
    return bool(pa.types.is_union(array.type))


def _as_bytes(array: pa.Array) -> list[bytes | None]:
    texts: list[bytes | None] = array.cast(
        pa.binary() if pa.types.is_string(array.type) else pa.large_binary()
    ).to_pylist()
    return texts


def _count_marks(new: pa.ChunkedArray, old: pa.ChunkedArray) -> int:
    """The number of U+FFFD added to each row; in nested values, the total number."""
    if pa.types.is_nested(new.type) or pa.types.is_dictionary(new.type):
        return repr(new.to_pylist()).count("\ufffd")
    return sum(repair(text)[1] for chunk in old.chunks for text in _as_bytes(chunk) if text is not None)
