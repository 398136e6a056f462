"""Words as `str.split` finds them: white space of 64 bytes at a time becomes a bit mask, whose edges are the words."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import leaf, routine
from gristmill.kernels.text_loads import bit_count, load8, trailing_zeros

SPACE = 1  # ASCII white space of str.isspace
MAYBE_SPACE = 2  # first byte of a wide white space character

HIGH_BITS = np.uint64(0x8080808080808080)
_LOW_SEVEN = np.uint64(0x7F7F7F7F7F7F7F7F)
# Added to seven-bit bytes these set the high bit of those from 0x09, 0x0E, 0x1C and 0x21 on: the bounds of the two
# ranges of ASCII white space.
_FROM_TAB = np.uint64(0x7777777777777777)
_FROM_SHIFT_OUT = np.uint64(0x7272727272727272)
_FROM_SEPARATOR = np.uint64(0x6464646464646464)
_FROM_EXCLAMATION = np.uint64(0x5F5F5F5F5F5F5F5F)
# Moves the lowest bit of each byte into one byte, in order.
_GATHER = np.uint64(0x0102040810204080)
ONE = np.uint64(1)
ZERO = np.uint64(0)
ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_SEVEN = np.uint64(7)
_TOP = np.uint64(56)


def _byte_kinds() -> np.ndarray:
    table = np.zeros(256, dtype=np.uint8)
    for byte in b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f ":
        table[byte] |= SPACE
    for byte in b"\xc2\xe1\xe2\xe3":
        table[byte] |= MAYBE_SPACE
    return table


_KINDS = _byte_kinds()


@routine
def space_width(data, at, end):
    """Bytes of the white space character at `at`, 0 when it is another one."""
    kind = _KINDS[data[at]]
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
def block_masks(data, at, end):
    """For the 64 bytes from `at` on: which are ASCII white space (or lie past `end`), and which are not ASCII."""
    spaces = ZERO
    wide = ZERO
    if at + 64 <= end:
        for part in range(8):
            chunk = load8(data, at + 8 * part)
            low = chunk & _LOW_SEVEN
            found = ((low + _FROM_TAB) & ~(low + _FROM_SHIFT_OUT)) | (
                (low + _FROM_SEPARATOR) & ~(low + _FROM_EXCLAMATION)
            )
            shift = np.uint64(8 * part)
            spaces |= ((((found & ~chunk & HIGH_BITS) >> _SEVEN) * _GATHER) >> _TOP) << shift
            wide |= ((((chunk & HIGH_BITS) >> _SEVEN) * _GATHER) >> _TOP) << shift
        return spaces, wide
    left = end - at
    for part in range((left + 7) // 8):
        chunk = load_part(data, at + 8 * part, min(8, left - 8 * part))
        low = chunk & _LOW_SEVEN
        found = ((low + _FROM_TAB) & ~(low + _FROM_SHIFT_OUT)) | ((low + _FROM_SEPARATOR) & ~(low + _FROM_EXCLAMATION))
        shift = np.uint64(8 * part)
        spaces |= ((((found & ~chunk & HIGH_BITS) >> _SEVEN) * _GATHER) >> _TOP) << shift
        wide |= ((((chunk & HIGH_BITS) >> _SEVEN) * _GATHER) >> _TOP) << shift
    return spaces | (ALL << np.uint64(left)), wide


@routine
def add_wide_spaces(data, at, end, spaces, wide, carried):
    """The space mask with white space beyond ASCII added.

    Returns also the bytes of it that reach into the next block, and how many more bytes than characters it has.
    """
    if carried:
        spaces |= (ONE << np.uint64(carried)) - ONE
    carried = 0
    surplus = 0
    while wide:
        bit = trailing_zeros(wide)
        wide &= wide - ONE
        if _KINDS[data[at + bit]] & MAYBE_SPACE:
            width = space_width(data, at + bit, end)
            if width:
                spaces |= ((ONE << np.uint64(width)) - ONE) << np.uint64(bit)
                carried = max(0, bit + width - 64)
                surplus += width - 1
    return spaces, carried, surplus


@routine
def split_words(data, begin, end, starts, ends):
    """Write where each word of the text starts and ends.

    The two arrays must have room for one more word than half the bytes. Returns how many words there are, whether all
    is ASCII, and by how many bytes the white space outnumbers its characters.
    """
    opened = 0
    closed = 0
    before = ONE  # a text begins as if a space came before it
    carried = 0
    high = ZERO
    surplus = 0
    at = begin
    while at < end:
        spaces, wide = block_masks(data, at, end)
        if wide or carried:
            high |= wide
            spaces, carried, more = add_wide_spaces(data, at, end, spaces, wide, carried)
            surplus += more
        opening = ~spaces & ((spaces << ONE) | before)
        closing = spaces & ~((spaces << ONE) | before)
        while opening:
            starts[opened] = at + trailing_zeros(opening)
            opened += 1
            opening &= opening - ONE
        while closing:
            ends[closed] = at + trailing_zeros(closing)
            closed += 1
            closing &= closing - ONE
        before = spaces >> np.uint64(63)
        at += 64
    if closed < opened:
        ends[closed] = end
    return opened, high == ZERO, surplus


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
