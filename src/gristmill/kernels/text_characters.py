"""Counts of characters by class, and of the characters in URLs, in one pass over the bytes of each document."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Integers, Mask, TextColumn
from gristmill.kernels.text_loads import load8
from gristmill.kernels.unicode_classes import ALPHABETIC, class_tables

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

_COLON_FIELD = 7
_HIGH_BITS = np.uint64(0x8080808080808080)
_BYTE = np.uint64(255)


def _packed_counters() -> np.ndarray:
    """For every byte, what it adds to eight counters of eight bits each that live in one number."""
    table = np.zeros(256, dtype=np.uint64)
    classes: list[set[int]] = [
        {byte for byte in range(256) if byte & 0xC0 != 0x80},
        set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789\n?!,."),
        set(b"0123456789"),
        set(b"\t\n\r\b "),
        set(b"()[]{}"),
        set(b"#"),
        set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"),
        set(b":"),
    ]
    for field, members in enumerate(classes):
        for byte in members:
            table[byte] |= np.uint64(1 << (8 * field))
    return table


def _url_bytes() -> np.ndarray:
    """Which bytes continue a URL: 1 for those allowed as they are, 2 for the sign of a percent escape, 4 for hex."""
    table = np.zeros(256, dtype=np.uint8)
    for byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789$-_@.&+/:=?#~!*(),":
        table[byte] |= 1
    table[ord("%")] |= 2
    for byte in b"0123456789abcdefABCDEF":
        table[byte] |= 4
    return table


_PACKED = _packed_counters()
_URL = _url_bytes()


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
        if at + 8 <= size and load8(data, at) & _HIGH_BITS == 0:
            at += 8
            continue
        first = np.int64(data[at])
        if first < 0x80:
            at += 1
            continue
        if first < 0xE0:
            point = (first & 0x1F) << 6 | (np.int64(data[at + 1]) & 0x3F)
            at += 2
        elif first < 0xF0:
            point = (first & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | (np.int64(data[at + 2]) & 0x3F)
            at += 3
            if point == 0x27E8 or point == 0x27E9:
                brackets += 1
        else:
            point = (
                (first & 0x07) << 18
                | (np.int64(data[at + 1]) & 0x3F) << 12
                | (np.int64(data[at + 2]) & 0x3F) << 6
                | (np.int64(data[at + 3]) & 0x3F)
            )
            at += 4
        if flags[np.int64(pages[point >> 8]) * 256 + (point & 255)] & ALPHABETIC:
            alphabetic += 1
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


def warm() -> None:
    """Load or compile the kernels of this file."""
    from gristmill.kernels.text_column import text_column

    character_counts(text_column(["a"]), np.ones(1, dtype=np.bool_))
