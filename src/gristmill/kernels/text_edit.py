"""Edits of a column of texts in compiled passes: cuts spans, removes lines, marks and addresses, splices replacements.

Every kernel reads the bytes and offsets of `text_column` and is linear in them. White space is that of Python's `str`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.compiler import kernel, leaf
from gristmill.kernels.text_column import Bytes, Integers, Mask
from gristmill.kernels.utf8 import (
    character_start,
    next_character,
    next_newline,
    space_width,
    starts_with,
    strip_left,
    strip_right,
)

NEWLINE = 10

FROM_START = 0
BY_INDEX = 1
BY_TEXT = 2


def build_column(data: Bytes, offsets: Integers, valid: Mask) -> pa.LargeStringArray:
    """A string column over the bytes that a kernel wrote; rows that are not `valid` are null."""
    validity = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.LargeStringArray.from_buffers(len(valid), pa.py_buffer(offsets), pa.py_buffer(data), validity)


@leaf
def _copy(source: Bytes, start: int, end: int, target: npt.NDArray[np.uint8], at: int) -> int:
    for i in range(start, end):
        target[at] = source[i]
        at += 1
    return at


@kernel
def gather_spans(data: Bytes, starts: Integers, ends: Integers) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes and offsets of a column whose row `i` is `data[starts[i]:ends[i]]`."""
    offsets = np.zeros(len(starts) + 1, np.int64)
    for row in range(len(starts)):
        offsets[row + 1] = offsets[row] + ends[row] - starts[row]
    out = np.empty(offsets[-1], np.uint8)
    for row in range(len(starts)):
        _copy(data, starts[row], ends[row], out, offsets[row])
    return out, offsets


@kernel
def quotation_spans(data: Bytes, offsets: Integers) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The span of every row without the quotation marks that enclose it, where the first line does not close them."""
    rows = len(offsets) - 1
    starts, ends = offsets[:-1].copy(), offsets[1:].copy()
    for row in range(rows):
        start, end = offsets[row], offsets[row + 1]
        if end - start < 3 or data[start] != 34 or data[end - 1] != 34:
            continue
        closed = False
        for i in range(start, end):
            if data[i] == NEWLINE:
                closed = data[i - 1] == 34
                break
        if not closed:
            starts[row], ends[row] = start + 1, end - 1
    return starts, ends


@leaf
def _find(data: Bytes, start: int, end: int, word: Bytes) -> int:
    for i in range(start, end - len(word) + 1):
        if starts_with(data, i, end, word):
            return i
    return -1


@leaf
def _find_last(data: Bytes, start: int, end: int, word: Bytes) -> int:
    for i in range(end - len(word), start - 1, -1):
        if starts_with(data, i, end, word):
            return i
    return -1


@leaf
def _character_at(data: Bytes, start: int, end: int, index: int) -> int:
    """The byte where character `index` begins, counted as Python's slices count: from the end when negative."""
    if index >= 0:
        at = start
        while index > 0 and at < end:
            at = next_character(data, at, end)
            index -= 1
        return at
    at = end
    while index < 0 and at > start:
        at = character_start(data, at - 1, start)
        index += 1
    return at


@kernel
def slice_spans(
    data: Bytes,
    offsets: Integers,
    left: int,
    left_index: int,
    left_text: Bytes,
    include_left: bool,
    right: int,
    right_index: int,
    right_text: Bytes,
    include_right: bool,
    strip: bool,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The span of every row between two bounds, each FROM_START (the row's own), BY_INDEX or BY_TEXT."""
    rows = len(offsets) - 1
    starts, ends = np.empty(rows, np.int64), np.empty(rows, np.int64)
    for row in range(rows):
        start, end = offsets[row], offsets[row + 1]
        first, last = start, end
        starts[row] = ends[row] = start
        if left == BY_INDEX:
            first = _character_at(data, start, end, left_index)
        elif left == BY_TEXT:
            first = _find(data, start, end, left_text)
            if first < 0:
                continue
            if not include_left:
                first += len(left_text)
        if right == BY_INDEX:
            last = _character_at(data, start, end, right_index)
        elif right == BY_TEXT:
            last = _find_last(data, start, end, right_text)
            if last < 0:
                continue
            if include_right:
                last += len(right_text)
        if strip:
            first = strip_left(data, first, last)
            last = strip_right(data, first, last)
        if first < last:
            starts[row], ends[row] = first, last
    return starts, ends


@kernel
def remove_lines(
    data: Bytes, offsets: Integers, words: Bytes, word_offsets: Integers, by_size: Integers
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The column without the lines that equal one of `words`.

    Args:
        data: The bytes of the column.
        offsets: Its offsets.
        words: The lines to remove, sorted by size, one after the other.
        word_offsets: Their offsets.
        by_size: Words of size `s` have the numbers `by_size[s]` to `by_size[s + 1]`.
    """
    rows = len(offsets) - 1
    longest = len(by_size) - 2
    out = np.empty(offsets[rows] - offsets[0], np.uint8)
    out_offsets = np.zeros(rows + 1, np.int64)
    at = 0
    for row in range(rows):
        end = offsets[row + 1]
        line = offsets[row]
        lines = 0
        while True:
            stop = next_newline(data, line, end)
            size = stop - line
            listed = False
            if size <= longest:
                for word in range(by_size[size], by_size[size + 1]):
                    base = word_offsets[word]
                    k = 0
                    while k < size and data[line + k] == words[base + k]:
                        k += 1
                    if k == size:
                        listed = True
                        break
            if not listed:
                if lines:
                    out[at] = NEWLINE
                    at += 1
                at = _copy(data, line, stop, out, at)
                lines += 1
            if stop >= end:
                break
            line = stop + 1
        out_offsets[row + 1] = at
    return out[:at].copy(), out_offsets


@leaf
def _without_pairs(
    source: npt.NDArray[np.uint8], size: int, target: npt.NDArray[np.uint8], mark: int, width: int
) -> int:
    """Copy `source` without the pairs of `mark` (repeated `width` times) that enclose text on one line."""
    at = 0
    i = 0
    closed = False
    while i < size:
        byte = source[i]
        if byte == NEWLINE:
            closed = False
        elif byte == mark and not closed and (width == 1 or (i + 1 < size and source[i + 1] == mark)):
            j = i + width
            while j < size and source[j] != NEWLINE:
                if source[j] == mark and (width == 1 or (j + 1 < size and source[j + 1] == mark)):
                    break
                j += 1
            if j < size and source[j] != NEWLINE:
                at = _copy(source, i + width, j, target, at)
                i = j + width
                continue
            # No mark closes this one, so none closes a later one of the same line either.
            closed = True
        target[at] = byte
        at += 1
        i += 1
    return at


@leaf
def _without_links(source: npt.NDArray[np.uint8], size: int, target: npt.NDArray[np.uint8]) -> int:
    """Copy `source` with `[text](address)` replaced by the address."""
    at = 0
    i = 0
    closed = False
    while i < size:
        byte = source[i]
        if byte == NEWLINE:
            closed = False
        elif byte == 91 and not closed:
            j = i + 1
            while j < size and source[j] != NEWLINE and not (source[j] == 93 and j + 1 < size and source[j + 1] == 40):
                j += 1
            if j < size and source[j] != NEWLINE:
                k = j + 2
                while k < size and source[k] != NEWLINE and source[k] != 41:
                    k += 1
                if k < size and source[k] != NEWLINE:
                    at = _copy(source, j + 2, k, target, at)
                    i = k + 1
                    continue
            closed = True
        target[at] = byte
        at += 1
        i += 1
    return at


@kernel
def strip_markdown(data: Bytes, offsets: Integers) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The column without the marks of bold, italic and underlined text, and with links reduced to their address."""
    rows = len(offsets) - 1
    out = np.empty(offsets[rows] - offsets[0], np.uint8)
    out_offsets = np.zeros(rows + 1, np.int64)
    longest = 0
    for row in range(rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    one, other = np.empty(longest, np.uint8), np.empty(longest, np.uint8)
    at = 0
    for row in range(rows):
        start, end = offsets[row], offsets[row + 1]
        stars = underlines = brackets = 0
        for i in range(start, end):
            byte = data[i]
            stars += byte == 42
            underlines += byte == 95
            brackets += byte == 91
        if stars < 2 and underlines < 2 and brackets < 1:
            at = _copy(data, start, end, out, at)
        else:
            size = _copy(data, start, end, one, 0)
            size = _without_pairs(one, size, other, 42, 2)
            size = _without_pairs(other, size, one, 42, 1)
            size = _without_pairs(one, size, other, 95, 1)
            size = _without_links(other, size, one)
            at = _copy(one, 0, size, out, at)
        out_offsets[row + 1] = at
    return out[:at].copy(), out_offsets


@leaf
def _address_head(data: Bytes, at: int, end: int) -> int:
    """The end of `http://`, `https://` or `www.` (in any case) at `at`; 0 if there is none."""
    low = data[at] | 0x20
    if low == 119:
        if at + 3 < end and data[at + 1] | 0x20 == 119 and data[at + 2] | 0x20 == 119 and data[at + 3] == 46:
            return at + 4
        return 0
    if low != 104 or at + 6 >= end or data[at + 1] | 0x20 != 116 or data[at + 2] | 0x20 != 116:
        return 0
    if data[at + 3] | 0x20 != 112:
        return 0
    i = at + 4
    if data[i] | 0x20 == 115:
        i += 1
    elif data[i] == 0xC5 and data[i + 1] == 0xBF:
        # The long s, which is the letter s where case does not matter.
        i += 2
    if i + 2 < end and data[i] == 58 and data[i + 1] == 47 and data[i + 2] == 47:
        return i + 3
    return 0


@kernel
def remove_addresses(data: Bytes, offsets: Integers) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The column without words that are, or end in, a web address."""
    rows = len(offsets) - 1
    out = np.empty(offsets[rows] - offsets[0], np.uint8)
    out_offsets = np.zeros(rows + 1, np.int64)
    at = 0
    for row in range(rows):
        i, end = offsets[row], offsets[row + 1]
        kept = i
        while i < end:
            low = data[i] | 0x20
            if low == 104 or low == 119:
                head = _address_head(data, i, end)
                if head and head < end and space_width(data, head, end) == 0:
                    at = _copy(data, kept, i, out, at)
                    i = head
                    while i < end and space_width(data, i, end) == 0:
                        i += 1
                    kept = i
                    continue
            i += 1
        at = _copy(data, kept, end, out, at)
        out_offsets[row + 1] = at
    return out[:at].copy(), out_offsets


@kernel
def splice(
    data: Bytes,
    offsets: Integers,
    starts: Integers,
    ends: Integers,
    choices: Integers,
    words: Bytes,
    word_offsets: Integers,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The column with `data[starts[k]:ends[k]]` replaced by word number `choices[k]`.

    The spans are sorted, do not overlap, and lie each within one row.
    """
    rows = len(offsets) - 1
    size = offsets[rows] - offsets[0]
    for k in range(len(starts)):
        size += starts[k] - ends[k] + word_offsets[choices[k] + 1] - word_offsets[choices[k]]
    out = np.empty(size, np.uint8)
    out_offsets = np.zeros(rows + 1, np.int64)
    at = 0
    k = 0
    for row in range(rows):
        kept, end = offsets[row], offsets[row + 1]
        while k < len(starts) and starts[k] < end:
            at = _copy(data, kept, starts[k], out, at)
            at = _copy(words, word_offsets[choices[k]], word_offsets[choices[k] + 1], out, at)
            kept = ends[k]
            k += 1
        at = _copy(data, kept, end, out, at)
        out_offsets[row + 1] = at
    return out, out_offsets
