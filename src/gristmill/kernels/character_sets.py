"""How many characters of each document belong to given sets, and how long its lines are, in one pass."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel
from gristmill.kernels.text_column import Bytes, Integers, Mask, text_column

CHARS, FIRST_SET, SECOND_SET, LINES, LONGEST_LINE = range(5)
CODE_POINTS = 0x110000


@kernel
def count_sets(
    data: Bytes, offsets: Integers, starts: Integers, ends: Integers, alive: Mask, sets: Bytes
) -> npt.NDArray[np.int64]:
    """A row of counts per document: characters, members of two sets, lines, characters of the longest line.

    Args:
        data: The bytes of the column.
        offsets: Its offsets.
        starts: Members are counted from here,
        ends: to here.
        alive: Which documents to look at.
        sets: For every code point, bit 1 when it is in the first set and bit 2 when it is in the second.
    """
    rows = len(offsets) - 1
    counts = np.zeros((rows, 5), np.int64)
    for row in range(rows):
        if not alive[row]:
            continue
        at, end = offsets[row], offsets[row + 1]
        start, stop = starts[row], ends[row]
        chars = first = second = line = longest = 0
        lines = 1
        while at < end:
            here = at
            byte = np.int64(data[at])
            if byte < 0x80:
                point = byte
                at += 1
            elif byte < 0xE0:
                point = (byte & 0x1F) << 6 | (np.int64(data[at + 1]) & 0x3F)
                at += 2
            elif byte < 0xF0:
                point = (byte & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | (np.int64(data[at + 2]) & 0x3F)
                at += 3
            else:
                point = (byte & 0x07) << 18 | (np.int64(data[at + 1]) & 0x3F) << 12
                point |= (np.int64(data[at + 2]) & 0x3F) << 6 | (np.int64(data[at + 3]) & 0x3F)
                at += 4
            chars += 1
            if start <= here < stop:
                first += sets[point] & 1
                second += sets[point] >> 1
            if point == 10:
                longest = max(longest, line)
                line = 0
                lines += 1
            else:
                line += 1
        counts[row, 0], counts[row, 1], counts[row, 2] = chars, first, second
        counts[row, 3], counts[row, 4] = lines, max(longest, line)
    return counts


def warm() -> None:
    """Load or compile the kernels of this file."""
    data, offsets, alive = text_column(["a"])
    sets = np.zeros(CODE_POINTS, np.uint8)
    sets.flags.writeable = False
    count_sets(data, offsets, offsets[:-1], offsets[1:], alive, sets)
