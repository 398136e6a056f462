"""Lines, paragraphs and sentences of a column of texts, and the hashes used to compare them.

A line ends at a newline; a paragraph is a run of lines that are not blank; a sentence ends at a line end, or after a
mark that ends sentences (and quotes or brackets that close behind it) if white space follows. Units exclude surrounding
white space, and white space alone is not a unit.
"""

from __future__ import annotations

import string
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gristmill.kernels.arrays import grown
from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Bytes, Integers
from gristmill.kernels.unicode_classes import TERMINAL, class_tables
from gristmill.kernels.utf8 import count_points, decode, flags_of, next_newline, space_width, strip_left, strip_right

LINE = 0
PARAGRAPH = 1
SENTENCE = 2

Hashes = npt.NDArray[np.uint64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0xD6E8FEB86659FD93)
_SPACE = np.uint8(32)
_SKIPPED = np.uint8(0)


def unit_tables() -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    """What `find_units` needs to know of characters."""
    return class_tables()


@leaf
def _is_closer(byte):
    """Quotes and brackets that belong to the sentence they close: " ' ) ] }."""
    return byte == 34 or byte == 39 or byte == 41 or byte == 93 or byte == 125


@routine
def _sentence_end(data, at, stop, pages, flags):
    """Where the sentence at `at` ends, at the latest at `stop`."""
    while at < stop:
        byte = data[at]
        if byte < 128:
            width = 1
            ends = byte == 46 or byte == 33 or byte == 63
        else:
            point, width = decode(data, at)
            ends = flags_of(point, pages, flags) & TERMINAL != 0
        at += width
        if ends:
            while at < stop and _is_closer(data[at]):
                at += 1
            # Quotes beyond ASCII that close: ” ’ »
            while (
                at + 2 < stop
                and data[at] == 0xE2
                and data[at + 1] == 0x80
                and (data[at + 2] == 0x9D or data[at + 2] == 0x99)
            ):
                at += 3
            if at >= stop or space_width(data, at, stop):
                return min(at, stop)
    return stop


@routine
def _unit_end(data, at, stop, end, kind, pages, flags):
    """Where the unit that begins at `at` (not white space) ends, white space behind it included; its line at `stop`."""
    if kind == SENTENCE:
        return _sentence_end(data, at, stop, pages, flags)
    if kind == PARAGRAPH:
        while stop < end:
            following = next_newline(data, stop + 1, end)
            if strip_left(data, stop + 1, following) == following:
                break
            stop = following
    return stop


@kernel
def find_units(
    data: Bytes,
    offsets: Integers,
    kind: int,
    min_chars: int,
    pages: npt.NDArray[np.uint16],
    flags: npt.NDArray[np.uint16],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The units of every row that have at least `min_chars` characters.

    Unit `u` is `data[starts[u]:ends[u]]`; row `i` has the units `bounds[i]` to `bounds[i + 1]`.
    """
    rows = len(offsets) - 1
    room = (offsets[rows] - offsets[0]) // 32 + rows + 16
    starts, ends = np.empty(room, np.int64), np.empty(room, np.int64)
    bounds = np.zeros(rows + 1, np.int64)
    count = 0
    for row in range(rows):
        end = offsets[row + 1]
        at = strip_left(data, offsets[row], end)
        newline = at
        while at < end:
            if at >= newline:  # once per line, which may have any number of sentences
                newline = next_newline(data, at, end)
            stop = _unit_end(data, at, newline, end, kind, pages, flags)
            last = strip_right(data, at, stop)
            if last - at >= min_chars and (min_chars <= 1 or count_points(data, at, last) >= min_chars):
                if count == len(starts):
                    room = 2 * count
                    starts, ends = grown(starts, room), grown(ends, room)
                starts[count], ends[count] = at, last
                count += 1
            at = strip_left(data, stop, end)
        bounds[row + 1] = count
    return starts[:count].copy(), ends[:count].copy(), bounds


@lru_cache
def letter_table(*, case: bool = True, punctuation: bool = True, digits: bool = True) -> Bytes:
    """By byte, what it counts as when units are compared: itself, a space, or nothing (0).

    Args:
        case: Whether ASCII letters of different case differ.
        punctuation: Whether ASCII punctuation counts.
        digits: Whether digits differ from each other.
    """
    table = np.arange(256, dtype=np.uint8)
    table[list(b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\x00")] = _SPACE
    if not punctuation:
        table[list(string.punctuation.encode())] = _SKIPPED
    if not digits:
        table[list(string.digits.encode())] = ord("0")
    if not case:
        upper = list(string.ascii_uppercase.encode())
        table[upper] = np.array(upper, np.uint8) + 32
    table.flags.writeable = False
    return table


@leaf
def _word(scratch, at):
    return (
        np.uint64(scratch[at])
        | np.uint64(scratch[at + 1]) << np.uint64(8)
        | np.uint64(scratch[at + 2]) << np.uint64(16)
        | np.uint64(scratch[at + 3]) << np.uint64(24)
        | np.uint64(scratch[at + 4]) << np.uint64(32)
        | np.uint64(scratch[at + 5]) << np.uint64(40)
        | np.uint64(scratch[at + 6]) << np.uint64(48)
        | np.uint64(scratch[at + 7]) << np.uint64(56)
    )


@leaf
def final_mix(state):
    """A 64-bit state with every bit of it spread over all others."""
    state = (state ^ (state >> np.uint64(32))) * _P3
    state = (state ^ (state >> np.uint64(29))) * _P1
    return state ^ (state >> np.uint64(32))


@kernel
def unit_hashes(
    data: Bytes, starts: Integers, ends: Integers, bounds: Integers, salts: Hashes, table: Bytes
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """Two 64-bit hashes of every unit, made in different ways from its bytes and the salt of its row.

    Runs of ASCII white space count as a space; the other bytes as `table` says. Units that the table leaves nothing of
    (only punctuation, say) are hashed as they are.
    """
    count = len(starts)
    first, second = np.empty(count, np.uint64), np.empty(count, np.uint64)
    longest = 0
    for unit in range(count):
        longest = max(longest, ends[unit] - starts[unit])
    scratch = np.zeros(longest + 16, np.uint8)
    for row in range(len(bounds) - 1):
        salt = salts[row]
        for unit in range(bounds[row], bounds[row + 1]):
            size = 0
            space = False
            for at in range(starts[unit], ends[unit]):
                byte = table[data[at]]
                if byte == _SKIPPED:
                    continue
                if byte == _SPACE:
                    space = size > 0
                    continue
                if space:
                    scratch[size] = _SPACE
                    size += 1
                    space = False
                scratch[size] = byte
                size += 1
            if size == 0:
                for at in range(starts[unit], ends[unit]):
                    scratch[size] = data[at]
                    size += 1
            for at in range(size, size + 8):
                scratch[at] = 0
            one, other = salt ^ _P2, (np.uint64(size) + salt) * _P3
            for at in range(0, size, 8):
                word = _word(scratch, at)
                one = (one ^ word) * _P1
                one ^= one >> np.uint64(29)
                other = (other + word) * _P2
                other = (other << np.uint64(31)) | (other >> np.uint64(33))
            first[unit] = final_mix(one + np.uint64(size))
            second[unit] = final_mix(other)
    return first, second
