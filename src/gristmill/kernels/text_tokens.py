"""Words and punctuation marks as separate tokens, and what the published quality rules count over them.

A text is cut at white space; punctuation at either end of a piece becomes separate tokens (consecutive full stops stay
together), and so does a dash, slash or colon between two letters.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gristmill.kernels.byte_masks import (
    CONTINUATIONS,
    DIGITS,
    LEADS,
    LETTERS,
    MAYBE_WHITE,
    WHITE,
    byte_masks,
    first_bits,
    long_word_end,
    whole_words,
    with_wide_spaces,
    write_places,
)
from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import reversed_bits, trailing_zeros
from gristmill.kernels.text_column import Bytes, Integers, Mask, TextColumn, WordSpans, word_spans
from gristmill.kernels.unicode_classes import ALNUM, ALPHA, PUNCTUATION, TERMINAL, class_tables
from gristmill.kernels.utf8 import (
    ONE,
    ZERO,
    count_points,
    decode,
    flags_of,
    load_part,
)

# Columns of the result of `token_counts`.
N_TOKENS = 0
PROPER_WORDS = 1  # with at least one character that is not punctuation
PROPER_CHARS = 2
ALPHA_WORDS = 3  # with at least one letter
STOP_WORDS = 4  # how many different stop words occur
WIDTH = 5


_masks = byte_masks(WHITE, MAYBE_WHITE, LETTERS + DIGITS, LETTERS, b"-/:", b".", CONTINUATIONS, LEADS)
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(40)
_KEY_BYTES = 8
"""Number of bytes of a word compared at once."""


@leaf
def _joins(point):
    """Whether the character separates two words when it stands between letters: - / : and the dashes."""
    return point == 45 or point == 47 or point == 58 or (0x2010 <= point <= 0x2015)


@leaf
def _is_mark(point, kind):
    return not kind & ALNUM if point < 128 else kind & PUNCTUATION != 0


@routine
def _add_wide(data, at, leads, core, letters, pages, flags):
    """Add the characters beyond ASCII of a block to the masks of its cores and letters.

    Returns also where dashes are: those that are punctuation, and others.
    """
    dashes = ZERO
    weak = ZERO
    while leads:
        bit = trailing_zeros(leads)
        leads &= leads - ONE
        point, width = decode(data, at + bit)
        kind = flags_of(point, pages, flags)
        places = ((ONE << np.uint64(width)) - ONE) << np.uint64(bit)
        if kind & PUNCTUATION:
            dashes |= np.uint64(_joins(point)) << np.uint64(bit)
        else:
            core |= places
            weak |= np.uint64(_joins(point)) << np.uint64(bit)
        if kind & ALPHA:
            letters |= places
    return core, letters, dashes, weak


@routine
def _beside(weak, joins, words, openings):
    """Which of the dashes `weak` stand in a word that also has one of `joins`."""
    found = ZERO
    while openings:
        bit = trailing_zeros(openings)
        openings &= openings - ONE
        word = words & ~(words + (ONE << np.uint64(bit)))
        if word & joins:
            found |= word & weak
    return found


@leaf
def _reached(mask, first):
    """The bits of the mask that are connected with its bits `first` by set bits below them."""
    return mask & ~(mask + (first & mask))


@leaf
def block_tokens(data, at, end, pages, flags):
    """The tokens of the next block: where they begin, where their last bytes are, and how many bytes it takes.

    The bytes are 0 when the word at `at` is longer than a block.
    """
    spaces, maybe, core, letters, joins, dots, continuing, leads = _masks(data, at, end)
    if maybe:
        spaces = with_wide_spaces(data, at, end, spaces, maybe)
    size = whole_words(at, end, spaces)
    if size == 0:
        return ZERO, ZERO, 0
    words = ~spaces & first_bits(size)
    openings = words & ~(words << ONE)
    closings = words & ~(words >> ONE)
    dashes = ZERO
    if leads & words:
        core, letters, dashes, weak = _add_wide(data, at, leads & words, core, letters, pages, flags)
        if weak:
            # A dash that is not punctuation separates words only beside a mark that does.
            dashes |= _beside(weak, joins & words | dashes, words, openings)
    marks = words & ~core
    outer = _reached(marks, openings) | reversed_bits(_reached(reversed_bits(marks), reversed_bits(closings)))
    # Each mark outside of a core is a token, but full stops in a row are one.
    starts = outer & ~continuing & ~(dots & (dots << ONE))
    inner = words & ~outer
    starts |= inner & ~(inner << ONE)
    # A mark between two letters is a token, and so is what comes after it. The dashes have three bytes.
    joins &= (letters << ONE) & (letters >> ONE) & words
    starts |= joins | (joins << ONE)
    if dashes:
        dashes &= (letters << ONE) & (letters >> np.uint64(3))
        starts |= dashes | (dashes << np.uint64(3))
    # As many beginnings as ends, also in bytes that are not UTF-8.
    starts = (starts | openings) & words
    return starts, ((starts & ~openings) >> ONE) | closings, size


@routine
def tokenize(data, begin, end, pages, flags, starts, ends, count):
    """Append the tokens of a range; the arrays must have room for one per byte. Returns the new count."""
    at = begin
    while at < end:
        first, last, size = block_tokens(data, at, end, pages, flags)
        if size:
            write_places(starts, count, at, first)
            count = write_places(ends, count, at + 1, last)
            at += size
        else:
            stop = long_word_end(data, at, end)
            count = _tokenize_word(data, at, stop, pages, flags, starts, ends, count)
            at = stop
    return count


@routine
def _tokenize_word(data, begin, end, pages, flags, starts, ends, count):
    """Append the tokens of a word, character by character."""
    core = end
    core_end = end
    joins = False
    at = begin
    while at < end:
        point, width = decode(data, at)
        if _is_mark(point, flags_of(point, pages, flags)):
            joins |= _joins(point)
        else:
            core = min(core, at)
            core_end = at + width
        at += width
    before = 0
    letter_before = False
    joined = False
    at = begin
    while at < end:
        if at == core and not joins:
            starts[count] = core
            ends[count] = core_end
            count += 1
            at = core_end
            continue
        point, width = decode(data, at)
        after = at + width
        if at < core or at >= core_end:
            starting = not (point == 46 and before == 46)
        else:
            starting = joined or at == core
            joined = False
            if joins and letter_before and after < core_end and _joins(point):
                following, _ = decode(data, after)
                joined = flags_of(following, pages, flags) & ALPHA != 0
                starting |= joined
        if starting or at in (begin, core_end):
            starts[count] = at
            count += 1
        ends[count - 1] = after
        before = point
        letter_before = flags_of(point, pages, flags) & ALPHA != 0
        at = after
    return count


@routine
def sentences(data, starts, ends, count, pages, flags):
    """How many sentences a row of tokens makes: one begins at a word after a mark that ends sentences."""
    if count == 0:
        return 0
    found = 1
    ended = False
    for token in range(count):
        point, width = decode(data, starts[token])
        kind = flags_of(point, pages, flags)
        terminal = kind & TERMINAL != 0 and starts[token] + width == ends[token]
        if terminal:
            ended = True
        elif ended and not kind & PUNCTUATION:
            found += 1
            ended = False
    return found


@kernel
def _spans(data, offsets, alive, pages, flags, starts, ends, bounds):
    count = 0
    for row in range(len(alive)):
        if alive[row]:
            count = tokenize(data, offsets[row], offsets[row + 1], pages, flags, starts, ends, count)
        bounds[row + 1] = count
    return count


@routine
def _classes(data, begin, end, pages, flags):
    """Whether a token has a character that is not punctuation, and whether it has a letter."""
    proper = False
    alpha = False
    at = begin
    while at < end and not (proper and alpha):
        point, width = decode(data, at)
        kind = flags_of(point, pages, flags)
        proper = proper or not kind & PUNCTUATION
        alpha = alpha or kind & ALPHA != 0
        at += width
    return proper, alpha


@routine
def _same_rest(data, begin, length, rests, rest):
    """Whether a token of more than eight bytes ends as the stop word whose later bytes begin at `rests[rest]`."""
    same = True
    for place in range(length - _KEY_BYTES):
        same &= data[begin + _KEY_BYTES + place] == rests[rest + place]
    return same


@routine
def _place_of(data, begin, key, length, slot, stop_keys, stop_lengths, stop_rests, rests):
    """The place of a stop word in the table, or an empty one."""
    while stop_lengths[slot]:
        same = stop_keys[slot] == key and stop_lengths[slot] == length
        if same and (length <= _KEY_BYTES or _same_rest(data, begin, length, rests, stop_rests[slot])):
            break
        slot = (slot + 1) & (len(stop_keys) - 1)
    return slot


@kernel
def _token_counts(
    data,
    starts,
    ends,
    bounds,
    alive,
    pages,
    flags,
    stop_keys,
    stop_lengths,
    stop_rests,
    rests,
    wanted,
    crowded,
    out,
):
    places = len(stop_keys) - 1
    seen = np.empty(len(stop_keys), dtype=np.bool_)
    for row in range(len(alive)):
        if not alive[row] or bounds[row] == bounds[row + 1]:
            continue
        seen[:] = False
        proper_words = proper_chars = alpha_words = stop_words = 0
        whole = ends[bounds[row + 1] - 1] - starts[bounds[row]]
        all_ascii = count_points(data, starts[bounds[row]], ends[bounds[row + 1] - 1]) == whole
        for token in range(bounds[row], bounds[row + 1]):
            begin = starts[token]
            length = ends[token] - begin
            if length == 0:
                continue
            key = load_part(data, begin, min(_KEY_BYTES, length))
            first = data[begin]
            kind = flags_of(np.int64(first & 127), pages, flags)
            proper = not kind & PUNCTUATION
            alpha = kind & ALPHA != 0
            if first >= 0x80 or not (alpha or length == 1):
                proper, alpha = _classes(data, begin, begin + length, pages, flags)
            alpha_words += alpha
            proper_words += proper
            proper_chars += proper * (length if all_ascii else count_points(data, begin, begin + length))
            if stop_words < wanted:
                slot = np.int64((key * _MIX) >> _SHIFT) & places
                found = (stop_keys[slot] == key) & (stop_lengths[slot] == length)
                if found and length > _KEY_BYTES:
                    found = _same_rest(data, begin, length, rests, stop_rests[slot])
                stop_words += found & ~seen[slot]
                seen[slot] |= found
                if crowded and not found:
                    slot = _place_of(data, begin, key, length, slot, stop_keys, stop_lengths, stop_rests, rests)
                    stop_words += stop_lengths[slot] != 0 and not seen[slot]
                    seen[slot] = True
        counts = out[row]
        counts[N_TOKENS] = bounds[row + 1] - bounds[row]
        counts[PROPER_WORDS] = proper_words
        counts[PROPER_CHARS] = proper_chars
        counts[ALPHA_WORDS] = alpha_words
        counts[STOP_WORDS] = stop_words


@lru_cache(maxsize=8)
def _stop_table(stop_words: tuple[str, ...]) -> tuple[npt.NDArray[np.uint64], Integers, Integers, Bytes, int, bool]:
    """A hash table of the words, how many there are, and whether two want the same place.

    A word is its first eight bytes as a number, its length, and where its later bytes begin in the fourth array. The
    table is enlarged until none want the same place, within reason: then a token needs only one look, which cannot be
    guessed wrong.
    """
    encoded = sorted({word.encode() for word in stop_words} - {b""})
    numbers = np.array([int.from_bytes(word[:_KEY_BYTES], "little") for word in encoded], dtype=np.uint64)
    mixed = [int(number) * int(_MIX) % 2**64 >> int(_SHIFT) for number in numbers]
    size = 64
    while size < 4 * len(mixed) or (size < 4096 and len({value % size for value in mixed}) < len(mixed)):
        size *= 2
    keys, lengths, rests = np.zeros(size, np.uint64), np.zeros(size, np.int64), np.zeros(size, np.int64)
    later = bytearray()
    for number, word, value in zip(numbers, encoded, mixed, strict=True):
        slot = value % size
        while lengths[slot]:
            slot = (slot + 1) % size
        keys[slot], lengths[slot], rests[slot] = number, len(word), len(later)
        later += word[_KEY_BYTES:]
    crowded = len({value % size for value in mixed}) < len(mixed)
    return keys, lengths, rests, np.frombuffer(bytes(later), np.uint8), len(encoded), crowded


def token_spans(column: TextColumn, alive: Mask) -> WordSpans:
    """The tokens of the documents that `alive` marks; others have none."""
    pages, flags = class_tables()
    bounds = np.zeros(len(column) + 1, dtype=np.int64)
    # One token per byte is the most there can be; pages that are not written to cost nothing.
    room = int(column.lengths[alive].sum())
    starts, ends = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    count = _spans(column.data, column.offsets, alive, pages, flags, starts, ends, bounds)
    return word_spans(column.data, starts[:count], ends[:count], bounds)


def token_counts(words: WordSpans, alive: Mask, stop_words: tuple[str, ...]) -> Integers:
    """The counts of every document that `alive` marks: an int64 row per document, one column per statistic.

    Args:
        words: The tokens.
        alive: The documents to look at.
        stop_words: Words to look for.
    """
    out = np.zeros((len(words.bounds) - 1, WIDTH), dtype=np.int64)
    pages, flags = class_tables()
    _token_counts(*words, alive, pages, flags, *_stop_table(stop_words), out)
    return out
