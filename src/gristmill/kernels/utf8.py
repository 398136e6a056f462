"""UTF-8 for every kernel: decoding characters, white space and line breaks, counting, comparing and validating bytes.

White space is that of Python's `str`, line breaks are those of `str.splitlines`. All take arrays of valid UTF-8, except
`find_invalid_utf8` and `invalid_rows`, which check it. For invalid bytes the results of the others are meaningless, but
they stay inside the array and inside Unicode.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import inlined, kernel, leaf, routine
from gristmill.kernels.machine import (
    WIDTH,
    address_of,
    bit_count,
    high_mask,
    load8,
    load_byte,
    trailing_zeros,
    utf8_error_mask,
)

HIGH_BITS = np.uint64(0x8080808080808080)
LOW_SEVEN = np.uint64(0x7F7F7F7F7F7F7F7F)
NEWLINE_BYTES = np.uint64(0x0A0A0A0A0A0A0A0A)
ZERO = np.uint64(0)
ONE = np.uint64(1)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_LOW_BITS = np.uint64(0x0101010101010101)

SPACE = 1  # ASCII white space of str.isspace
MAYBE_SPACE = 2  # first byte of a wide white space character


def byte_table(flags: Mapping[int, bytes]) -> npt.NDArray[np.uint8]:
    """For each of the 256 bytes, the flags whose bytes it is one of."""
    table = np.zeros(256, np.uint8)
    for flag, members in flags.items():
        table[list(members)] |= np.uint8(flag)
    return table


SPACES = byte_table({SPACE: b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f ", MAYBE_SPACE: b"\xc2\xe1\xe2\xe3"})


@leaf
def decode(data, at):
    """The character at a place: its code point and its number of bytes."""
    first = np.int64(data[at])
    if first < 0x80:
        return first, 1
    left = len(data) - at
    if first < 0xE0:
        if left < 2:
            return np.int64(0xFFFD), 1
        return (first & 0x1F) << 6 | (np.int64(data[at + 1]) & 0x3F), 2
    if first < 0xF0:
        if left < 3:
            return np.int64(0xFFFD), 1
        return (first & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | (np.int64(data[at + 2]) & 0x3F), 3
    if left < 4:
        return np.int64(0xFFFD), 1
    point = (
        (first & 0x07) << 18
        | (np.int64(data[at + 1]) & 0x3F) << 12
        | (np.int64(data[at + 2]) & 0x3F) << 6
        | (np.int64(data[at + 3]) & 0x3F)
    )
    return min(point, np.int64(0x10FFFF)), 4


@leaf
def flags_of(point, pages, flags):
    """The classes of a code point, from the tables of `unicode_classes` or others of their layout."""
    return flags[np.int64(pages[point >> 8]) * 256 + (point & 255)]


@leaf
def character_start(data, at, floor):
    """The first byte of the character that has a byte at `at`."""
    while at > floor and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


@leaf
def next_character(data, at, end):
    """Where the character after the one at `at` begins, or `end`."""
    at += 1
    while at < end and data[at] & 0xC0 == 0x80:
        at += 1
    return at


@routine
def space_width(data, at, end):
    """Bytes of the white space character at `at`, 0 when it is another one."""
    kind = SPACES[data[at]]
    if kind & SPACE:
        return 1
    if not kind & MAYBE_SPACE:
        return 0
    first = data[at]
    if first == 0xC2:
        if at + 1 < end and (data[at + 1] == 0x85 or data[at + 1] == 0xA0):
            return 2
        return 0
    if at + 2 >= end:
        return 0
    second = data[at + 1]
    third = data[at + 2]
    if first == 0xE2:
        if second == 0x80:
            if 0x80 <= third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF:
                return 3
        elif second == 0x81 and third == 0x9F:
            return 3
    elif first == 0xE3:
        if second == 0x80 and third == 0x80:
            return 3
    elif second == 0x9A and third == 0x80:
        return 3
    return 0


@routine
def strip_left(data, begin, end):
    """Where a range begins without its leading white space."""
    while begin < end:
        width = space_width(data, begin, end)
        if not width:
            break
        begin += width
    return begin


@routine
def strip_right(data, begin, end):
    """Where a range ends without its trailing white space."""
    while end > begin:
        last = character_start(data, end - 1, begin)
        if not space_width(data, last, end):
            break
        end = last
    return end


@leaf
def next_newline(data, at, end):
    """Where the next newline is, or `end`."""
    while at + 8 <= end:
        chunk = load8(data, at) ^ NEWLINE_BYTES
        # Exact for the lowest zero byte, which is all that is needed.
        zeros = (chunk - _LOW_BITS) & ~chunk & HIGH_BITS
        if zeros:
            return at + (trailing_zeros(zeros) >> 3)
        at += 8
    while at < end:
        if data[at] == 10:
            return at
        at += 1
    return end


@leaf
def line_break_width(data, at, end):
    """Bytes of the line break of str.splitlines at a place, 0 when there is none."""
    byte = data[at]
    if byte == 13:
        return 2 if at + 1 < end and data[at + 1] == 10 else 1
    if 10 <= byte <= 12 or 0x1C <= byte <= 0x1E:
        return 1
    if byte == 0xC2:
        return 2 if at + 1 < end and data[at + 1] == 0x85 else 0
    if byte == 0xE2 and at + 2 < end and data[at + 1] == 0x80 and (data[at + 2] == 0xA8 or data[at + 2] == 0xA9):
        return 3
    return 0


@leaf
def load_part(data, at, length):
    """The first `length` (1 to 8) bytes from `at` on as one number, also at the very end of the data."""
    if at + 8 <= len(data):
        return load8(data, at) & (ALL >> np.uint64(64 - 8 * length))
    part = ZERO
    for position in range(length):
        part |= np.uint64(data[at + position]) << np.uint64(8 * position)
    return part


@leaf
def count_points(data, begin, end):
    """Characters in a byte range."""
    continuations = 0
    at = begin
    while at + 8 <= end:
        chunk = load8(data, at)
        continuations += bit_count(chunk & ~(chunk << ONE) & HIGH_BITS)
        at += 8
    if at < end:
        chunk = load_part(data, at, end - at)
        continuations += bit_count(chunk & ~(chunk << ONE) & HIGH_BITS)
    return end - begin - continuations


@routine
def same_bytes(data, one, other, length):
    """Whether two ranges of one length hold the same bytes."""
    at = 0
    while at + 8 <= length:
        if load8(data, one + at) != load8(data, other + at):
            return False
        at += 8
    return at == length or load_part(data, one + at, length - at) == load_part(data, other + at, length - at)


@leaf
def starts_with(data, at, end, text):
    """Whether the bytes from `at` on, and before `end`, begin with `text`; `at` may be negative."""
    if at < 0 or end - at < len(text):
        return False
    for position in range(len(text)):  # noqa: SIM110 - compiled code has no generators
        if data[at + position] != text[position]:
            return False
    return True


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
        unfinished = 1
        while i + WIDTH <= end:
            high = high_mask(base + i)
            # Most blocks are plain ASCII, and no character before them continues into them.
            if (high | unfinished) != 0 and utf8_error_mask(base + i) != 0:
                return False
            unfinished = high >> (WIDTH - 3)
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
def find_invalid_utf8(
    base: int, starts: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], invalid: npt.NDArray[np.bool_]
) -> int:
    """Mark the spans of the buffer at address `base` that are not valid UTF-8 (RFC 3629); how many there are."""
    count = 0
    for row in range(len(starts)):
        invalid[row] = not _is_utf8(base, starts[row], ends[row])
        count += invalid[row]
    return count


@kernel
def invalid_rows(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which rows of a column are not valid UTF-8, or lie outside of its bytes; takes read-only arrays."""
    base, size = address_of(data), len(data)
    invalid = np.zeros(len(offsets) - 1, np.bool_)
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        invalid[row] = start < 0 or end < start or end > size or not _is_utf8(base, start, end)
    return invalid
