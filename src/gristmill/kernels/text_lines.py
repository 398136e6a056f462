r"""Statistics of the lines and paragraphs of each document: how they begin and end, and how many are repeated.

A line is what `text.split("\n")` gives and is not blank; a paragraph is what `text.split("\n\n")` gives.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, routine
from gristmill.kernels.machine import bit_count, load8
from gristmill.kernels.text_column import Integers, Mask, TextColumn
from gristmill.kernels.utf8 import (
    HIGH_BITS,
    LOW_SEVEN,
    NEWLINE_BYTES,
    ONE,
    decode,
    load_part,
    next_newline,
    same_bytes,
    strip_left,
    strip_right,
)

# Columns of the result.
N_LINES = 0
LINE_CHARS = 1
UNIQUE_LINES = 2
UNIQUE_LINE_CHARS = 3
OPEN_LINES = 4  # without . ? ! " ' at the end
ELLIPSIS_LINES = 5
BULLET_LINES = 6
NEWLINES = 7
N_PARAGRAPHS = 8
PARAGRAPH_CHARS = 9
UNIQUE_PARAGRAPHS = 10
UNIQUE_PARAGRAPH_CHARS = 11
WIDTH = 12

_MIX = np.uint64(0x9E3779B97F4A7C15)
_HALF = np.uint64(29)

_BULLETS = np.array(sorted(map(ord, "•‣⁃⁌⁍∙○●◘◦⦾⦿")), dtype=np.int64)
_READ_MORE = np.frombuffer(b"read more", dtype=np.uint8)


@routine
def hash_and_count(data, begin, end):
    """A 64-bit hash of a byte range and its number of characters."""
    mixed = np.uint64(end - begin) * _MIX
    continuations = 0
    at = begin
    while at + 8 <= end:
        chunk = load8(data, at)
        continuations += bit_count(chunk & ~(chunk << ONE) & HIGH_BITS)
        mixed = (mixed ^ chunk) * _MIX
        mixed ^= mixed >> _HALF
        at += 8
    if at < end:
        chunk = load_part(data, at, end - at)
        continuations += bit_count(chunk & ~(chunk << ONE) & HIGH_BITS)
        mixed = (mixed ^ chunk) * _MIX
        mixed ^= mixed >> _HALF
    return mixed, end - begin - continuations


@routine
def unique_pieces(data, starts, lengths, hashes, chars, count, slots):
    """How many of the first `count` pieces are distinct, and their characters."""
    if count == 1:
        return 1, chars[0]
    size = 4
    while size < 2 * count:
        size *= 2
    slots[:size] = -1
    distinct = 0
    total = 0
    for piece in range(count):
        slot = np.int64(hashes[piece] & np.uint64(size - 1))
        fresh = True
        while slots[slot] >= 0:
            seen = slots[slot]
            if (
                hashes[seen] == hashes[piece]
                and lengths[seen] == lengths[piece]
                and same_bytes(data, starts[seen], starts[piece], lengths[piece])
            ):
                fresh = False
                break
            slot = (slot + 1) & (size - 1)
        if fresh:
            slots[slot] = piece
            distinct += 1
            total += chars[piece]
    return distinct, total


@routine
def _ends_with_ellipsis(data, begin, end):
    """Whether stripped, lower-cased text ends in ... [...] (...) … […] -» "read more" or "read more.."."""
    length = end - begin
    last = data[end - 1]
    if last == 46:
        if length >= 3 and data[end - 2] == 46:
            if data[end - 3] == 46:
                return True
            return _ends_with_read_more(data, begin, end - 2)
        return False
    if last == 93 or last == 41:  # ] )
        opening = 91 if last == 93 else 40
        if length < 5:
            return False
        if data[end - 5] == opening and data[end - 4] == 46 and data[end - 3] == 46 and data[end - 2] == 46:
            return True
        return (
            last == 93
            and data[end - 5] == 91
            and data[end - 4] == 0xE2
            and data[end - 3] == 0x80
            and data[end - 2] == 0xA6
        )
    if last == 0xA6:
        return length >= 3 and data[end - 3] == 0xE2 and data[end - 2] == 0x80
    if last == 0xBB:
        return length >= 3 and data[end - 3] == 45 and data[end - 2] == 0xC2
    return _ends_with_read_more(data, begin, end)


@routine
def _ends_with_read_more(data, begin, end):
    start = end - len(_READ_MORE)
    if start < begin:
        return False
    for position in range(len(_READ_MORE)):
        byte = data[start + position]
        if 65 <= byte <= 90:
            byte += 32
        if byte != _READ_MORE[position]:
            return False
    return True


@routine
def _starts_with_bullet(data, begin, end):
    if data[begin] != 0xE2 or begin + 2 >= end:
        return False
    point, _ = decode(data, begin)
    for position in range(len(_BULLETS)):  # noqa: SIM110 - compiled code has no generators
        if _BULLETS[position] == point:
            return True
    return False


@routine
def _count_newlines(data, at, end):
    count = 0
    while at + 8 <= end:
        chunk = load8(data, at) ^ NEWLINE_BYTES
        count += 8 - bit_count((((chunk & LOW_SEVEN) + LOW_SEVEN) | chunk) & HIGH_BITS)
        at += 8
    while at < end:
        if data[at] == 10:
            count += 1
        at += 1
    return count


@kernel
def _lines(data, offsets, alive, out):
    room = 1024
    starts = np.empty(room, dtype=np.int64)
    lengths = np.empty(room, dtype=np.int64)
    chars = np.empty(room, dtype=np.int64)
    hashes = np.empty(room, dtype=np.uint64)
    slots = np.empty(4 * room, dtype=np.int64)
    for row in range(len(alive)):
        if not alive[row]:
            continue
        begin = offsets[row]
        end = offsets[row + 1]
        counts = out[row]
        newlines = _count_newlines(data, begin, end)
        counts[NEWLINES] = newlines
        if newlines + 1 > room:
            while newlines + 1 > room:
                room *= 2
            starts = np.empty(room, dtype=np.int64)
            lengths = np.empty(room, dtype=np.int64)
            chars = np.empty(room, dtype=np.int64)
            hashes = np.empty(room, dtype=np.uint64)
            slots = np.empty(4 * room, dtype=np.int64)
        # Paragraphs: the bounds are found among the newlines, then the pieces are compared.
        pieces = 0
        paragraph = begin
        at = begin
        while True:
            stop = next_newline(data, at, end)
            if stop + 1 < end and data[stop + 1] == 10:
                starts[pieces] = paragraph
                lengths[pieces] = stop - paragraph
                pieces += 1
                paragraph = stop + 2
                at = paragraph
            elif stop >= end:
                break
            else:
                at = stop + 1
        starts[pieces] = paragraph
        lengths[pieces] = end - paragraph
        pieces += 1
        total = 0
        for piece in range(pieces):
            hashes[piece], chars[piece] = hash_and_count(data, starts[piece], starts[piece] + lengths[piece])
            total += chars[piece]
        counts[N_PARAGRAPHS] = pieces
        counts[PARAGRAPH_CHARS] = total
        counts[UNIQUE_PARAGRAPHS], counts[UNIQUE_PARAGRAPH_CHARS] = unique_pieces(
            data, starts, lengths, hashes, chars, pieces, slots
        )
        # Lines, in the same scratch space.
        pieces = 0
        total = 0
        at = begin
        while at < end:
            stop = next_newline(data, at, end)
            left = strip_left(data, at, stop)
            if left < stop:
                right = strip_right(data, left, stop)
                last = data[right - 1]
                if not (last == 46 or last == 63 or last == 33 or last == 34 or last == 39):
                    counts[OPEN_LINES] += 1
                if _ends_with_ellipsis(data, left, right):
                    counts[ELLIPSIS_LINES] += 1
                if _starts_with_bullet(data, left, right):
                    counts[BULLET_LINES] += 1
                starts[pieces] = at
                lengths[pieces] = stop - at
                hashes[pieces], chars[pieces] = hash_and_count(data, at, stop)
                total += chars[pieces]
                pieces += 1
            at = stop + 1
        counts[N_LINES] = pieces
        counts[LINE_CHARS] = total
        if pieces:
            counts[UNIQUE_LINES], counts[UNIQUE_LINE_CHARS] = unique_pieces(
                data, starts, lengths, hashes, chars, pieces, slots
            )


def line_counts(column: TextColumn, alive: Mask) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per statistic."""
    out = np.zeros((len(column), WIDTH), dtype=np.int64)
    _lines(column.data, column.offsets, alive, out)
    return out
