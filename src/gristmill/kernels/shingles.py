r"""Hashed shingles of texts: every run of `size` consecutive words (or characters), lower-cased, as a 32-bit number.

A word is what the regular expression `\w+` finds, without leading underscores. In scripts without spaces between words,
each character counts as a word. A document of fewer words than a shingle has one shingle, all of its words. One that
consists of symbols (words make up less than a ninth of it, white space aside) has one, its whole
text: the few words of unrelated symbol-heavy texts match too easily. An empty or blank document has none.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gristmill.kernels.arrays import grown
from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.text_column import Bytes, Integers
from gristmill.kernels.unicode_classes import ALNUM, CODE_POINTS, PAGE, SPACE, class_tables, compact
from gristmill.kernels.word_hashes import (
    ALONE,
    AT,
    BLANK,
    COUNT,
    DONE,
    LANES,
    LETTERS,
    ROLL,
    SEQUENCE,
    STATE_SIZE,
    SYMBOLS,
    WINDOW,
    WORD_PRIME,
    WORD_SEED,
    character_block,
    mix_eight,
    mixed,
    word_block,
)

Codes = npt.NDArray[np.uint32]
Pages = npt.NDArray[np.uint16]
Hashes = npt.NDArray[np.uint64]
Shingles = npt.NDArray[np.uint32]
Sets = Shingles | Hashes

WORDS = 0
CHARACTERS = 1

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

BLOCK = 2048
"""Number of shingles computed at a time."""

_ROLL_BASE = np.uint64(0xD6E8FEB86659FD93)
_SEQUENCE_FACTOR = np.uint64(0xFF51AFD7ED558CCD)
_HALF = np.uint64(32)
_FEW = 8
"""A document consists of symbols if they take more than this many times the bytes of its words."""


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
    cased = np.flatnonzero(codes[:_HIGHEST_CASED])
    # All in one text, each between zeros, so that none is in the lower case that it has at the end of a word.
    text = np.zeros((len(cased), 2), "<u4")
    text[:, 0] = cased
    lower = np.frombuffer(text.tobytes().decode("utf-32-le").lower().encode("utf-32-le"), "<u4")
    ends = np.flatnonzero(lower == 0)
    starts = np.append(0, ends[:-1] + 1)
    single = ends - starts == 1
    codes[cased[single]] = lower[starts[single]]
    for start, end in _UNSPACED:
        part = codes[start:end]
        part[part > 0] |= ALONE
    codes[(kinds & SPACE) > 0] = BLANK
    return compact(codes.reshape(-1, PAGE))


@leaf
def roll_power(size):
    """What the oldest of `size` words is multiplied by when it leaves the window."""
    power = np.uint64(1)
    for _ in range(size):
        power *= _ROLL_BASE
    return power


@leaf
def shingle_room(size):
    """How many hashes of words `shingle_block` works with: those of a block, and the last ones before it."""
    return BLOCK + WINDOW + size


@routine
def shingle_block(data, end, pages, codes, size, unit, power, tokens, heads, longs, out, state):
    """Fill `out`, of `BLOCK + WINDOW` places, with the next shingles of the document that ends at `end`; how many.

    They have 64 bits here; `copy_halves` keeps the upper half of each.

    `state[AT]` is the place to go on from; all else in `state`, and the first `size` of `tokens`, is 0 at the beginning
    of a document. At its end `state[DONE]` is set. `tokens`, `heads` and `longs` have `shingle_room(size)` places.
    """
    if unit == WORDS:
        filled = word_block(data, end, pages, codes, tokens, size, heads, longs, state)
    else:
        filled = character_block(data, end, pages, codes, tokens, size, state)
    roll = state[ROLL]
    count = np.int64(state[COUNT])
    sequence = state[SEQUENCE]
    made = 0
    for place in range(size, filled):
        token = tokens[place]
        roll = roll * _ROLL_BASE + token - tokens[place - size] * power
        sequence = (sequence ^ token) * _SEQUENCE_FACTOR
        sequence ^= sequence >> np.uint64(32)
        out[made] = roll
        count += 1
        made += count >= size
    if np.int64(state[AT]) >= end:
        state[DONE] = np.uint64(1)
        if 0 < count < size:
            out[0] = roll + np.uint64(count)
            made = 1
    for place in range(0, made, LANES):
        mix_eight(out, place)
    for place in range(size):
        tokens[place] = tokens[filled - size + place]
    state[ROLL] = roll
    state[COUNT] = np.uint64(count)
    state[SEQUENCE] = sequence
    return made


@leaf
def copy_halves(target, at, shingles, count):
    """Copy the upper halves of the first `count` shingles to `target[at:]`; nothing else is compared."""
    for place in range(count):
        target[at + place] = np.uint32(shingles[place] >> _HALF)


@leaf
def is_symbols(state):
    """Whether a document that was gone through has no words, or next to none."""
    return state[COUNT] == np.uint64(0) or state[SYMBOLS] > state[LETTERS] * np.uint64(_FEW)


@routine
def wordless_shingle(data, begin, end):
    """The one shingle of a document of symbols: a hash of its text; 0 if it is empty or white space."""
    state = WORD_SEED
    blank = True
    for at in range(begin, end):
        byte = data[at]
        if byte > 0x20:
            blank = False
        state = (state ^ np.uint64(byte)) * WORD_PRIME
        state ^= state >> np.uint64(29)
    return np.uint64(0) if blank else mixed(state) | np.uint64(1)


def shingle_sets(
    data: Bytes, offsets: Integers, rows: Integers, pages: Pages, codes: Codes, size: int, unit: int
) -> tuple[Shingles, Integers]:
    """The distinct shingles of the given rows, sorted, one row after the other; and where each row begins."""
    values, bounds, _ = shingle_lists(data, offsets, rows, pages, codes, size, unit, True)
    return values, bounds


@kernel
def shingle_lists(
    data: Bytes, offsets: Integers, rows: Integers, pages: Pages, codes: Codes, size: int, unit: int, distinct: bool
) -> tuple[Shingles, Integers, Hashes]:
    """The shingles of the given rows, one row after the other, as they come or, if `distinct`, as sorted sets.

    Returns them, where each row begins, and a hash of its whole sequence of words.
    """
    bounds = np.zeros(len(rows) + 1, np.int64)
    sequences = np.empty(len(rows), np.uint64)
    out = np.empty(4 * BLOCK, np.uint32)
    spare = np.empty(4 * BLOCK if distinct else 1, np.uint32)
    counts = np.zeros(4 * BLOCK if distinct else 1, np.int64)
    tokens = np.zeros(shingle_room(size), np.uint64)
    heads = np.empty(len(tokens), np.uint64)
    longs = np.empty(len(tokens), np.int64)
    block = np.empty(BLOCK + WINDOW, np.uint64)
    state = np.zeros(STATE_SIZE, np.uint64)
    power = roll_power(size)
    filled = 0
    for number in range(len(rows)):
        begin, end = offsets[rows[number]], offsets[rows[number] + 1]
        tokens[:size] = 0
        state[:] = 0
        state[AT] = np.uint64(begin)
        start = filled
        while state[DONE] == np.uint64(0):
            made = shingle_block(data, end, pages, codes, size, unit, power, tokens, heads, longs, block, state)
            # One more, for a document of symbols.
            if filled + made + 1 > len(out):
                out = grown(out, 2 * len(out) + made)
            copy_halves(out, filled, block, made)
            filled += made
        sequences[number] = state[SEQUENCE]
        if (unit == WORDS and is_symbols(state)) or filled == start:
            filled = start
            only = wordless_shingle(data, begin, end)
            if only != np.uint64(0):
                out[filled] = np.uint32(only >> _HALF)
                sequences[number] = only
                filled += 1
        if distinct and filled - start > 1:
            if filled - start > len(spare):
                spare, counts = np.empty(2 * (filled - start), np.uint32), np.zeros(2 * (filled - start), np.int64)
            filled = start + sort_distinct(out[start:filled], spare, counts)
        bounds[number + 1] = filled
    return out[:filled].copy(), bounds, sequences


@routine
def sort_distinct(values, spare, counts):
    """Sort shingles in place and remove duplicates; returns the number left.

    They are spread evenly, so each finds its place by its highest bits, up to a few neighbours. `spare` and `counts`
    have as many places, and `counts` is 0 before and after.
    """
    size = len(values)
    bits = 0
    while (2 << bits) <= size:
        bits += 1
    shift = np.uint32(32 - bits)
    slots = 1 << bits
    if bits == 0:
        return size
    for place in range(size):
        counts[values[place] >> shift] += 1
    total = 0
    for slot in range(slots):
        here = counts[slot]
        counts[slot] = total
        total += here
    for place in range(size):
        slot = values[place] >> shift
        spare[counts[slot]] = values[place]
        counts[slot] += 1
    counts[:slots] = 0
    kept = 0
    for place in range(size):
        value = spare[place]
        at = kept
        while at > 0 and values[at - 1] > value:
            at -= 1
        if at > 0 and values[at - 1] == value:
            continue
        for behind in range(kept, at, -1):
            values[behind] = values[behind - 1]
        values[at] = value
        kept += 1
    return kept


@leaf
def _jaccard(left, at, end, right, other, last):
    """The Jaccard similarity of the sorted sets `left[at:end]` and `right[other:last]`."""
    total = (end - at) + (last - other)
    shared = 0
    while at < end and other < last:
        a, b = left[at], right[other]
        if a == b:
            shared += 1
        at += a <= b
        other += b <= a
    return shared / (total - shared) if total > shared else 0.0


@kernel
def jaccard_pairs(
    left: Sets, left_bounds: Integers, right: Sets, right_bounds: Integers, firsts: Integers, seconds: Integers
) -> npt.NDArray[np.float64]:
    """The Jaccard similarity of pairs of sorted sets: `firsts` index sets of `left`, `seconds` sets of `right`."""
    result = np.empty(len(firsts), np.float64)
    for number in range(len(firsts)):
        one, two = firsts[number], seconds[number]
        result[number] = _jaccard(
            left, left_bounds[one], left_bounds[one + 1], right, right_bounds[two], right_bounds[two + 1]
        )
    return result


@kernel
def jaccard_lists(
    left: Shingles, left_bounds: Integers, right: Shingles, right_bounds: Integers, firsts: Integers, seconds: Integers
) -> npt.NDArray[np.float64]:
    """As `jaccard_pairs`, for lists in any order, in which shingles may occur more than once."""
    longest = 1
    for number in range(len(firsts)):
        one, two = firsts[number], seconds[number]
        longest = max(longest, left_bounds[one + 1] - left_bounds[one], right_bounds[two + 1] - right_bounds[two])
    mine, theirs = np.empty(longest, np.uint32), np.empty(longest, np.uint32)
    spare, counts = np.empty(longest, np.uint32), np.zeros(longest, np.int64)
    result = np.empty(len(firsts), np.float64)
    last, size = np.int64(-1), 0
    for number in range(len(firsts)):
        one, two = firsts[number], seconds[number]
        if one != last:
            size = _copied_set(mine, left, left_bounds[one], left_bounds[one + 1], spare, counts)
            last = one
        other = _copied_set(theirs, right, right_bounds[two], right_bounds[two + 1], spare, counts)
        result[number] = _jaccard(mine, 0, size, theirs, 0, other)
    return result


@routine
def _copied_set(target, source, begin, end, spare, counts):
    """Make `target` the sorted set of `source[begin:end]`; returns its size."""
    for place in range(begin, end):
        target[place - begin] = source[place]
    return sort_distinct(target[: end - begin], spare, counts) if end > begin else 0
