"""Repeated word n-grams of each document: the most frequent one, and the text that earlier n-grams already gave.

Only what is repeated can be part of something longer that is repeated. A table with a byte per place tells which pairs
of words may be: in ordinary text about a third. Those get numbers, equal pairs the same one, by comparing their words.
A longer n-gram is the pair of the two (n-1)-grams it consists of, so equality is exact at every length, and each length
looks at the survivors of the length before, which become few very soon.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import WIDTH, address_of, load8, pair_mask, trailing_zeros
from gristmill.kernels.text_column import Integers, Mask, TextColumn, WordSpans
from gristmill.kernels.text_words import split_words
from gristmill.kernels.utf8 import ONE, ZERO, count_points, load_part, same_bytes

# A document with fewer words than an n-gram has is marked by this number in every result.
TOO_SHORT = -1

_MIX = np.uint64(0x9E3779B97F4A7C15)
_OTHER_MIX = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_TAGS = np.uint64(0xFFFFFFFF00000000)
# The lowest bytes of a number, by how many.
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)
# The largest table of marks, which stays in the cache; a document too long for it has more candidates, no other result.
_MOST_MARKS = 1 << 20

# How common a byte is: letters of English by their order, then spaces and what all wide characters of a text share.
_COMMON = np.zeros(256, dtype=np.int64)
_COMMON[list(b"zqxjkvbpygfwmucldrhsnioate ")] = range(1, 28)
_COMMON[0x80:0xC0] = 12
_COMMON[0xC0:] = 30


@routine
def _long_hash(data, begin, length):
    """What `_word_hash` gives for a word that it cannot read in two pieces."""
    first = load_part(data, begin, min(length, 8)) if length > 0 else ZERO
    last = first if length <= 8 else load8(data, begin + length - 8)
    mixed = first * _MIX + last * _OTHER_MIX + np.uint64(length)
    for at in range(begin + 8, begin + length - 8, 8):
        mixed = (mixed ^ (mixed >> _SHIFT) ^ load8(data, at)) * _MIX
    return mixed


@leaf
def _word_hash(data, begin, length):
    """A hash of a word, without a branch for nearly all: lengths come in no order that could be guessed."""
    if length > 16 or begin + 8 > len(data):
        return _long_hash(data, begin, length)
    mask = _MASKS[min(length, 8)]
    first = load8(data, begin) & mask
    last = load8(data, begin + max(length - 8, 0)) & mask
    return first * _MIX + last * _OTHER_MIX + np.uint64(length)


@routine
def _candidates(data, starts, ends, words, unit, marks, size, keys, places):
    """Write where one or two words begin that may be repeated, and their hashes; returns how many there are.

    All that are repeated are among them, and some whose hashes share a place in the table.
    """
    marks[:size] = 0
    shift = np.uint64(64)
    while size > 1:
        size //= 2
        shift -= ONE
    before = ZERO
    for word in range(words):
        own = _word_hash(data, starts[word], ends[word] - starts[word])
        if unit == 1:
            key = own
        else:
            key = (before ^ (before >> _SHIFT)) * _MIX + own
            before = own
            if word == 0:
                continue
        keys[word + 1 - unit] = key
        slot = key >> shift
        # The first of a place leaves 1, every further one 3.
        marks[slot] = (marks[slot] << 1 | 1) & 3
    found = 0
    for word in range(words + 1 - unit):
        key = keys[word]
        keys[found] = key
        places[found] = word
        found += marks[key >> shift] >> 1
    return found


@routine
def _lengthen(places, grams, counts, found, keys):
    """Keep the n-grams that are repeated and followed by one that is, with the two numbers as key; how many."""
    pairs = 0
    for at in range(found - 1):
        one = grams[at]
        other = grams[at + 1]
        keys[pairs] = (np.uint64(one) << _SHIFT) | np.uint64(other)
        place = places[at]
        places[pairs] = place
        if places[at + 1] == place + 1 and counts[one] > 1 and counts[other] > 1:
            pairs += 1
    return pairs


@leaf
def _same_words(data, starts, ends, one, other, count):
    for step in range(count):
        begin = starts[one + step]
        length = ends[one + step] - begin
        if ends[other + step] - starts[other + step] != length:
            return False
        if not same_bytes(data, begin, starts[other + step], length):
            return False
    return True


@leaf
def _chars(data, starts, ends, first, last, ascii_only):
    """The characters of a row of words."""
    total = 0
    for word in range(first, last):
        total += ends[word] - starts[word] if ascii_only else count_points(data, starts[word], ends[word])
    return total


@routine
def _number(n, data, starts, ends, ascii_only, unit, places, keys, found, slots, grams, counts, firsts, wants_duplicates):
    """Give equal n-grams equal numbers, in the order in which they first occur.

    Keys decide, and where `unit` is not 0 so many words, whose hashes the keys are. Returns how many are distinct, and
    the characters of those that occurred before.
    """
    size = 16
    while size < found + found // 2:
        size *= 2
    slots[:size] = ZERO
    distinct = 0
    duplicate_chars = 0
    last = -n
    for at in range(found):
        key = keys[at]
        mixed = key * _MIX
        mixed ^= mixed >> _SHIFT
        mixed *= _MIX
        mixed ^= mixed >> _SHIFT
        tag = mixed & _TAGS
        slot = np.int64(mixed & np.uint64(size - 1))
        place = np.int64(places[at])
        number = -1
        while slots[slot]:
            if slots[slot] & _TAGS == tag:
                seen = np.int64(slots[slot] & _LOW) - 1
                # Distinct n-grams are numbered as they come, so the key of number `seen` was moved to that place.
                if keys[seen] == key and _same_words(data, starts, ends, firsts[seen], place, unit):
                    number = int(seen)
                    break
            slot = (slot + 1) & (size - 1)
        if number < 0:
            number = distinct
            distinct += 1
            slots[slot] = tag | np.uint64(distinct)
            keys[number] = key
            counts[number] = 1
            firsts[number] = place
        else:
            counts[number] += 1
            if wants_duplicates:
                overlap = max(n - (place - last), 0)
                duplicate_chars += _chars(data, starts, ends, place + overlap, place + n, ascii_only)
                duplicate_chars += min(n - overlap, n - 1)
                last = place
        grams[at] = number
    return distinct, duplicate_chars


@routine
def _most_frequent(counts, firsts, distinct):
    """Where the most frequent n-gram first occurs, and how often it does; the earliest of those that tie."""
    best = 0
    for number in range(1, distinct):
        if counts[number] > counts[best]:
            best = number
    if distinct == 0 or counts[best] == 1:
        return 0, 1
    return np.int64(firsts[best]), np.int64(counts[best])


@leaf
def _rare_places(pattern, length):
    """Where the two least common of the first bytes of a pattern are, the earlier place first."""
    rare = 0
    other = 0
    for at in range(1, min(length, 64)):
        if _COMMON[pattern[at]] < _COMMON[pattern[rare]]:
            other = rare
            rare = at
        elif other == rare or _COMMON[pattern[at]] < _COMMON[pattern[other]]:
            other = at
    return min(rare, other), max(rare, other)


@leaf
def _stands_at(data, at, pattern, length):
    """Whether the bytes from a place on are the pattern, and how many were looked at."""
    for position in range(length):
        if data[at + position] != pattern[position]:
            return False, position + 1
    return True, length


@routine
def _occurrences(data, begin, end, pattern, length):
    """How often a byte string occurs between two places of the text without overlap, in linear time."""
    if length == 0 or length > end - begin:
        return 0
    near, far = _rare_places(pattern, length)
    one = np.int64(pattern[near])
    other = np.int64(pattern[far])
    base = address_of(data)
    found = 0
    free = begin
    at = begin
    # A text made for it could have nearly the whole pattern compared at every place.
    patience = 4 * (end - begin) + 1024
    while at + length <= end and at + far + WIDTH <= len(data) and patience > 0:
        hits = np.uint64(pair_mask(base + at + near, far - near, one, other))
        while hits:
            place = at + trailing_zeros(hits)
            hits &= hits - ONE
            if place >= free and place + length <= end:
                equal, looked_at = _stands_at(data, place, pattern, length)
                patience -= looked_at
                if equal:
                    found += 1
                    free = place + length
        at += WIDTH
    return found + _rolling_occurrences(data, max(at, free), end, pattern, length)


@routine
def _rolling_occurrences(data, begin, end, pattern, length):
    """The same, by a hash that moves along byte by byte."""
    if length > end - begin:
        return 0
    wanted = ZERO
    rolling = ZERO
    power = ONE
    for at in range(length):
        wanted = wanted * _MIX + np.uint64(pattern[at])
        rolling = rolling * _MIX + np.uint64(data[begin + at])
        if at:
            power *= _MIX
    found = 0
    free = begin
    at = begin
    while True:
        if at >= free and rolling == wanted:
            equal = True
            for position in range(length):
                if data[at + position] != pattern[position]:
                    equal = False
                    break
            if equal:
                found += 1
                free = at + length
        if at + length >= end:
            return found
        rolling = (rolling - np.uint64(data[at]) * power) * _MIX + np.uint64(data[at + length])
        at += 1


@kernel
def _ngrams(
    data,
    offsets,
    word_starts,
    word_ends,
    bounds,
    given,
    text,
    text_offsets,
    alive,
    weigh,
    top,
    duplicate,
    out_top,
    out_duplicate,
):
    """Fill one column per wanted length; `given` tells that the words of `data` were found by another splitter."""
    longest = 1
    unit = 2
    for position in range(len(top)):
        longest = max(longest, top[position])
        unit = min(unit, top[position])
    for position in range(len(duplicate)):
        longest = max(longest, duplicate[position])
        unit = min(unit, duplicate[position])
    room = 0
    span = 0
    starts = np.empty(0, dtype=np.int64)
    ends = np.empty(0, dtype=np.int64)
    slots = np.empty(0, dtype=np.uint64)
    marks = np.empty(0, dtype=np.uint8)
    keys = np.empty(0, dtype=np.uint64)
    grams = np.empty(0, dtype=np.int32)
    places = np.empty(0, dtype=np.int32)
    counts = np.empty(0, dtype=np.int32)
    firsts = np.empty(0, dtype=np.int32)
    needle = np.empty(0, dtype=np.uint8)
    for row in range(len(alive)):
        if not alive[row]:
            continue
        ascii_only = False
        if given:
            words = bounds[row + 1] - bounds[row]
            if words > span:
                span = words + words // 4
                starts = np.empty(span, dtype=np.int64)
                ends = np.empty(span, dtype=np.int64)
            for word in range(words):
                starts[word] = word_starts[bounds[row] + word]
                ends[word] = word_ends[bounds[row] + word]
        else:
            most = (offsets[row + 1] - offsets[row]) // 2 + 2
            if most > span:
                span = most + most // 4
                starts = np.empty(span, dtype=np.int64)
                ends = np.empty(span, dtype=np.int64)
            words, ascii_only, _ = split_words(data, offsets[row], offsets[row + 1], starts, ends)
        if words + 1 > room:
            room = words + words // 4 + 1024
            keys = np.empty(room, dtype=np.uint64)
            grams = np.empty(room, dtype=np.int32)
            places = np.empty(room, dtype=np.int32)
            counts = np.empty(room, dtype=np.int32)
            firsts = np.empty(room, dtype=np.int32)
            size = 512
            while size < 2 * room:
                size *= 2
            slots = np.empty(size, dtype=np.uint64)
            marks = np.empty(min(4 * size, _MOST_MARKS), dtype=np.uint8)
        size = 256
        while size < 8 * words and size < _MOST_MARKS:
            size *= 2
        found = _candidates(data, starts, ends, words, unit, marks, size, keys, places)
        for n in range(unit, longest + 1):
            wants_duplicates = False
            for position in range(len(duplicate)):
                wants_duplicates |= duplicate[position] == n
            if n > unit:
                found = _lengthen(places, grams, counts, found, keys)
            distinct, duplicate_chars = _number(
                n,
                data,
                starts,
                ends,
                ascii_only,
                unit if n == unit else 0,
                places,
                keys,
                found,
                slots,
                grams,
                counts,
                firsts,
                wants_duplicates,
            )
            for position in range(len(duplicate)):
                if duplicate[position] == n:
                    out_duplicate[row, position] = duplicate_chars if words >= n else TOO_SHORT
            for position in range(len(top)):
                if top[position] != n:
                    continue
                if words < n:
                    out_top[row, position] = TOO_SHORT
                    continue
                first, times = _most_frequent(counts, firsts, distinct)
                if not weigh:
                    length = n - 1
                    for word in range(first, first + n):
                        length += ends[word] - starts[word]
                    if length > len(needle):
                        needle = np.empty(2 * length, dtype=np.uint8)
                    _join(data, starts, ends, first, n, needle)
                    times = _occurrences(text, text_offsets[row], text_offsets[row + 1], needle, length)
                out_top[row, position] = times * (_chars(data, starts, ends, first, first + n, ascii_only) + n - 1)


@routine
def _join(data, starts, ends, first, n, needle):
    at = 0
    for word in range(first, first + n):
        if word > first:
            needle[at] = 32
            at += 1
        for position in range(starts[word], ends[word]):
            needle[at] = data[position]
            at += 1


def ngram_counts(
    column: TextColumn,
    alive: Mask,
    *,
    top: tuple[int, ...] = (),
    duplicate: tuple[int, ...] = (),
    words: WordSpans | None = None,
    weigh: bool = False,
) -> tuple[Integers, Integers]:
    """For each wanted length, characters that the most frequent n-gram takes, and that repeated n-grams take.

    The first array has a column per length of `top`: the characters that go when the most frequent n-gram (the one that
    occurs first among equals) is deleted from the text wherever it stands, joined by single spaces. The second has a
    column per length of `duplicate`: the characters of n-grams that occurred before, counted once where they overlap,
    with one for each space between their words. A document with fewer words than n has -1.

    Args:
        column: The texts.
        alive: The documents to look at.
        top: Lengths for the most frequent n-gram.
        duplicate: Lengths for repeated n-grams.
        words: Words that another splitter found; None splits at white space.
        weigh: For the most frequent n-gram, take its length times how often it occurs among the n-grams, instead of
            what its deletion takes from the text.
    """
    out_top = np.zeros((len(column), len(top)), dtype=np.int64)
    out_duplicate = np.zeros((len(column), len(duplicate)), dtype=np.int64)
    spans = words if words is not None else WordSpans(column.data, column.offsets, column.offsets, column.offsets)
    _ngrams(
        spans.data,
        column.offsets,
        spans.starts,
        spans.ends,
        spans.bounds,
        words is not None,
        column.data,
        column.offsets,
        alive,
        weigh,
        np.array(top, dtype=np.int64),
        np.array(duplicate, dtype=np.int64),
        out_top,
        out_duplicate,
    )
    return out_top, out_duplicate
