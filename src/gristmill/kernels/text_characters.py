"""Counts of characters in one pass over the bytes of each document: by class, in URLs, and members of given sets."""

from __future__ import annotations

import string

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import load8
from gristmill.kernels.text_column import Bytes, Integers, Mask, TextColumn
from gristmill.kernels.unicode_classes import ALPHABETIC, class_tables
from gristmill.kernels.utf8 import HIGH_BITS, byte_table, decode, flags_of

# Columns of the result.
N_CHARS = 0
PLAIN_CHARS = 1  # a-z A-Z 0-9 newline ? ! , .
DIGIT_CHARS = 2  # 0-9
WHITE_CHARS = 3  # tab, newline, return, backspace, space
BRACKET_CHARS = 4  # ( ) [ ] { } and the angle brackets U+27E8, U+27E9
HASH_CHARS = 5
ALPHABETIC_CHARS = 6
URL_CHARS = 7
ADULT_URLS = 8
WIDTH = 9

# Columns of the result of `count_sets`.
CHARS, FIRST_SET, SECOND_SET, LINES, LONGEST_LINE = range(5)

_COLON_FIELD = 7
_BYTE = np.uint64(255)
_ALPHANUMERIC = (string.ascii_letters + string.digits).encode()


def _packed_counters() -> np.ndarray:
    """For every byte, what it adds to eight counters of eight bits each that live in one number."""
    table = np.zeros(256, dtype=np.uint64)
    classes: list[set[int]] = [
        {byte for byte in range(256) if byte & 0xC0 != 0x80},
        set(_ALPHANUMERIC + b"\n?!,."),
        set(b"0123456789"),
        set(b"\t\n\r\b "),
        set(b"()[]{}"),
        set(b"#"),
        set(string.ascii_letters.encode()),
        set(b":"),
    ]
    for field, members in enumerate(classes):
        for byte in members:
            table[byte] |= np.uint64(1 << (8 * field))
    return table


_PACKED = _packed_counters()
# Which bytes continue a URL: 1 for those allowed as they are, 2 for the sign of a percent escape, 4 for hex.
_URL = byte_table({1: _ALPHANUMERIC + b"$-_@.&+/:=?#~!*(),", 2: b"%", 4: string.hexdigits.encode()})


@leaf
def _url_at(data, colon, floor, end):
    """Start and end of the URL whose scheme ends at `colon`; the end is 0 when there is none."""
    if colon + 3 >= end or data[colon + 1] != 47 or data[colon + 2] != 47:
        return colon, 0
    start = colon - 4
    if start >= floor and data[colon - 1] == 115:  # s
        start -= 1
    if (
        start < floor
        or data[start] != 104
        or data[start + 1] != 116
        or data[start + 2] != 116
        or data[start + 3] != 112
    ):
        return colon, 0
    stop = colon + 3
    while stop < end:
        kind = _URL[data[stop]]
        if kind & 1:
            stop += 1
        elif kind & 2 and stop + 2 < end and _URL[data[stop + 1]] & 4 and _URL[data[stop + 2]] & 4:
            stop += 3
        else:
            break
    if stop == colon + 3:
        return colon, 0
    return start, stop


@routine
def _count_urls(data, begin, end, out):
    """The characters in URLs and whether a URL names adult content."""
    free = begin
    for position in range(begin, end):
        if data[position] != 58 or position < free:
            continue
        start, stop = _url_at(data, position, free, end)
        if stop:
            out[URL_CHARS] += stop - start
            free = stop
            for at in range(start, stop - 3):
                if data[at] == 112 and data[at + 1] == 111 and data[at + 2] == 114 and data[at + 3] == 110:
                    out[ADULT_URLS] = 1
                    break


@routine
def _count_wide(data, begin, end, pages, flags, out):
    """What characters beyond ASCII add: the angle brackets and the alphabetic ones."""
    brackets = 0
    alphabetic = 0
    size = len(data)
    at = begin
    while at < end:
        if at + 8 <= size and load8(data, at) & HIGH_BITS == 0:
            at += 8
            continue
        point, width = decode(data, at)
        at += width
        if width > 1:
            brackets += point == 0x27E8 or point == 0x27E9
            alphabetic += flags_of(point, pages, flags) & ALPHABETIC != 0
    out[BRACKET_CHARS] += brackets
    out[ALPHABETIC_CHARS] += alphabetic


@kernel
def _characters(data, offsets, alive, pages, flags, out):
    for row in range(len(alive)):
        if not alive[row]:
            continue
        begin = offsets[row]
        end = offsets[row + 1]
        counts = out[row]
        colons = np.int64(0)
        at = begin
        while at < end:
            # Eight counters of eight bits hold 255 bytes before one could run over.
            stop = min(at + 252, end)
            packed = np.uint64(0)
            for position in range(at, stop):
                packed += _PACKED[data[position]]
            at = stop
            for field in range(_COLON_FIELD):
                counts[field] += np.int64((packed >> np.uint64(8 * field)) & _BYTE)
            colons += np.int64((packed >> np.uint64(8 * _COLON_FIELD)) & _BYTE)
        if colons:
            _count_urls(data, begin, end, counts)
        if counts[N_CHARS] != end - begin:
            _count_wide(data, begin, end, pages, flags, counts)


def character_counts(column: TextColumn, alive: Mask) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per class."""
    out = np.zeros((len(column), WIDTH), dtype=np.int64)
    pages, flags = class_tables()
    _characters(column.data, column.offsets, alive, pages, flags, out)
    return out


@kernel
def count_sets(data: Bytes, offsets: Integers, starts: Integers, ends: Integers, alive: Mask, sets: Bytes) -> Integers:
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
            point, width = decode(data, at)
            at += width
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
