"""Cuts passages from a column of texts, and converts their positions to characters."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import address_of, copy_bytes
from gristmill.kernels.text_column import Bytes, Integers
from gristmill.kernels.utf8 import count_points, strip_left, strip_right


@leaf
def _newlines(data, begin, end):
    count = 0
    for at in range(begin, end):
        count += data[at] == 10
    return count


@routine
def _widened(data, begin, end, start, stop):
    """The passage from `start` to `stop` with the white space to remove with it, within a text.

    Of the white space on both sides, the one with more newlines is kept, so that lines and paragraphs stay separate.
    """
    before = strip_right(data, begin, start)
    after = strip_left(data, stop, end)
    if before == begin:
        return (begin, end) if after == end else (start, after)
    if after == end or _newlines(data, stop, after) > _newlines(data, before, start):
        return before, stop
    return start, after


@kernel
def cut_spans(
    data: Bytes, offsets: Integers, rows: Integers, starts: Integers, ends: Integers, widen: bool
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The column without some passages.

    Args:
        data: The bytes of the column.
        offsets: Its offsets.
        rows: The row of each passage, ascending.
        starts: Where each begins in `data`, ascending within a row; passages do not overlap.
        ends: Where each ends.
        widen: Also remove the white space on one side of a passage, as between lines or words. Passages with only
            white space between them count as one.
    """
    count = len(offsets) - 1
    out = np.empty(offsets[count] - offsets[0], np.uint8)
    out_offsets = np.zeros(count + 1, np.int64)
    source, target = address_of(data), address_of(out)
    size = 0
    span = 0
    for row in range(count):
        begin, end = offsets[row], offsets[row + 1]
        at = begin
        while span < len(rows) and rows[span] == row:
            start, stop = starts[span], ends[span]
            span += 1
            if widen:
                while span < len(rows) and rows[span] == row and strip_left(data, stop, starts[span]) == starts[span]:
                    stop = ends[span]
                    span += 1
                start, stop = _widened(data, begin, end, start, stop)
            start = max(start, at)
            copy_bytes(target + size, source + at, start - at)
            size += start - at
            at = max(at, stop)
        copy_bytes(target + size, source + at, end - at)
        size += end - at
        out_offsets[row + 1] = size
    return out[:size].copy(), out_offsets


@kernel
def character_places(
    data: Bytes, offsets: Integers, rows: Integers, starts: Integers, ends: Integers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Where passages begin and end in characters of their row; they are sorted as in `cut_spans`."""
    first, last = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    row, at, chars = -1, 0, 0
    for span in range(len(rows)):
        if rows[span] != row:
            row, chars = rows[span], 0
            at = offsets[row]
        chars += count_points(data, at, starts[span])
        first[span] = chars
        chars += count_points(data, starts[span], ends[span])
        last[span] = chars
        at = ends[span]
    return first, last
