"""Where the lines of a buffer lie, and where the records in them start and end."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_NEWLINE = 10
# The comparison's result stays in the processor's cache at this size.
_SCAN_BYTES = 1 << 20
_EASY_STEPS = 8


def newline_positions(buffer: NDArray[np.uint8], begin: int, end: int) -> NDArray[np.int64]:
    """The index of every newline in ``buffer[begin:end]``, ascending."""
    hits = np.empty(min(_SCAN_BYTES, max(end - begin, 0)), np.bool_)
    found: list[NDArray[np.int64]] = []
    for at in range(begin, end, _SCAN_BYTES):
        piece = buffer[at : min(at + _SCAN_BYTES, end)]
        mask = hits[: len(piece)]
        np.equal(piece, _NEWLINE, out=mask)
        positions = np.flatnonzero(mask)
        positions += at
        found.append(positions)
    return np.concatenate(found) if found else np.empty(0, np.int64)


def trim_spans(buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Move `starts` and `ends`, in place, past the spaces, tabs and carriage returns at the borders of each span."""
    _trim(buffer, starts, ends, starts, 0, 1)
    _trim(buffer, starts, ends, ends, -1, -1)
    # What is still padded after a few steps is rare and may be long: let bytes.strip run over it.
    rest = np.flatnonzero(ends > starts)
    rest = rest[is_space(buffer[starts[rest]]) | is_space(buffer[ends[rest] - 1])]
    for row in rest.tolist():
        text = buffer[starts[row] : ends[row]].tobytes()
        starts[row] += len(text) - len(text.lstrip(b" \t\r"))
        ends[row] = starts[row] + len(text.strip(b" \t\r"))


def _trim(
    buffer: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    border: NDArray[np.int64],
    inside: int,
    step: int,
) -> None:
    rows = np.flatnonzero(ends > starts)
    for _ in range(_EASY_STEPS):
        rows = rows[is_space(buffer[border[rows] + inside])]
        if not len(rows):
            return
        border[rows] += step
        rows = rows[ends[rows] > starts[rows]]


def is_space(byte: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Where `byte` is a space, tab or carriage return."""
    found: NDArray[np.bool_] = (byte == 32) | (byte == 13) | (byte == 9)
    return found
