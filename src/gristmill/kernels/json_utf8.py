"""Is this UTF-8? A whole block at once, 32 bytes at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import inlined, kernel
from gristmill.kernels.json_vector import WIDTH, load_byte, utf8_error_mask

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@inlined
def _walk(base: int, i: int, stop: int, end: int) -> int:
    """Read whole characters until `stop` is reached or passed; where that is, or -1 - the place of the first error."""
    while i < stop:
        byte = load_byte(base + i)
        if byte < 0x80:
            i += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            count = 1
        elif 0xE0 <= byte <= 0xEF:
            count = 2
            low = 0xA0 if byte == 0xE0 else 0x80
            high = 0x9F if byte == 0xED else 0xBF
        elif 0xF0 <= byte <= 0xF4:
            count = 3
            low = 0x90 if byte == 0xF0 else 0x80
            high = 0x8F if byte == 0xF4 else 0xBF
        else:
            return -1 - i
        for k in range(1, count + 1):
            if i + k >= end:
                return -1 - i
            byte = load_byte(base + i + k)
            if byte < low or byte > high:
                return -1 - i
            low, high = 0x80, 0xBF
        i += count + 1
    return i


@inlined
def _is_utf8(base: int, start: int, end: int) -> bool:
    i = start
    if end - start > 2 * WIDTH:
        # The vectors look three bytes back, so they start at a character that has three bytes before it.
        i = _walk(base, start, start + 3, end)
        if i < 0:
            return False
        while i + WIDTH <= end:
            if utf8_error_mask(base + i) != 0:
                return False
            i += WIDTH
        # A character may lie across the last border: read it again from its first byte.
        for _ in range(4):
            if load_byte(base + i - 1) < 0x80:
                break
            i -= 1
            if load_byte(base + i) >= 0xC0:
                break
    return _walk(base, i, end, end) >= 0


@kernel
def find_invalid_utf8(base: int, starts: Integers, ends: Integers, invalid: Flags) -> int:
    """Mark the spans of the buffer at address `base` that are not valid UTF-8 (RFC 3629); how many there are."""
    count = 0
    for row in range(len(starts)):
        invalid[row] = not _is_utf8(base, starts[row], ends[row])
        count += invalid[row]
    return count
