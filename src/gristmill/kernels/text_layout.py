"""Statistics of lines and paragraphs as the published rules of Gopher and FineWeb define them.

Lines here are those of `str.splitlines` (Gopher's quality rules), the pieces between runs of newlines (its repetition
rules), or the lines between newlines that are not blank (FineWeb).
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.byte_masks import byte_masks
from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import BLOCK, trailing_zeros
from gristmill.kernels.text_column import Integers, Mask, TextColumn
from gristmill.kernels.text_lines import count_newlines, room_for_pieces, unique_pieces
from gristmill.kernels.unicode_classes import TERMINAL, class_tables
from gristmill.kernels.utf8 import (
    ONE,
    character_start,
    count_points,
    decode,
    flags_of,
    line_break_width,
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


# What can begin a line break or an ellipsis character, and full stops.
_masks = byte_masks(b"\n\x0b\x0c\r\x1c\x1d\x1e\xc2\xe2", b".")
_newline_mask = byte_masks(b"\n")


@leaf
def _count_line(data, begin, end, counts):
    counts[BROKEN_LINES] += 1
    left = begin
    if left < end and not 33 <= data[left] < 0x80:
        left = strip_left(data, begin, end)
    if left == end:
        return
    right = end
    if not 33 <= data[right - 1] < 0x80:
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
def _add_dots(dots, run, counts):
    """Count the ellipses among the full stops of a block, after a run of `run`; returns the run at its end."""
    while dots:
        first = trailing_zeros(dots)
        length = trailing_zeros(~(dots >> np.uint64(first)))
        if first:
            counts[ELLIPSES] += run // 3
            run = 0
        run += length
        if first + length == BLOCK:
            return run
        counts[ELLIPSES] += run // 3
        run = 0
        dots &= ~(((ONE << np.uint64(length)) - ONE) << np.uint64(first))
    return 0


@leaf
def _count_finished(data, begin, end, short, pages, flags, counts):
    """Count a line between newlines that is not blank."""
    if begin == end or (not 33 <= data[begin] < 0x80 and strip_left(data, begin, end) == end):
        return
    point, _ = decode(data, character_start(data, end - 1, begin))
    if flags_of(point, pages, flags) & TERMINAL:
        counts[FINISHED_LINES] += 1
    # Characters are counted only if the number of bytes does not decide.
    if end - begin <= short or (end - begin <= 4 * short and count_points(data, begin, end) <= short):
        counts[SHORT_LINES] += 1


@routine
def _scan(data, begin, end, short, pages, flags, starts, lengths, counts):
    """Count lines and ellipses, and write the pieces between runs of newlines; returns how many of those there are."""
    broken = line = piece = begin
    pieces = 0
    run = np.int64(0)
    at = begin
    while at < end:
        special, dots = _masks(data, at, end)
        if dots & (dots << ONE) or (run and dots & ONE):
            run = _add_dots(dots, run, counts)
        else:
            counts[ELLIPSES] += run // 3
            run = np.int64(dots >> np.uint64(63))
        while special:
            stop = at + trailing_zeros(special)
            byte = data[stop]
            special &= special - ONE
            if byte == 10:
                _count_finished(data, line, stop, short, pages, flags, counts)
                if piece < stop or stop == begin:
                    starts[pieces] = piece
                    lengths[pieces] = stop - piece
                    pieces += 1
                piece = line = stop + 1
            elif byte == 0xE2 and stop + 2 < end and data[stop + 1] == 0x80 and data[stop + 2] == 0xA6:
                counts[ELLIPSES] += 1
            if stop >= broken:
                width = line_break_width(data, stop, end)
                if width:
                    _count_line(data, broken, stop, counts)
                    broken = stop + width
        at += BLOCK
    counts[ELLIPSES] += run // 3
    if broken < end:
        _count_line(data, broken, end, counts)
    _count_finished(data, line, end, short, pages, flags, counts)
    starts[pieces] = piece
    lengths[pieces] = end - piece
    return pieces + 1


@routine
def _paragraphs(data, begin, end, starts, lengths):
    """Write the pieces between runs of two or more newlines; returns how many."""
    pieces = 0
    piece = begin
    line = begin
    at = begin
    while at < end:
        (newlines,) = _newline_mask(data, at, end)
        while newlines:
            stop = at + trailing_zeros(newlines)
            newlines &= newlines - ONE
            if line == stop and stop > begin:
                # The second newline of a run ends a paragraph, those behind it only move the next one.
                if piece < stop:
                    starts[pieces] = piece
                    lengths[pieces] = stop - 1 - piece
                    pieces += 1
                piece = stop + 1
            line = stop + 1
        at += BLOCK
    starts[pieces] = piece
    lengths[pieces] = end - piece
    return pieces + 1


@kernel
def _layout(data, offsets, alive, short, pages, flags, out):
    room = 1024
    starts, lengths, hashes, slots = room_for_pieces(room)
    for row in range(len(alive)):
        if not alive[row]:
            continue
        begin = offsets[row]
        end = offsets[row + 1]
        counts = out[row]
        newlines, continuing = count_newlines(data, begin, end)
        if newlines + 1 > room:
            room = 2 * newlines
            starts, lengths, hashes, slots = room_for_pieces(room)
        lines = _scan(data, begin, end, short, pages, flags, starts, lengths, counts)
        distinct, chars = unique_pieces(data, starts, lengths, hashes, lines, slots, continuing == 0)
        counts[RUN_LINES] = lines
        counts[REPEATED_RUN_LINES] = lines - distinct
        counts[REPEATED_RUN_LINE_CHARS] = end - begin - continuing - newlines - chars
        left = strip_left(data, begin, end)
        right = strip_right(data, left, end)
        paragraphs = _paragraphs(data, left, right, starts, lengths)
        distinct, chars = unique_pieces(data, starts, lengths, hashes, paragraphs, slots, continuing == 0)
        total = 0
        for piece in range(paragraphs):
            total += lengths[piece]
        if continuing:
            total = 0
            for piece in range(paragraphs):
                total += count_points(data, starts[piece], starts[piece] + lengths[piece])
        counts[RUN_PARAGRAPHS] = paragraphs
        counts[REPEATED_RUN_PARAGRAPHS] = paragraphs - distinct
        counts[REPEATED_RUN_PARAGRAPH_CHARS] = total - chars


def layout_counts(column: TextColumn, alive: Mask, *, short_line_chars: int = 30) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per statistic."""
    out = np.zeros((len(column), WIDTH), dtype=np.int64)
    pages, flags = class_tables()
    _layout(column.data, column.offsets, alive, short_line_chars, pages, flags, out)
    return out
