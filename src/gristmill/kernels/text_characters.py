"""Counts of characters in one pass over the bytes of each document: by class, in URLs, and members of given sets."""

from __future__ import annotations

import string

import numpy as np

from gristmill.kernels.byte_masks import CONTINUATIONS, DIGITS, LEADS, LETTERS, byte_masks
from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import BLOCK, bit_count, trailing_zeros
from gristmill.kernels.text_column import Bytes, Integers, Mask, TextColumn
from gristmill.kernels.unicode_classes import ALPHABETIC, class_tables
from gristmill.kernels.utf8 import ONE, byte_table, decode, flags_of

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

_ALPHANUMERIC = LETTERS + DIGITS
_masks = byte_masks(CONTINUATIONS, LETTERS, DIGITS, b"\n?!,.", b"\t\n\r\b ", b"()[]{}", b"#", b":", LEADS)
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
def _count_urls(data, at, colons, free, end, out):
    """Count the characters in URLs and check for adult terms; returns where the next URL may begin.

    Args:
        data: The bytes of the column.
        at: Where the block begins
        colons: that has colons at these places.
        free: Where the last URL ended.
        end: Where the text ends.
        out: The counts of the document.
    """
    while colons:
        colon = at + trailing_zeros(colons)
        colons &= colons - ONE
        if colon < free:
            continue
        start, stop = _url_at(data, colon, free, end)
        if stop:
            out[URL_CHARS] += stop - start
            free = stop
            for place in range(start, stop - 3):
                if data[place] == 112 and data[place + 1] == 111 and data[place + 2] == 114 and data[place + 3] == 110:
                    out[ADULT_URLS] = 1
                    break
    return free


@routine
def _count_wide(data, at, leads, pages, flags, out):
    """Count the characters beyond ASCII of a block: angle brackets and alphabetic ones."""
    while leads:
        point, _ = decode(data, at + trailing_zeros(leads))
        leads &= leads - ONE
        out[BRACKET_CHARS] += point == 0x27E8 or point == 0x27E9
        out[ALPHABETIC_CHARS] += flags_of(point, pages, flags) & ALPHABETIC != 0


@kernel
def _characters(data, offsets, alive, pages, flags, out):
    for row in range(len(alive)):
        if not alive[row]:
            continue
        at = free = offsets[row]
        end = offsets[row + 1]
        counts = out[row]
        chars = end - at
        letters = digits = marks = white = brackets = hashes = 0
        while at < end:
            continuing, letter, digit, mark, space, bracket, sign, colons, leads = _masks(data, at, end)
            chars -= bit_count(continuing)
            letters += bit_count(letter)
            digits += bit_count(digit)
            marks += bit_count(mark)
            white += bit_count(space)
            brackets += bit_count(bracket)
            hashes += bit_count(sign)
            if colons:
                free = _count_urls(data, at, colons, free, end, counts)
            if leads:
                _count_wide(data, at, leads, pages, flags, counts)
            at += BLOCK
        counts[N_CHARS] = chars
        counts[PLAIN_CHARS] = letters + digits + marks
        counts[DIGIT_CHARS] = digits
        counts[WHITE_CHARS] = white
        counts[BRACKET_CHARS] += brackets
        counts[HASH_CHARS] = hashes
        counts[ALPHABETIC_CHARS] += letters


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
