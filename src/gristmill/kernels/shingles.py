r"""Hashed shingles of texts: every run of `size` consecutive words (or characters), lower-cased, as a 64-bit number.

A word is what the regular expression `\w+` finds, without leading underscores. In scripts that are written without
spaces between words each character counts as a word. A document of fewer words than a shingle has one shingle, all of
its words. One that consists of symbols (words make up less than a ninth of it, white space aside) has one, its whole
text: the few words of unrelated symbol soups agree too easily. An empty one or one of white space has none.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Bytes, Integers
from gristmill.kernels.unicode_classes import ALNUM, CODE_POINTS, PAGE, SPACE, class_tables, compact
from gristmill.kernels.utf8 import decode, flags_of

Codes = npt.NDArray[np.uint32]
Pages = npt.NDArray[np.uint16]
Hashes = npt.NDArray[np.uint64]

WORDS = 0
CHARACTERS = 1

ALONE = np.uint32(1 << 30)
"""Marks a character that is a word by itself."""
BLANK = np.uint32(1 << 31)
"""Marks white space."""

# Han, Hiragana, Katakana, Bopomofo, Thai, Lao, Tibetan, Burmese, Khmer: no spaces between words.
_UNSPACED = (
    (0x0E00, 0x0F00),
    (0x0F00, 0x1000),
    (0x1000, 0x10A0),
    (0x1780, 0x1800),
    (0x3005, 0x3008),
    (0x3040, 0x3100),
    (0x3105, 0x3130),
    (0x31F0, 0x3200),
    (0x3400, 0x4DC0),
    (0x4E00, 0xA000),
    (0xF900, 0xFB00),
    (0xFF66, 0xFFA0),
    (0x20000, 0x323B0),
)
_HIGHEST_CASED = 0x1E944

# Where `shingle_block` keeps its place between two calls.
_AT, _WORD, _ROLL, _COUNT, _SEQUENCE, _DONE, _LETTERS, _SYMBOLS = 0, 1, 2, 3, 4, 5, 6, 7
STATE_SIZE = 8
BLOCK = 2048
"""How many shingles are made at a time."""

_WORD_SEED = np.uint64(0x9AE16A3B2F90404F)
_WORD_PRIME = np.uint64(0x100000001B3)
_ROLL_BASE = np.uint64(0xD6E8FEB86659FD93)
_UNDERSCORE = np.uint32(ord("_"))
_FEW = 8
"""A document with more than so many times as many bytes of symbols as of words consists of symbols."""
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)


@lru_cache(maxsize=1)
def word_tables() -> tuple[Pages, Codes]:
    """For every code point 0 if it is in no word, else its lower case, with a mark where it is a word by itself.

    In the layout of `class_tables`: the code of `c` is `codes[pages[c >> 8] * 256 + (c & 255)]`.
    """
    pages, flags = class_tables()
    points = np.arange(CODE_POINTS, dtype=np.uint32)
    kinds = flags[pages[points >> 8].astype(np.int64) * PAGE + (points & 255)]
    codes = np.where(kinds & ALNUM, points, 0).astype(np.uint32)
    codes[ord("_")] = ord("_")
    for point in range(_HIGHEST_CASED):
        if codes[point]:
            lower = chr(point).lower()
            if len(lower) == 1:
                codes[point] = ord(lower)
    for start, end in _UNSPACED:
        part = codes[start:end]
        part[part > 0] |= ALONE
    codes[(kinds & SPACE) > 0] = BLANK
    return compact(codes.reshape(-1, PAGE))


@leaf
def mixed(value):
    """A number whose bits all depend on all bits of `value`."""
    value = (value ^ (value >> np.uint64(33))) * _MIX_1
    value = (value ^ (value >> np.uint64(33))) * _MIX_2
    return value ^ (value >> np.uint64(33))


@leaf
def roll_power(size):
    """What the oldest of `size` words is multiplied by when it leaves the window."""
    power = np.uint64(1)
    for _ in range(size):
        power *= _ROLL_BASE
    return power


@routine
def shingle_block(data, end, pages, codes, size, unit, power, ring, out, state):
    """Fill `out` with the next shingles of the document that ends at `end`; gives their number, 0 at its end.

    `state[0]` is the place to go on from; all else in `state` and `ring` is 0 at the beginning of a document.
    """
    at = np.int64(state[_AT])
    word = state[_WORD]
    roll = state[_ROLL]
    count = np.int64(state[_COUNT])
    sequence = state[_SEQUENCE]
    letters = np.int64(state[_LETTERS])
    symbols = np.int64(state[_SYMBOLS])
    made = 0
    limit = len(out)
    slot = count % size
    while at < end and made < limit - 1:
        point, width = decode(data, at)
        code = flags_of(point, pages, codes)
        token = np.uint64(0)
        if unit == 0:
            if code != np.uint32(0) and code < ALONE and (word != np.uint64(0) or code != _UNDERSCORE):
                if word == np.uint64(0):
                    word = _WORD_SEED
                word = (word ^ np.uint64(code)) * _WORD_PRIME
                at += width
                letters += width
                continue
            if word != np.uint64(0):
                # The character after the word is looked at again when the word is done.
                token = mixed(word)
                word = np.uint64(0)
            elif code >= ALONE and code < BLANK:
                token = mixed(np.uint64(code) * _WORD_SEED)
                at += width
                letters += width
            else:
                at += width
                if code < BLANK:
                    symbols += width
                continue
        else:
            at += width
            if code == BLANK:
                if word == BLANK:
                    continue
                word = np.uint64(BLANK)
            else:
                word = np.uint64(0)
            value = np.uint64(code & np.uint32(0x3FFFFFFF)) if code != np.uint32(0) else np.uint64(point)
            token = mixed((value + np.uint64(1)) * _WORD_SEED)
        roll = roll * _ROLL_BASE + token - ring[slot] * power
        ring[slot] = token
        slot += 1
        if slot == size:
            slot = 0
        count += 1
        sequence = (sequence ^ token) * _MIX_1
        sequence ^= sequence >> np.uint64(32)
        if count >= size:
            out[made] = mixed(roll)
            made += 1
    if at >= end and state[_DONE] == np.uint64(0):
        state[_DONE] = np.uint64(1)
        if unit == 0 and word != np.uint64(0):
            token = mixed(word)
            word = np.uint64(0)
            roll = roll * _ROLL_BASE + token - ring[slot] * power
            ring[slot] = token
            count += 1
            sequence = (sequence ^ token) * _MIX_1
            sequence ^= sequence >> np.uint64(32)
            if count >= size:
                out[made] = mixed(roll)
                made += 1
        if 0 < count < size:
            out[made] = mixed(roll + np.uint64(count))
            made += 1
    state[_AT] = np.uint64(at)
    state[_WORD] = word
    state[_ROLL] = roll
    state[_COUNT] = np.uint64(count)
    state[_SEQUENCE] = sequence
    state[_LETTERS] = np.uint64(letters)
    state[_SYMBOLS] = np.uint64(symbols)
    return made


@leaf
def is_symbols(state):
    """Whether a document that was gone through has no words, or next to none."""
    return state[_COUNT] == np.uint64(0) or state[_SYMBOLS] > state[_LETTERS] * np.uint64(_FEW)


@routine
def wordless_shingle(data, begin, end):
    """The one shingle of a document of symbols: a hash of its text; 0 if it is empty or white space."""
    state = _WORD_SEED
    blank = True
    for at in range(begin, end):
        byte = data[at]
        if byte > 0x20:
            blank = False
        state = (state ^ np.uint64(byte)) * _WORD_PRIME
        state ^= state >> np.uint64(29)
    return np.uint64(0) if blank else mixed(state) | np.uint64(1)


@kernel
def shingle_sets(
    data: Bytes, offsets: Integers, rows: Integers, pages: Pages, codes: Codes, size: int, unit: int
) -> tuple[Hashes, Integers]:
    """The distinct shingles of the given rows, sorted, one row after the other; and where each row begins."""
    bounds = np.zeros(len(rows) + 1, np.int64)
    out = np.empty(4096, np.uint64)
    ring = np.zeros(size, np.uint64)
    block = np.empty(BLOCK, np.uint64)
    state = np.zeros(STATE_SIZE, np.uint64)
    power = roll_power(size)
    filled = 0
    for number in range(len(rows)):
        begin, end = offsets[rows[number]], offsets[rows[number] + 1]
        ring[:] = 0
        state[:] = 0
        state[_AT] = np.uint64(begin)
        start = filled
        while True:
            made = shingle_block(data, end, pages, codes, size, unit, power, ring, block, state)
            if made == 0 and state[_DONE] != np.uint64(0):
                break
            if filled + made > len(out):
                grown = np.empty(max(2 * len(out), filled + made), np.uint64)
                grown[:filled] = out[:filled]
                out = grown
            out[filled : filled + made] = block[:made]
            filled += made
        if (unit == 0 and is_symbols(state)) or filled == start:
            filled = start
            only = wordless_shingle(data, begin, end)
            if only != np.uint64(0):
                if filled == len(out):
                    grown = np.empty(2 * len(out), np.uint64)
                    grown[:filled] = out[:filled]
                    out = grown
                out[filled] = only
                filled += 1
        out[start:filled] = np.sort(out[start:filled])
        kept = start
        for place in range(start, filled):
            if place == start or out[place] != out[kept - 1]:
                out[kept] = out[place]
                kept += 1
        filled = kept
        bounds[number + 1] = filled
    return out[:filled].copy(), bounds


@kernel
def jaccard_pairs(
    left: Hashes, left_bounds: Integers, right: Hashes, right_bounds: Integers, firsts: Integers, seconds: Integers
) -> npt.NDArray[np.float64]:
    """The Jaccard similarity of pairs of sorted sets: `firsts` index sets of `left`, `seconds` sets of `right`."""
    result = np.empty(len(firsts), np.float64)
    for number in range(len(firsts)):
        at, end = left_bounds[firsts[number]], left_bounds[firsts[number] + 1]
        other, last = right_bounds[seconds[number]], right_bounds[seconds[number] + 1]
        total = (end - at) + (last - other)
        shared = 0
        while at < end and other < last:
            a, b = left[at], right[other]
            if a == b:
                shared += 1
            at += a <= b
            other += b <= a
        result[number] = shared / (total - shared) if total > shared else 0.0
    return result
