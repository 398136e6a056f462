"""The line-level cleaning of C4: each document keeps the lines that pass, or is dropped as a whole."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gristmill.kernels.byte_masks import byte_masks
from gristmill.kernels.compiler import kernel, routine
from gristmill.kernels.machine import BLOCK, address_of, copy_bytes, trailing_zeros
from gristmill.kernels.text_column import Bytes, Integers, Mask, TextColumn
from gristmill.kernels.text_phrases import compile_phrases, kelvin_folded, phrase_kinds
from gristmill.kernels.text_tokens import sentences, tokenize
from gristmill.kernels.unicode_classes import DECIMAL, class_tables
from gristmill.kernels.utf8 import (
    ALL,
    ONE,
    ZERO,
    decode,
    flags_of,
    line_break_width,
    next_character,
    space_width,
    starts_with,
    strip_left,
    strip_right,
)

# The outcome for a document.
KEPT = 0
PLACEHOLDER_TEXT = 1
CURLY_BRACKET = 2
TOO_FEW_SENTENCES = 3

# Columns of the counts of lines.
LINES = 0
KEPT_LINES = 1
LONG_WORD_LINES = 2
OPEN_LINES = 3
SHORT_LINES = 4
SCRIPT_LINES = 5
POLICY_LINES = 6
WIDTH = 7

# Kinds of phrases, as bits.
POLICY = 1
PLACEHOLDER = 2
SCRIPT = 4

# Marks that a line has, as bits.
_BRACKET = 1
_CURLY = 2
_KELVIN = 4  # or another character that begins as the Kelvin sign does

# What can begin a line break, and those marks.
_masks = byte_masks(b"\n\x0b\x0c\r\x1c\x1d\x1e\xc2\xe2", b"[", b"{", b"\xe2")
_EDIT = np.frombuffer(b"[edit]", dtype=np.uint8)
_CITATION = np.frombuffer(b"[citation needed]", dtype=np.uint8)


class Cleaned(NamedTuple):
    """Texts after cleaning.

    Attributes:
        data: The bytes of all texts; those of dropped documents are empty.
        offsets: Where each text begins in `data`, and the end.
        outcome: The outcome for each document.
        sentences: Number of sentences of each text, counted line by line until there are enough.
        lines: Per document, the counts of lines.
    """

    data: Bytes
    offsets: Integers
    outcome: Integers
    sentences: Integers
    lines: Integers


@routine
def _next_line(data, at, end):
    """Where the line at `at` ends, the bytes of its line break, and as bits which marks it has."""
    found = 0
    while at < end:
        breaks, brackets, curly, kelvin = _masks(data, at, end)
        inside = ALL
        width = 0
        stop = at + BLOCK
        while breaks:
            bit = trailing_zeros(breaks)
            breaks &= breaks - ONE
            width = line_break_width(data, at + bit, end)
            if width:
                inside = (ONE << np.uint64(bit)) - ONE
                stop = at + bit
                break
        found |= _BRACKET * (brackets & inside != ZERO) | _CURLY * (curly & inside != ZERO)
        found |= _KELVIN * (kelvin & inside != ZERO)
        if width:
            return stop, width, found
        at = stop
    return end, 0, found


@routine
def _has_longer_word(data, begin, end, most):
    """Whether a word of a line has more than `most` characters."""
    chars = 0
    at = begin
    while at < end:
        width = space_width(data, at, end)
        if width:
            chars = 0
            at += width
            continue
        chars += 1
        if chars > most:
            return True
        at = next_character(data, at, end)
    return False


@routine
def _has_words(data, begin, end, least):
    """Whether a line has at least this many words."""
    words = 0
    inside = False
    at = begin
    while at < end and words < least:
        width = space_width(data, at, end)
        if width:
            inside = False
            at += width
            continue
        words += not inside
        inside = True
        at += 1
    return words >= least


@routine
def _citation_end(data, at, end, pages, flags):
    """Where the citation that begins at a square bracket ends; 0 if it is not a citation."""
    stop = at + 1
    while stop < end:
        if data[stop] == 93:
            return stop + 1
        point, width = decode(data, stop)
        if not flags_of(point, pages, flags) & DECIMAL:
            break
        stop += width
    if starts_with(data, at, end, _EDIT):
        return at + len(_EDIT)
    if starts_with(data, at, end, _CITATION):
        return at + len(_CITATION)
    return 0


@routine
def _copy_line(data, begin, end, pages, flags, out, size):
    """Copy a line without its citations; returns where the copy ends."""
    at = begin
    while at < end:
        if data[at] == 91:
            stop = _citation_end(data, at, end, pages, flags)
            if stop:
                at = stop
                continue
        out[size] = data[at]
        size += 1
        at += 1
    return size


@routine
def _kinds_of_line(made, begin, end, kelvin, scratch, folded, pairs, bounds, members, text, offsets, anchors, kinds):
    """The kinds of phrases in a line, in which a Kelvin sign counts as the k that it is in lower case."""
    if kelvin:
        size = kelvin_folded(made, begin, end, scratch)
        return phrase_kinds(folded, 0, size, pairs, bounds, members, text, offsets, anchors, kinds)
    return phrase_kinds(made, begin, end, pairs, bounds, members, text, offsets, anchors, kinds)


@routine
def _ends_open(made, begin, end):
    """Whether a line ends without . ? ! " or ', or with an ellipsis of three full stops."""
    if end == begin:
        return True
    last = made[end - 1]
    if not (last == 46 or last == 63 or last == 33 or last == 34 or last == 39):
        return True
    return end - begin >= 3 and last == 46 and made[end - 2] == 46 and made[end - 3] == 46


@kernel
def _clean(
    data,
    rows,
    alive,
    max_word_chars,
    remove_citations,
    needs_end_mark,
    min_words,
    drop_placeholder,
    drop_script,
    drop_curly,
    drop_policy,
    min_sentences,
    pages,
    flags,
    pairs,
    bounds,
    members,
    text,
    offsets,
    anchors,
    kinds,
    out,
    made,
    scratch,
    folded,
    starts,
    ends,
    out_offsets,
    outcome,
    found_sentences,
    lines,
):
    """`made` and `folded` are `out` and `scratch` again, to read from: as the same kind of array as `data` is.

    Each helper is then compiled only once.
    """
    size = 0
    for row in range(len(alive)):
        if not alive[row]:
            out_offsets[row + 1] = size
            continue
        end = rows[row + 1]
        base = size
        total = 0
        result = KEPT
        at = rows[row]
        while at < end and result == KEPT:
            stop, width, marks = _next_line(data, at, end)
            left = strip_left(data, at, stop)
            right = strip_right(data, left, stop)
            at = stop + width
            lines[row, LINES] += 1
            # A word has at most as many characters as its line has bytes.
            if 0 <= max_word_chars < right - left and _has_longer_word(data, left, right, max_word_chars):
                lines[row, LONG_WORD_LINES] += 1
                continue
            begin = size
            if remove_citations and marks & _BRACKET:
                stop = _copy_line(data, left, right, pages, flags, out, size)
            else:
                stop = size + right - left
                copy_bytes(address_of(out) + size, address_of(data) + left, right - left)
            if needs_end_mark and _ends_open(made, begin, stop):
                lines[row, OPEN_LINES] += 1
                continue
            if not _has_words(data, left, right, min_words):
                lines[row, SHORT_LINES] += 1
                continue
            kind = _kinds_of_line(
                made,
                begin,
                stop,
                marks & _KELVIN,
                scratch,
                folded,
                pairs,
                bounds,
                members,
                text,
                offsets,
                anchors,
                kinds,
            )
            if drop_placeholder and kind & PLACEHOLDER:
                result = PLACEHOLDER_TEXT
                break
            if drop_script and kind & SCRIPT:
                lines[row, SCRIPT_LINES] += 1
                continue
            if drop_curly and marks & _CURLY:
                result = CURLY_BRACKET
                break
            if drop_policy and kind & POLICY:
                lines[row, POLICY_LINES] += 1
                continue
            if total < min_sentences:
                count = tokenize(made, begin, stop, pages, flags, starts, ends, 0)
                total += max(1, sentences(made, starts, ends, count, pages, flags))
            lines[row, KEPT_LINES] += 1
            out[stop] = 10
            size = stop + 1
        if result == KEPT and min_sentences >= 0 and total < min_sentences:
            result = TOO_FEW_SENTENCES
        outcome[row] = result
        found_sentences[row] = total
        if result != KEPT:
            size = base
        else:
            # Remove the newline after the last line and white space at the ends; move the rest to the front.
            left = strip_left(made, base, size)
            right = strip_right(made, left, size)
            if left > base:
                for position in range(right - left):
                    out[base + position] = out[left + position]
            size = base + right - left
        out_offsets[row + 1] = size
    return size


def _to_read(array: Bytes) -> Bytes:
    view = array.view()
    view.flags.writeable = False
    return view


def clean_lines(
    column: TextColumn,
    alive: Mask,
    *,
    policy_phrases: tuple[str, ...],
    max_word_chars: int | None = 1000,
    remove_citations: bool = True,
    needs_end_mark: bool = True,
    min_words: int | None = 3,
    drop_placeholder: bool = True,
    drop_script: bool = True,
    drop_curly: bool = True,
    drop_policy: bool = True,
    min_sentences: int | None = 5,
) -> Cleaned:
    """Clean every document that `alive` marks; None switches a limit off."""
    phrases = compile_phrases(policy_phrases, ("lorem ipsum",), ("javascript",))
    pages, flags = class_tables()
    rows = len(column)
    # Each line is followed by a newline, which at most doubles the size.
    out = np.empty(int(column.lengths[alive].sum()) + int(alive.sum()) + 1, dtype=np.uint8)
    longest = int(column.lengths[alive].max(initial=0))
    scratch = np.empty(longest, dtype=np.uint8)
    starts, ends = np.empty(longest, dtype=np.int64), np.empty(longest, dtype=np.int64)
    offsets = np.zeros(rows + 1, dtype=np.int64)
    outcome = np.zeros(rows, dtype=np.int64)
    found = np.zeros(rows, dtype=np.int64)
    lines = np.zeros((rows, WIDTH), dtype=np.int64)
    size = _clean(
        column.data,
        column.offsets,
        alive,
        -1 if max_word_chars is None else max_word_chars,
        remove_citations,
        needs_end_mark,
        -1 if min_words is None else min_words,
        drop_placeholder,
        drop_script,
        drop_curly,
        drop_policy,
        -1 if min_sentences is None else min_sentences,
        pages,
        flags,
        *phrases,
        out,
        _to_read(out),
        scratch,
        _to_read(scratch),
        starts,
        ends,
        offsets,
        outcome,
        found,
        lines,
    )
    return Cleaned(out[:size].copy(), offsets, outcome, found, lines)
