"""Words as `str.split` finds them, and statistics of the words of each document.

White space of 64 bytes at a time becomes a bit mask, whose edges are the words.
"""

from __future__ import annotations

import string

import numpy as np

from gristmill.kernels.byte_masks import (
    CONTINUATIONS,
    LETTERS,
    MAYBE_WHITE,
    WHITE,
    WIDE,
    byte_masks,
    first_bits,
    long_word_end,
    whole_words,
    with_wide_spaces,
    write_places,
)
from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import BLOCK, bit_count, trailing_zeros
from gristmill.kernels.text_column import Integers, Mask, TextColumn, WordSpans
from gristmill.kernels.unicode_classes import ALPHABETIC, class_tables
from gristmill.kernels.utf8 import (
    ALL,
    ONE,
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

_LETTER = 4
_MARK = 8  # first byte of a word that could be an ellipsis or hash signs
_MARKS = b"#.[(-\xe2"
_space_masks = byte_masks(WHITE, MAYBE_WHITE, WIDE)
_word_masks = byte_masks(WHITE, MAYBE_WHITE, LETTERS, CONTINUATIONS, _MARKS, WIDE)
_common_masks = byte_masks(b"a", b"b", b"d", b"e", b"f", b"h", b"i", b"n", b"o", b"t", b"v", b"w")


def _key(word: str) -> np.uint64:
    return np.uint64(int.from_bytes(word.encode(), "little"))


_KINDS = byte_table({_LETTER: string.ascii_letters.encode(), _MARK: _MARKS})
_DOTS, _DOTS_IN_BRACKETS, _DOTS_IN_PARENTHESES = _key("..."), _key("[...]"), _key("(...)")
_ELLIPSIS, _ELLIPSIS_IN_BRACKETS, _ARROW = _key("…"), _key("[…]"), _key("-»")
_COMMON_MIX = np.uint64(0x9E3779B97F4A7C15)
_COMMON_SHIFT = np.uint64(58)


def _common_words() -> tuple[np.ndarray, np.ndarray]:
    """A table of 64 slots in which each common word has its own."""
    keys = np.zeros(64, dtype=np.uint64)
    lengths = np.zeros(64, dtype=np.int64)
    for word in ("the", "be", "to", "of", "and", "that", "have", "with"):
        place = ((int(_key(word)) * int(_COMMON_MIX)) & (2**64 - 1)) >> int(_COMMON_SHIFT)
        assert lengths[place] == 0, "two common words share a place; choose another multiplier"
        keys[place], lengths[place] = _key(word), len(word)
    return keys, lengths


_COMMON_KEYS, _COMMON_LENGTHS = _common_words()


@routine
def _add_wide_spaces(data, at, end, spaces, maybe, carried):
    """The space mask with white space beyond ASCII added.

    Returns also the bytes of it that reach into the next block, and how many more bytes than characters it has.
    """
    spaces |= (ONE << np.uint64(carried)) - ONE
    carried = 0
    surplus = 0
    while maybe:
        bit = trailing_zeros(maybe)
        maybe &= maybe - ONE
        width = space_width(data, at + bit, end)
        if width:
            spaces |= ((ONE << np.uint64(width)) - ONE) << np.uint64(bit)
            carried = max(0, bit + width - BLOCK)
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
        spaces, maybe, wide = _space_masks(data, at, end)
        if at + BLOCK > end:
            spaces |= ALL << np.uint64(end - at)
        if maybe or carried:
            spaces, carried, more = _add_wide_spaces(data, at, end, spaces, maybe, carried)
            surplus += more
        high |= wide
        shifted = (spaces << ONE) | before
        opened = write_places(starts, opened, at, ~spaces & shifted)
        closed = write_places(ends, closed, at, spaces & ~shifted)
        before = spaces >> np.uint64(63)
        at += BLOCK
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
def _is_common(data, begin, length):
    key = load_part(data, begin, min(length, 8))
    slot = np.int64((key * _COMMON_MIX) >> _COMMON_SHIFT)
    # Without a branch: about every fifth word is common, in no order that could be guessed.
    return np.int64(_COMMON_KEYS[slot] == key) & np.int64(_COMMON_LENGTHS[slot] == length)


@leaf
def _describe(data, begin, length, pages, flags):
    """What the word is, as bits: alphabetic, symbol, common."""
    kind = _KINDS[data[begin]]
    if kind & _LETTER:
        return 1 + 4 * _is_common(data, begin, length)
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


@leaf
def _length_at(words, bit):
    """How long the run of set bits from `bit` on is."""
    return trailing_zeros(~(words >> np.uint64(bit)))


@leaf
def _has_longer(words, longest):
    """Whether a run of more than `longest` (1 to 63) set bits is in the mask."""
    length = 1
    while 2 * length <= longest:
        words &= words >> np.uint64(length)
        length *= 2
    return words & (words >> np.uint64(longest + 1 - length)) != ZERO


@routine
def _longest(data, at, words, openings, longest):
    """The characters of the longest word, among them those of a block."""
    while openings:
        bit = trailing_zeros(openings)
        openings &= openings - ONE
        length = _length_at(words, bit)
        if length > longest:
            longest = max(longest, count_points(data, at + bit, at + bit + length))
    return longest


@routine
def _count_alphabetic(data, at, openings, words, past, last, pages, flags):
    """How many words without an ASCII letter are alphabetic: those that end before places of `past`, and the `last`."""
    found = 0
    while openings:
        bit = trailing_zeros(openings)
        openings &= openings - ONE
        stop = bit + _length_at(words, bit)
        if last if stop == BLOCK else (past >> np.uint64(stop)) & ONE:
            found += _has_alphabetic(data, at + bit, at + stop, pages, flags)
    return found


@leaf
def _common_openings(data, at, end, openings, closings):
    """Where in a block the common words begin, given where its words begin and where their last bytes are."""
    a, b, d, e, f, h, i, n, o, t, v, w = _common_masks(data, at, end)
    one, two, three = ONE, np.uint64(2), np.uint64(3)
    of_two = (b & (e >> one)) | (t & (o >> one)) | (o & (f >> one))
    of_three = (t & (h >> one) & (e >> two)) | (a & (n >> one) & (d >> two))
    of_four = (t & (h >> one) & (a >> two) & (t >> three)) | (h & (a >> one) & (v >> two) & (e >> three))
    of_four |= w & (i >> one) & (t >> two) & (h >> three)
    return openings & ((of_two & (closings >> one)) | (of_three & (closings >> two)) | (of_four & (closings >> three)))


@kernel
def _words(data, offsets, alive, pages, flags, out):
    for row in range(len(alive)):
        if not alive[row]:
            continue
        at = offsets[row]
        end = offsets[row + 1]
        count = total = longest = symbols = alphabetic = common = 0
        first_common = np.int64(0)
        while at < end:
            spaces, maybe, letters, continuing, marks, wide = _word_masks(data, at, end)
            if maybe:
                spaces = with_wide_spaces(data, at, end, spaces, maybe)
            size = whole_words(at, end, spaces)
            if size == 0:
                stop = long_word_end(data, at, end)
                length = count_points(data, at, stop)
                bits = _describe(data, at, stop - at, pages, flags)
                count += 1
                total += length
                longest = max(longest, length)
                alphabetic += bits & 1
                symbols += (bits >> 1) & 1
                at = stop
                continue
            words = ~spaces & first_bits(size)
            openings = words & ~(words << ONE)
            closings = words & ~(words >> ONE)
            found = bit_count(openings)
            total += bit_count(words & ~continuing)
            if longest == 0 or (longest < BLOCK and _has_longer(words, longest)):
                longest = _longest(data, at, words, openings, longest)
            # A carry runs from the beginning of each word to its first letter. If it gets past the end there is none.
            others = words & ~letters
            carried = others + (openings & others)
            past = carried & ~words
            last = carried < others
            bare = bit_count(past) + last
            alphabetic += found - bare
            if wide and bare:
                alphabetic += _count_alphabetic(data, at, openings & others, words, past, last, pages, flags)
            possible = openings & marks
            while possible:
                bit = trailing_zeros(possible)
                possible &= possible - ONE
                symbols += _is_symbol(data, at + bit, at + bit + _length_at(words, bit))
            typical = _common_openings(data, at, end, openings, closings)
            common += bit_count(typical)
            if count == 0 and openings:
                first_common = np.int64((typical >> np.uint64(trailing_zeros(openings))) & ONE)
            count += found
            at += size
        _store(out[row], count, total, longest, symbols, alphabetic, common, first_common)


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
