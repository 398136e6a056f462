r"""Statistics of the lines and paragraphs of each document: how they begin and end, and how many are repeated.

A line is a non-blank piece of `text.split("\n")`; a paragraph is a piece of `text.split("\n\n")`.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.byte_masks import CONTINUATIONS, byte_masks
from gristmill.kernels.compiler import inlined, kernel, leaf, routine
from gristmill.kernels.machine import BLOCK, bit_count, load8, trailing_zeros
from gristmill.kernels.text_column import Integers, Mask, TextColumn
from gristmill.kernels.utf8 import (
    HIGH_BITS,
    ONE,
    byte_table,
    count_points,
    decode,
    load_part,
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

_ENDLESS = np.iinfo(np.int64).max
_newline_masks = byte_masks(b"\n", CONTINUATIONS)
_ENDINGS = byte_table({1: b".])\xa6\xbbeE"})  # the last bytes of what counts as an ellipsis
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


@leaf
def _sampled_hash(data, begin, length):
    """A hash of the length and of up to 24 bytes, from both ends and the middle."""
    mixed = np.uint64(length) * _MIX
    if length >= 8:
        mixed = (mixed ^ load8(data, begin)) * _MIX
        mixed ^= mixed >> _HALF
        mixed = (mixed ^ load8(data, begin + (length >> 1) - 4)) * _MIX
        mixed ^= mixed >> _HALF
        mixed = (mixed ^ load8(data, begin + length - 8)) * _MIX
    elif length:
        mixed = (mixed ^ load_part(data, begin, length)) * _MIX
    return mixed ^ (mixed >> _HALF)


@routine
def _distinct(data, starts, lengths, hashes, count, slots, all_ascii, patience):
    """As `unique_pieces`, by given hashes; -1 after more than `patience` comparisons of different pieces."""
    size = 4
    while size < 2 * count:
        size *= 2
    for place in range(size):
        slots[place] = -1
    distinct = 0
    total = 0
    for piece in range(count):
        slot = np.int64(hashes[piece] & np.uint64(size - 1))
        fresh = True
        while slots[slot] >= 0:
            seen = slots[slot]
            if hashes[seen] == hashes[piece] and lengths[seen] == lengths[piece]:
                if same_bytes(data, starts[seen], starts[piece], lengths[piece]):
                    fresh = False
                    break
                patience -= 1
                if patience < 0:
                    return -1, 0
            slot = (slot + 1) & (size - 1)
        if fresh:
            slots[slot] = piece
            distinct += 1
            if all_ascii:
                total += lengths[piece]
            else:
                total += count_points(data, starts[piece], starts[piece] + lengths[piece])
    return distinct, total


@routine
def unique_pieces(data, starts, lengths, hashes, count, slots, all_ascii):
    """How many of the first `count` pieces are distinct, and their characters."""
    for piece in range(count):
        hashes[piece] = _sampled_hash(data, starts[piece], lengths[piece])
    distinct, total = _distinct(data, starts, lengths, hashes, count, slots, all_ascii, count)
    if distinct < 0:
        # Too many pieces differ only outside the sampled bytes.
        for piece in range(count):
            hashes[piece], _ = hash_and_count(data, starts[piece], starts[piece] + lengths[piece])
        distinct, total = _distinct(data, starts, lengths, hashes, count, slots, all_ascii, _ENDLESS)
    return distinct, total


@inlined
def room_for_pieces(room):
    """Scratch space for this many pieces: their beginnings, lengths and hashes, and the table that compares them."""
    integers = np.empty(6 * room, dtype=np.int64)
    return integers[:room], integers[room : 2 * room], np.empty(room, dtype=np.uint64), integers[2 * room :]


@leaf
def count_newlines(data, at, end):
    """How many newlines a text has, and how many bytes that continue a character."""
    newlines = 0
    continuing = 0
    while at < end:
        new, more = _newline_masks(data, at, end)
        newlines += bit_count(new)
        continuing += bit_count(more)
        at += BLOCK
    return newlines, continuing


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


@leaf
def _count_line(data, begin, end, counts):
    """Count what a line is; returns whether it is more than white space."""
    left = begin
    if left < end and not 33 <= data[left] < 0x80:
        left = strip_left(data, begin, end)
    if left == end:
        return False
    right = end
    if not 33 <= data[right - 1] < 0x80:
        right = strip_right(data, left, end)
    last = data[right - 1]
    if not (last == 46 or last == 63 or last == 33 or last == 34 or last == 39):
        counts[OPEN_LINES] += 1
    if _ENDINGS[last] and _ends_with_ellipsis(data, left, right):
        counts[ELLIPSIS_LINES] += 1
    if data[left] == 0xE2 and _starts_with_bullet(data, left, right):
        counts[BULLET_LINES] += 1
    return True


@kernel
def _lines(data, offsets, alive, out):
    room = 1024
    starts, lengths, hashes, slots = room_for_pieces(room)
    paragraph_starts, paragraph_lengths, _, _ = room_for_pieces(room)
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
            paragraph_starts, paragraph_lengths, _, _ = room_for_pieces(room)
        lines = 0
        paragraphs = 0
        blank_chars = 0
        line = paragraph = begin
        at = begin
        while at < end:
            new, _ = _newline_masks(data, at, end)
            while new:
                stop = at + trailing_zeros(new)
                new &= new - ONE
                if _count_line(data, line, stop, counts):
                    starts[lines] = line
                    lengths[lines] = stop - line
                    lines += 1
                else:
                    blank_chars += count_points(data, line, stop)
                    if line == stop and paragraph < stop:
                        # The second of two newlines ends a paragraph, unless the first one ended it already.
                        paragraph_starts[paragraphs] = paragraph
                        paragraph_lengths[paragraphs] = stop - 1 - paragraph
                        paragraphs += 1
                        paragraph = stop + 1
                line = stop + 1
            at += BLOCK
        if _count_line(data, line, end, counts):
            starts[lines] = line
            lengths[lines] = end - line
            lines += 1
        else:
            blank_chars += count_points(data, line, end)
        paragraph_starts[paragraphs] = paragraph
        paragraph_lengths[paragraphs] = end - paragraph
        paragraphs += 1
        chars = end - begin - continuing
        counts[NEWLINES] = newlines
        counts[N_LINES] = lines
        counts[LINE_CHARS] = chars - newlines - blank_chars
        counts[UNIQUE_LINES], counts[UNIQUE_LINE_CHARS] = unique_pieces(
            data, starts, lengths, hashes, lines, slots, continuing == 0
        )
        counts[N_PARAGRAPHS] = paragraphs
        counts[PARAGRAPH_CHARS] = chars - 2 * (paragraphs - 1)
        counts[UNIQUE_PARAGRAPHS], counts[UNIQUE_PARAGRAPH_CHARS] = unique_pieces(
            data, paragraph_starts, paragraph_lengths, hashes, paragraphs, slots, continuing == 0
        )


def line_counts(column: TextColumn, alive: Mask) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per statistic."""
    out = np.zeros((len(column), WIDTH), dtype=np.int64)
    _lines(column.data, column.offsets, alive, out)
    return out
