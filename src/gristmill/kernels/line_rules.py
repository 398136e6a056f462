"""Checks the lines of a text with rules that each examine one line; returns a code per line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Bytes, Integers
from gristmill.kernels.unicode_classes import ALNUM, TERMINAL
from gristmill.kernels.utf8 import character_start, decode, flags_of, space_width

FINE = 0
URL_ONLY = 1
NOTICE = 2
NAVIGATION = 3
SYMBOLS = 4
SHORT = 5

Codes = npt.NDArray[np.int64]


class PhraseTable(NamedTuple):
    """Phrases, found by their first two bytes; make one with `phrase_table`.

    Attributes:
        heads: The number of a phrase by its first two bytes; -1 if no phrase begins with them.
        following: By number the next phrase that begins with the same two bytes, or -1.
        text: All phrases.
        offsets: Where each begins in `text`, and the end.
    """

    heads: npt.NDArray[np.int32]
    following: npt.NDArray[np.int32]
    text: Bytes
    offsets: Integers


def phrase_table(phrases: Sequence[str]) -> PhraseTable:
    """Prepare phrases of at least two bytes; ASCII letters match in either case."""
    encoded = [phrase.lower().encode() for phrase in phrases]
    heads, following = np.full(1 << 16, -1, np.int32), np.full(len(encoded), -1, np.int32)
    for number, phrase in enumerate(encoded):
        key = phrase[0] << 8 | phrase[1]
        following[number], heads[key] = heads[key], number
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    text = np.frombuffer(b"".join(encoded), np.uint8).copy()
    return PhraseTable(heads, following, text, offsets)


@leaf
def _lower(byte):
    return byte | 32 if 65 <= byte <= 90 else byte


@routine
def _has_phrase(data, begin, end, heads, following, text, offsets):
    for at in range(begin, end - 1):
        phrase = heads[np.int64(_lower(data[at])) << 8 | np.int64(_lower(data[at + 1]))]
        while phrase >= 0:
            first, size = offsets[phrase], offsets[phrase + 1] - offsets[phrase]
            if at + size <= end:
                same = 2
                while same < size and _lower(data[at + same]) == text[first + same]:
                    same += 1
                if same == size:
                    return True
            phrase = following[phrase]
    return False


@leaf
def _is_separator(point):
    """Characters that separate the entries of a menu: | » › • · → and >."""
    return (
        point == 124
        or point == 0xBB
        or point == 0x203A
        or point == 0x2022
        or point == 0xB7
        or point == 0x2192
        or point == 62
    )


@routine
def _is_address(data, begin, end):
    """Whether a word is a web address or an e-mail address."""
    if end - begin >= 5 and _lower(data[begin]) == 119 and _lower(data[begin + 1]) == 119 and data[begin + 3] == 46:
        return True
    for at in range(begin + 1, end - 2):
        if data[at] == 58 and data[at + 1] == 47 and data[at + 2] == 47:
            return True
        if data[at] == 64:
            for dot in range(at + 2, end - 1):
                if data[dot] == 46:
                    return True
    return False


@leaf
def _ends_sentence(data, begin, end, pages, flags):
    """Whether a line ends with a mark that ends sentences, before quotes and brackets that close."""
    while end > begin:
        at = character_start(data, end - 1, begin)
        point, _ = decode(data, at)
        if flags_of(point, pages, flags) & TERMINAL != 0:
            return True
        if point not in (34, 39, 41, 93, 0x201D, 0x2019, 0xBB):
            return False
        end = at
    return False


@kernel
def line_faults(
    data: Bytes,
    starts: Integers,
    ends: Integers,
    pages: npt.NDArray[np.uint16],
    flags: npt.NDArray[np.uint16],
    url_only: bool,
    heads: npt.NDArray[np.int32],
    following: npt.NDArray[np.int32],
    text: Bytes,
    offsets: Integers,
    max_notice_words: int,
    min_separators: int,
    max_symbol_share: float,
    min_words: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The first rule that each line breaks, FINE where it breaks none, and how many words it has.

    Words are separated by white space. `min_separators` and `min_words` of 0 and a `max_symbol_share` of 1 are off, and
    so are notices without phrases.
    """
    codes, word_counts = np.zeros(len(starts), np.int64), np.zeros(len(starts), np.int64)
    for line in range(len(starts)):
        begin, end = starts[line], ends[line]
        words = separators = symbols = chars = addresses = entry_words = longest_entry = 0
        at = word = begin
        inside = named = False
        while at <= end:
            width = space_width(data, at, end) if at < end else 1
            if width:
                if inside:
                    addresses += _is_address(data, word, at)
                    words += 1
                    entry_words += named
                    longest_entry = max(longest_entry, entry_words)
                inside = named = False
                at += width
                continue
            if not inside:
                inside, word = True, at
            point, width = decode(data, at)
            chars += 1
            if flags_of(point, pages, flags) & ALNUM != 0:
                named = True
            else:
                symbols += 1
                if _is_separator(point):
                    separators += 1
                    entry_words = 0
            at += width
        word_counts[line] = words
        if url_only and addresses == words:
            codes[line] = URL_ONLY
        elif (
            len(offsets) > 1
            and words <= max_notice_words
            and _has_phrase(data, begin, end, heads, following, text, offsets)
        ):
            codes[line] = NOTICE
        elif min_separators > 0 and separators >= min_separators and longest_entry <= 3:
            codes[line] = NAVIGATION
        elif symbols > max_symbol_share * chars:
            codes[line] = SYMBOLS
        elif words < min_words and not _ends_sentence(data, begin, end, pages, flags):
            codes[line] = SHORT
    return codes, word_counts
