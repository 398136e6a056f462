"""Cuts passages out of texts, with some characters around each, and copies passages out of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.arrays import copy_items
from gristmill.kernels.compiler import kernel, leaf
from gristmill.kernels.text_column import Bytes, Integers

_CONTINUES = np.uint8(0x80)
_KIND = np.uint8(0xC0)
_LINE_END = np.uint8(0x0A)


@leaf
def _back(data, at, floor, characters):
    """The position this many characters before `at`, at least `floor`."""
    while characters > 0 and at > floor:
        at -= 1
        while at > floor and data[at] & _KIND == _CONTINUES:
            at -= 1
        characters -= 1
    return at


@leaf
def _onward(data, at, end, characters):
    """The position this many characters after `at`, at most `end`."""
    while characters > 0 and at < end:
        at += 1
        while at < end and data[at] & _KIND == _CONTINUES:
            at += 1
        characters -= 1
    return at


@leaf
def _has_characters(data, at, end, characters):
    return _onward(data, at, end, characters) < end or _count(data, at, end) >= characters


@leaf
def _count(data, at, end):
    found = 0
    for place in range(at, end):
        found += data[place] & _KIND != _CONTINUES
    return found


@kernel
def cut_passages(
    data: Bytes,
    offsets: Integers,
    bounds: Integers,
    firsts: Integers,
    lasts: Integers,
    window: int,
    min_piece: int,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The texts without passages, and into how many pieces each was split.

    The passages of text `t` are `bounds[t]` to `bounds[t + 1]`, sorted, as bytes from and to within the text. Each is
    removed with `window` characters on either side. Pieces between them of fewer than `min_piece` characters are
    removed too; the others are joined by an empty line. A text without passages is unchanged.

    Returns the new bytes, where each text begins, and the number of pieces before short ones were removed.
    """
    rows = len(offsets) - 1
    result = np.empty(offsets[rows] - offsets[0] + 2 * len(firsts) + 1, np.uint8)
    starts = np.zeros(rows + 1, np.int64)
    pieces = np.ones(rows, np.int64)
    at = 0
    for row in range(rows):
        begin, end = offsets[row], offsets[row + 1]
        written = 0
        if bounds[row] == bounds[row + 1]:
            copy_items(result, at, data[begin:end], end - begin)
            at += end - begin
        else:
            count, left = 0, begin
            for number in range(bounds[row], bounds[row + 1] + 1):
                stop, after = end, end
                if number < bounds[row + 1]:
                    stop = _back(data, begin + firsts[number], begin, window)
                    after = _onward(data, begin + lasts[number], end, window)
                if stop > left:
                    count += 1
                    if _has_characters(data, left, stop, min_piece):
                        if written > 0:
                            result[at] = result[at + 1] = _LINE_END
                            at += 2
                        copy_items(result, at, data[left:stop], stop - left)
                        at += stop - left
                        written += 1
                left = max(left, after)
            pieces[row] = count
        starts[row + 1] = at
    return result[:at].copy(), starts, pieces


@kernel
def excerpts(
    data: Bytes, firsts: Integers, lasts: Integers, most: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Passages of a text column, each cut to `most` bytes at the end of a character, one after the other."""
    bounds = np.zeros(len(firsts) + 1, np.int64)
    for number in range(len(firsts)):
        end = lasts[number]
        if end - firsts[number] > most:
            end = firsts[number] + most
            while end > firsts[number] and data[end] & _KIND == _CONTINUES:
                end -= 1
        bounds[number + 1] = bounds[number] + end - firsts[number]
    result = np.empty(bounds[-1], np.uint8)
    for number in range(len(firsts)):
        size = bounds[number + 1] - bounds[number]
        copy_items(result, bounds[number], data[firsts[number] : firsts[number] + size], size)
    return result, bounds
