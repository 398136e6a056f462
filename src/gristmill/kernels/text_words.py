"""Statistics of the words of each document, split at white space as `str.split` does."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Integers, Mask, TextColumn, WordSpans
from gristmill.kernels.text_split import count_points, load_part, space_width, split_words
from gristmill.kernels.unicode_classes import ALPHABETIC, class_tables

# Columns of the result.
N_WORDS = 0
WORD_CHARS = 1
LONGEST_WORD = 2
SYMBOL_WORDS = 3  # an ellipsis, or more than half hash signs
ALPHABETIC_WORDS = 4  # at least one alphabetic character
COMMON_WORDS = 5  # the, be, to, of, and, that, have, with
FIRST_WORD_COMMON = 6
WIDTH = 7

_PIECE = 1 << 16

# What a byte may be, by bits.
_LETTER = 4
_MARK = 8  # first byte of a word that could be an ellipsis or hash signs


def _byte_kinds() -> np.ndarray:
    table = np.zeros(256, dtype=np.uint8)
    for byte in b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ":
        table[byte] |= _LETTER
    for byte in b"#.[(-\xe2":
        table[byte] |= _MARK
    return table


def _key(word: str) -> np.uint64:
    return np.uint64(int.from_bytes(word.encode(), "little"))


_KINDS = _byte_kinds()
_DOTS, _DOTS_IN_BRACKETS, _DOTS_IN_PARENTHESES = _key("..."), _key("[...]"), _key("(...)")
_ELLIPSIS, _ELLIPSIS_IN_BRACKETS, _ARROW = _key("…"), _key("[…]"), _key("-»")
_COMMON_MIX = np.uint64(0x9E3779B97F4A7C15)
_COMMON_SHIFT = np.uint64(58)


def _common_words() -> tuple[np.ndarray, np.ndarray]:
    """A table of 64 places in which each common word has one of its own."""
    keys = np.zeros(64, dtype=np.uint64)
    lengths = np.zeros(64, dtype=np.int64)
    for word in ("the", "be", "to", "of", "and", "that", "have", "with"):
        place = ((int(_key(word)) * int(_COMMON_MIX)) & (2**64 - 1)) >> int(_COMMON_SHIFT)
        assert lengths[place] == 0, "two common words share a place; choose another multiplier"
        keys[place], lengths[place] = _key(word), len(word)
    return keys, lengths


_COMMON_KEYS, _COMMON_LENGTHS = _common_words()


@routine
def _has_alphabetic(data, begin, end, pages, flags):
    at = begin
    while at < end:
        first = np.int64(data[at])
        if first < 0x80:
            if _KINDS[first] & _LETTER:
                return True
            at += 1
            continue
        if first < 0xE0:
            point = (first & 0x1F) << 6 | (np.int64(data[at + 1]) & 0x3F)
            at += 2
        elif first < 0xF0:
            point = (first & 0x0F) << 12 | (np.int64(data[at + 1]) & 0x3F) << 6 | (np.int64(data[at + 2]) & 0x3F)
            at += 3
        else:
            point = (
                (first & 0x07) << 18
                | (np.int64(data[at + 1]) & 0x3F) << 12
                | (np.int64(data[at + 2]) & 0x3F) << 6
                | (np.int64(data[at + 3]) & 0x3F)
            )
            at += 4
        if flags[np.int64(pages[point >> 8]) * 256 + (point & 255)] & ALPHABETIC:
            return True
    return False


@routine
def _is_symbol(data, begin, end):
    """Whether the word is an ellipsis mark or has more runs of hash signs than half its characters."""
    length = end - begin
    if data[begin] == 35:
        # More than half the characters in runs of their own: signs and others must alternate, with signs at both ends.
        chars = count_points(data, begin, end)
        if chars % 2 == 0:
            return False
        runs = 0
        before = False
        for position in range(begin, end):
            sign = data[position] == 35
            if sign and not before:
                runs += 1
            before = sign
        return 2 * runs > chars
    if length > 5:
        return False
    key = load_part(data, begin, length)
    if length == 3:
        return key in (_DOTS, _ELLIPSIS, _ARROW)
    return length == 5 and key in (_DOTS_IN_BRACKETS, _DOTS_IN_PARENTHESES, _ELLIPSIS_IN_BRACKETS)


@leaf
def _describe(data, begin, length, pages, flags):
    """What the word is, as bits: alphabetic, symbol, common."""
    kind = _KINDS[data[begin]]
    if kind & _LETTER:
        key = load_part(data, begin, min(length, 8))
        slot = np.int64((key * _COMMON_MIX) >> _COMMON_SHIFT)
        # Without a branch: about every fifth word is common, in no order that could be guessed.
        return 1 + 4 * (np.int64(_COMMON_KEYS[slot] == key) & np.int64(_COMMON_LENGTHS[slot] == length))
    bits = 0
    if kind & _MARK and _is_symbol(data, begin, begin + length):
        bits = 2
    if _has_alphabetic(data, begin, begin + length, pages, flags):
        bits |= 1
    return bits


@leaf
def _store(counts, words, total, longest, symbols, alphabetic, common, first_common):
    counts[N_WORDS] = words
    counts[WORD_CHARS] = total
    counts[LONGEST_WORD] = longest
    counts[SYMBOL_WORDS] = symbols
    counts[ALPHABETIC_WORDS] = alphabetic
    counts[COMMON_WORDS] = common
    counts[FIRST_WORD_COMMON] = first_common


@kernel
def _words(data, offsets, alive, pages, flags, out):
    # Long documents are split piece by piece, each piece ending before a space, so that the bounds stay in the cache.
    starts = np.empty(_PIECE // 2 + 2, dtype=np.int64)
    ends = np.empty(_PIECE // 2 + 2, dtype=np.int64)
    for row in range(len(alive)):
        if not alive[row]:
            continue
        at = offsets[row]
        end = offsets[row + 1]
        words = total = longest = symbols = alphabetic = common = first_common = 0
        while at < end:
            stop = min(at + _PIECE, end)
            while stop < end and not space_width(data, stop, end):
                stop += 1
            found, ascii_only, surplus = split_words(data, at, stop, starts, ends)
            in_words = 0
            for word in range(found):
                begin = starts[word]
                length = ends[word] - begin
                in_words += length
                if length > longest:
                    longest = max(longest, length if ascii_only else count_points(data, begin, begin + length))
                bits = _describe(data, begin, length, pages, flags)
                alphabetic += bits & 1
                symbols += (bits >> 1) & 1
                common += bits >> 2
                if words + word == 0:
                    first_common = bits >> 2
            words += found
            # What is not in words is white space, one character per byte but for the wide ones.
            total += in_words if ascii_only else count_points(data, at, stop) - (stop - at - in_words - surplus)
            at = stop
        _store(out[row], words, total, longest, symbols, alphabetic, common, first_common)


@kernel
def _given_words(data, starts, ends, bounds, alive, pages, flags, out):
    """The same counts for words that another splitter found."""
    for row in range(len(alive)):
        if not alive[row]:
            continue
        words = total = longest = symbols = alphabetic = common = first_common = 0
        for word in range(bounds[row], bounds[row + 1]):
            begin = starts[word]
            end = ends[word]
            words += 1
            if begin == end:
                continue
            chars = count_points(data, begin, end)
            total += chars
            longest = max(longest, chars)
            bits = _describe(data, begin, end - begin, pages, flags)
            alphabetic += bits & 1
            symbols += (bits >> 1) & 1
            common += bits >> 2
            if words == 1:
                first_common = bits >> 2
        _store(out[row], words, total, longest, symbols, alphabetic, common, first_common)


def word_counts(column: TextColumn, alive: Mask, *, words: WordSpans | None = None) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per statistic.

    Args:
        column: The texts.
        alive: The documents to look at.
        words: Words that another splitter found; None splits at white space.
    """
    out = np.zeros((len(column), WIDTH), dtype=np.int64)
    pages, flags = class_tables()
    if words is None:
        _words(column.data, column.offsets, alive, pages, flags, out)
    else:
        _given_words(*words, alive, pages, flags, out)
    return out


def warm() -> None:
    """Load or compile the kernels of this file."""
    from gristmill.kernels.text_column import text_column, word_spans

    column = text_column(["a"])
    one = np.ones(1, dtype=np.bool_)
    word_counts(column, one)
    bounds = np.array([0, 1], dtype=np.int64)
    word_counts(column, one, words=word_spans(column.data, bounds[:1], bounds[1:], bounds))
