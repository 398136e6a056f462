"""Statistics of lines and paragraphs as the published rules of Gopher and FineWeb cut them.

Lines here are what `str.splitlines` gives (Gopher's quality rules), what splitting at runs of newlines gives (its
repetition rules), or the lines between newlines that are not blank (FineWeb).
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, routine
from gristmill.kernels.text_column import Integers, Mask, TextColumn
from gristmill.kernels.text_lines import hash_and_count, unique_pieces
from gristmill.kernels.unicode_classes import TERMINAL, class_tables
from gristmill.kernels.utf8 import (
    character_start,
    count_points,
    decode,
    flags_of,
    line_break_width,
    next_newline,
    strip_left,
    strip_right,
)

# Columns of the result.
BROKEN_LINES = 0  # lines of str.splitlines
DASHED_LINES = 1  # of those, beginning with • or - after white space
TRAILING_LINES = 2  # of those, ending with ... or … before white space
ELLIPSES = 3  # ... and … anywhere
RUN_LINES = 4  # pieces between runs of newlines, empty ones at the ends included
REPEATED_RUN_LINES = 5
REPEATED_RUN_LINE_CHARS = 6
RUN_PARAGRAPHS = 7  # pieces of the stripped text between runs of two or more newlines
REPEATED_RUN_PARAGRAPHS = 8
REPEATED_RUN_PARAGRAPH_CHARS = 9
FINISHED_LINES = 10  # lines between newlines, not blank, whose last character ends a sentence
SHORT_LINES = 11  # lines between newlines, not blank, of at most a given number of characters
WIDTH = 12


# The bytes that can begin a line break or an ellipsis.
_SPECIAL = np.array([byte < 32 or byte in (46, 0xC2, 0xE2) for byte in range(256)], dtype=np.bool_)


@routine
def _count_line(data, begin, end, counts):
    counts[BROKEN_LINES] += 1
    left = strip_left(data, begin, end)
    if left == end:
        return
    right = strip_right(data, left, end)
    if data[left] == 45 or (
        left + 2 < right and data[left] == 0xE2 and data[left + 1] == 0x80 and data[left + 2] == 0xA2
    ):
        counts[DASHED_LINES] += 1
    if right - left >= 3 and (
        (data[right - 3] == 46 and data[right - 2] == 46 and data[right - 1] == 46)
        or (data[right - 3] == 0xE2 and data[right - 2] == 0x80 and data[right - 1] == 0xA6)
    ):
        counts[TRAILING_LINES] += 1


@routine
def _broken_lines(data, begin, end, counts):
    at = begin
    line = begin
    dots = 0
    while at < end:
        byte = data[at]
        if not _SPECIAL[byte]:
            dots = 0
            at += 1
            continue
        if byte == 46:
            dots += 1
            if dots == 3:
                counts[ELLIPSES] += 1
                dots = 0
        else:
            dots = 0
            if byte == 0xE2 and at + 2 < end and data[at + 1] == 0x80 and data[at + 2] == 0xA6:
                counts[ELLIPSES] += 1
            width = line_break_width(data, at, end)
            if width:
                _count_line(data, line, at, counts)
                at += width
                line = at
                continue
        at += 1
    if line < end:
        _count_line(data, line, end, counts)


@routine
def _cut_at_runs(data, begin, end, least, starts, lengths):
    """Write the pieces between runs of at least `least` newlines; returns how many."""
    pieces = 0
    piece = begin
    at = begin
    while True:
        at = next_newline(data, at, end)
        if at >= end:
            break
        stop = at
        while stop < end and data[stop] == 10:
            stop += 1
        if stop - at >= least:
            starts[pieces] = piece
            lengths[pieces] = at - piece
            pieces += 1
            piece = stop
        at = stop
    starts[pieces] = piece
    lengths[pieces] = end - piece
    return pieces + 1


@routine
def _finished_lines(data, begin, end, short, pages, flags, counts):
    at = begin
    while at < end:
        stop = next_newline(data, at, end)
        if strip_left(data, at, stop) < stop:
            point, _ = decode(data, character_start(data, stop - 1, at))
            if flags_of(point, pages, flags) & TERMINAL:
                counts[FINISHED_LINES] += 1
            # Characters are counted only where the bytes leave it open.
            if stop - at <= short or (stop - at <= 4 * short and count_points(data, at, stop) <= short):
                counts[SHORT_LINES] += 1
        at = stop + 1


@routine
def _repeats(data, starts, lengths, hashes, chars, pieces, slots):
    """How many pieces occurred before, and their characters."""
    total = 0
    for piece in range(pieces):
        hashes[piece], chars[piece] = hash_and_count(data, starts[piece], starts[piece] + lengths[piece])
        total += chars[piece]
    distinct, distinct_chars = unique_pieces(data, starts, lengths, hashes, chars, pieces, slots)
    return pieces - distinct, total - distinct_chars


@kernel
def _layout(data, offsets, alive, short, pages, flags, out):
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
        newlines = 0
        for at in range(begin, end):
            newlines += data[at] == 10
        if newlines + 1 > room:
            while newlines + 1 > room:
                room *= 2
            starts = np.empty(room, dtype=np.int64)
            lengths = np.empty(room, dtype=np.int64)
            chars = np.empty(room, dtype=np.int64)
            hashes = np.empty(room, dtype=np.uint64)
            slots = np.empty(4 * room, dtype=np.int64)
        _broken_lines(data, begin, end, counts)
        _finished_lines(data, begin, end, short, pages, flags, counts)
        pieces = _cut_at_runs(data, begin, end, 1, starts, lengths)
        counts[RUN_LINES] = pieces
        counts[REPEATED_RUN_LINES], counts[REPEATED_RUN_LINE_CHARS] = _repeats(
            data, starts, lengths, hashes, chars, pieces, slots
        )
        left = strip_left(data, begin, end)
        right = strip_right(data, left, end)
        pieces = _cut_at_runs(data, left, right, 2, starts, lengths)
        counts[RUN_PARAGRAPHS] = pieces
        counts[REPEATED_RUN_PARAGRAPHS], counts[REPEATED_RUN_PARAGRAPH_CHARS] = _repeats(
            data, starts, lengths, hashes, chars, pieces, slots
        )


def layout_counts(column: TextColumn, alive: Mask, *, short_line_chars: int = 30) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per statistic."""
    out = np.zeros((len(column), WIDTH), dtype=np.int64)
    pages, flags = class_tables()
    _layout(column.data, column.offsets, alive, short_line_chars, pages, flags, out)
    return out
