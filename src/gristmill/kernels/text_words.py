"""Words as `str.split` finds them, and statistics of the words of each document.

White space of 64 bytes at a time becomes a bit mask, whose edges are the words.
"""

from __future__ import annotations

import string

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import load8, trailing_zeros
from gristmill.kernels.text_column import Integers, Mask, TextColumn, WordSpans
from gristmill.kernels.unicode_classes import ALPHABETIC, class_tables
from gristmill.kernels.utf8 import (
    ALL,
    HIGH_BITS,
    LOW_SEVEN,
    MAYBE_SPACE,
    ONE,
    SPACES,
    ZERO,
    byte_table,
    count_points,
    decode,
    flags_of,
    load_part,
    space_width,
)

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

# Added to seven-bit bytes these set the high bit of those from 0x09, 0x0E, 0x1C and 0x21 on: the bounds of the two
# ranges of ASCII white space.
_FROM_TAB = np.uint64(0x7777777777777777)
_FROM_SHIFT_OUT = np.uint64(0x7272727272727272)
_FROM_SEPARATOR = np.uint64(0x6464646464646464)
_FROM_EXCLAMATION = np.uint64(0x5F5F5F5F5F5F5F5F)
# Moves the lowest bit of each byte into one byte, in order.
_GATHER = np.uint64(0x0102040810204080)
_SEVEN = np.uint64(7)
_TOP = np.uint64(56)

# What a byte may be, by bits.
_LETTER = 4
_MARK = 8  # first byte of a word that could be an ellipsis or hash signs


def _key(word: str) -> np.uint64:
    return np.uint64(int.from_bytes(word.encode(), "little"))


_KINDS = byte_table({_LETTER: string.ascii_letters.encode(), _MARK: b"#.[(-\xe2"})
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


@leaf
def block_masks(data, at, end):
    """For the 64 bytes from `at` on: which are ASCII white space (or lie past `end`), and which are not ASCII."""
    spaces = ZERO
    wide = ZERO
    if at + 64 <= end:
        for part in range(8):
            chunk = load8(data, at + 8 * part)
            low = chunk & LOW_SEVEN
            found = ((low + _FROM_TAB) & ~(low + _FROM_SHIFT_OUT)) | (
                (low + _FROM_SEPARATOR) & ~(low + _FROM_EXCLAMATION)
            )
            shift = np.uint64(8 * part)
            spaces |= ((((found & ~chunk & HIGH_BITS) >> _SEVEN) * _GATHER) >> _TOP) << shift
            wide |= ((((chunk & HIGH_BITS) >> _SEVEN) * _GATHER) >> _TOP) << shift
        return spaces, wide
    left = end - at
    for part in range((left + 7) // 8):
        chunk = load_part(data, at + 8 * part, min(8, left - 8 * part))
        low = chunk & LOW_SEVEN
        found = ((low + _FROM_TAB) & ~(low + _FROM_SHIFT_OUT)) | ((low + _FROM_SEPARATOR) & ~(low + _FROM_EXCLAMATION))
        shift = np.uint64(8 * part)
        spaces |= ((((found & ~chunk & HIGH_BITS) >> _SEVEN) * _GATHER) >> _TOP) << shift
        wide |= ((((chunk & HIGH_BITS) >> _SEVEN) * _GATHER) >> _TOP) << shift
    return spaces | (ALL << np.uint64(left)), wide


@routine
def add_wide_spaces(data, at, end, spaces, wide, carried):
    """The space mask with white space beyond ASCII added.

    Returns also the bytes of it that reach into the next block, and how many more bytes than characters it has.
    """
    if carried:
        spaces |= (ONE << np.uint64(carried)) - ONE
    carried = 0
    surplus = 0
    while wide:
        bit = trailing_zeros(wide)
        wide &= wide - ONE
        if SPACES[data[at + bit]] & MAYBE_SPACE:
            width = space_width(data, at + bit, end)
            if width:
                spaces |= ((ONE << np.uint64(width)) - ONE) << np.uint64(bit)
                carried = max(0, bit + width - 64)
                surplus += width - 1
    return spaces, carried, surplus


@routine
def split_words(data, begin, end, starts, ends):
    """Write where each word of the text starts and ends.

    The two arrays must have room for one more word than half the bytes. Returns how many words there are, whether all
    is ASCII, and by how many bytes the white space outnumbers its characters.
    """
    opened = 0
    closed = 0
    before = ONE  # a text begins as if a space came before it
    carried = 0
    high = ZERO
    surplus = 0
    at = begin
    while at < end:
        spaces, wide = block_masks(data, at, end)
        if wide or carried:
            high |= wide
            spaces, carried, more = add_wide_spaces(data, at, end, spaces, wide, carried)
            surplus += more
        opening = ~spaces & ((spaces << ONE) | before)
        closing = spaces & ~((spaces << ONE) | before)
        while opening:
            starts[opened] = at + trailing_zeros(opening)
            opened += 1
            opening &= opening - ONE
        while closing:
            ends[closed] = at + trailing_zeros(closing)
            closed += 1
            closing &= closing - ONE
        before = spaces >> np.uint64(63)
        at += 64
    if closed < opened:
        ends[closed] = end
    return opened, high == ZERO, surplus


@routine
def _has_alphabetic(data, begin, end, pages, flags):
    at = begin
    while at < end:
        point, width = decode(data, at)
        if flags_of(point, pages, flags) & ALPHABETIC:
            return True
        at += width
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
