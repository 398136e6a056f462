"""Repeated word n-grams of each document: the most frequent one, and the text that earlier n-grams already gave.

Words get numbers, and an n-gram is the pair of the two (n-1)-grams it consists of, so equality is exact and needs no
comparison of bytes. Only what is repeated can be part of something longer that is repeated: each length looks at the
survivors of the length before, which in ordinary text become few very soon.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, routine
from gristmill.kernels.machine import load8
from gristmill.kernels.text_column import Integers, Mask, TextColumn, WordSpans
from gristmill.kernels.text_words import split_words
from gristmill.kernels.utf8 import ONE, ZERO, count_points, load_part, same_bytes

# A document with fewer words than an n-gram has is marked by this number in every result.
TOO_SHORT = -1

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_TAGS = np.uint64(0xFFFFFFFF00000000)


@routine
def _word_key(data, begin, length):
    """A number that is the word itself up to eight bytes, and a hash of its bytes beyond."""
    if length <= 8:
        return load_part(data, begin, length)
    mixed = load8(data, begin) * _MIX
    at = begin + 8
    end = begin + length
    while at + 8 <= end:
        mixed = (mixed ^ (mixed >> _SHIFT) ^ load8(data, at)) * _MIX
        at += 8
    if at < end:
        # The last eight bytes overlap the chunk before them, which saves a partial load.
        mixed = (mixed ^ (mixed >> _SHIFT) ^ load8(data, end - 8)) * _MIX
    return mixed


@routine
def _grow(slots, size, keys, lengths, distinct):
    """Double the table and put the known words into their new places."""
    size *= 2
    slots[:size] = ZERO
    for known in range(distinct):
        mixed = (keys[known] ^ np.uint64(lengths[known])) * _MIX
        mixed ^= mixed >> _SHIFT
        slot = np.int64(mixed & np.uint64(size - 1))
        while slots[slot]:
            slot = (slot + 1) & (size - 1)
        slots[slot] = (mixed & _TAGS) | np.uint64(known + 1)
    return size


@routine
def _number_words(data, starts, ends, words, slots, keys, lengths, grams, counts, firsts):
    """Give equal words equal numbers, in the order in which they first occur; returns how many are distinct."""
    size = 256
    slots[:size] = ZERO
    distinct = 0
    for word in range(words):
        begin = starts[word]
        length = ends[word] - begin
        key = _word_key(data, begin, length)
        mixed = (key ^ np.uint64(length)) * _MIX
        mixed ^= mixed >> _SHIFT
        tag = mixed & _TAGS
        slot = np.int64(mixed & np.uint64(size - 1))
        number = -1
        while slots[slot]:
            if slots[slot] & _TAGS == tag:
                seen = np.int64(slots[slot] & _LOW) - 1
                if (
                    keys[seen] == key
                    and lengths[seen] == length
                    and (length <= 8 or same_bytes(data, starts[firsts[seen]], begin, length))
                ):
                    number = int(seen)
                    break
            slot = (slot + 1) & (size - 1)
        if number < 0:
            number = distinct
            distinct += 1
            slots[slot] = tag | np.uint64(distinct)
            keys[number] = key
            lengths[number] = length
            counts[number] = 1
            firsts[number] = word
            if 2 * distinct > size:
                size = _grow(slots, size, keys, lengths, distinct)
        else:
            counts[number] += 1
        grams[word] = number
    return distinct


@routine
def _lengthen(n, places, grams, counts, found, slots, keys, new_counts, new_firsts, prefix, wants_duplicates):
    """Number the n-grams made of two repeated (n-1)-grams, in place.

    Returns how many such n-grams there are, how many distinct, and the characters of those that occurred before.
    """
    # The pairs worth a number are first gathered, which also tells how large the table must be.
    pairs = 0
    for at in range(found - 1):
        one = grams[at]
        other = grams[at + 1]
        if places[at + 1] == places[at] + 1 and counts[one] > 1 and counts[other] > 1:
            keys[pairs] = (np.uint64(one) << _SHIFT) | np.uint64(other)
            places[pairs] = places[at]
            pairs += 1
    size = 16
    while size < pairs + pairs // 2:
        size *= 2
    slots[:size] = ZERO
    distinct = 0
    duplicate_chars = 0
    last = -n
    for at in range(pairs):
        key = keys[at]
        mixed = key * _MIX
        mixed ^= mixed >> _SHIFT
        mixed *= _MIX
        mixed ^= mixed >> _SHIFT
        tag = mixed & _TAGS
        slot = np.int64(mixed & np.uint64(size - 1))
        number = -1
        while slots[slot]:
            if slots[slot] & _TAGS == tag:
                seen = np.int64(slots[slot] & _LOW) - 1
                # Distinct n-grams are numbered as they come, so the key of number `seen` was moved to that place.
                if keys[seen] == key:
                    number = int(seen)
                    break
            slot = (slot + 1) & (size - 1)
        if number < 0:
            number = distinct
            distinct += 1
            slots[slot] = tag | np.uint64(distinct)
            keys[number] = key
            new_counts[number] = 1
            new_firsts[number] = places[at]
        else:
            new_counts[number] += 1
            if wants_duplicates:
                place = np.int64(places[at])
                overlap = max(n - (place - last), 0)
                duplicate_chars += prefix[place + n] - prefix[place + overlap] + min(n - overlap, n - 1)
                last = place
        grams[at] = number
    return pairs, distinct, duplicate_chars


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


@routine
def _occurrences(data, starts, ends, words, numbers, first, n):
    """How often the n-gram from word `first` on, joined by single spaces, occurs in the text without overlap.

    It may begin inside a word and end inside another: its first word is the end of a word, its last the beginning.
    """
    head_length = ends[first] - starts[first]
    tail = starts[first + n - 1]
    tail_length = ends[first + n - 1] - tail
    head_last = data[ends[first] - 1]
    tail_first = data[tail]
    free = 0
    found = 0
    for word in range(words - n + 1):
        final = word + n - 1
        if data[ends[word] - 1] != head_last or data[starts[final]] != tail_first:
            continue
        matches = True
        for step in range(n - 1):
            stop = ends[word + step]
            if starts[word + step + 1] != stop + 1 or data[stop] != 32:
                matches = False
                break
            if step > 0 and numbers[word + step] != numbers[first + step]:
                matches = False
                break
        if not matches:
            continue
        begin = ends[word] - head_length
        if begin < starts[word] or begin < free or ends[final] - starts[final] < tail_length:
            continue
        if same_bytes(data, begin, starts[first], head_length) and same_bytes(data, starts[final], tail, tail_length):
            found += 1
            free = starts[final] + tail_length
    return found


@routine
def _occurrences_of_bytes(data, begin, end, pattern, length):
    """How often a byte string occurs between two places of the text without overlap, in linear time."""
    if length == 0 or length > end - begin:
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
    for position in range(len(top)):
        longest = max(longest, top[position])
    for position in range(len(duplicate)):
        longest = max(longest, duplicate[position])
    room = 0
    span = 0
    starts = np.empty(0, dtype=np.int64)
    ends = np.empty(0, dtype=np.int64)
    prefix = np.empty(0, dtype=np.int64)
    slots = np.empty(0, dtype=np.uint64)
    keys = np.empty(0, dtype=np.uint64)
    lengths = np.empty(0, dtype=np.int32)
    numbers = np.empty(0, dtype=np.int32)
    grams = np.empty(0, dtype=np.int32)
    places = np.empty(0, dtype=np.int32)
    counts = np.empty(0, dtype=np.int32)
    firsts = np.empty(0, dtype=np.int32)
    new_counts = np.empty(0, dtype=np.int32)
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
            prefix = np.empty(room, dtype=np.int64)
            keys = np.empty(room, dtype=np.uint64)
            lengths = np.empty(room, dtype=np.int32)
            numbers = np.empty(room, dtype=np.int32)
            grams = np.empty(room, dtype=np.int32)
            places = np.empty(room, dtype=np.int32)
            counts = np.empty(room, dtype=np.int32)
            firsts = np.empty(room, dtype=np.int32)
            new_counts = np.empty(room, dtype=np.int32)
            size = 512
            while size < 2 * room:
                size *= 2
            slots = np.empty(size, dtype=np.uint64)
        total = 0
        for word in range(words):
            prefix[word] = total
            total += ends[word] - starts[word] if ascii_only else count_points(data, starts[word], ends[word])
            places[word] = word
        prefix[words] = total
        distinct = _number_words(data, starts, ends, words, slots, keys, lengths, numbers, counts, firsts)
        grams[:words] = numbers[:words]
        found = words
        for n in range(1, longest + 1):
            duplicate_chars = 0
            wants_duplicates = False
            for position in range(len(duplicate)):
                wants_duplicates |= duplicate[position] == n
            if n > 1:
                # Both count arrays are needed while one is read and the other written; then they change places.
                found, distinct, duplicate_chars = _lengthen(
                    n, places, grams, counts, found, slots, keys, new_counts, firsts, prefix, wants_duplicates
                )
                counts, new_counts = new_counts, counts
            elif wants_duplicates:
                duplicate_chars = _repeated_words(prefix, numbers, words, new_counts, distinct)
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
                joined = prefix[first + n] - prefix[first] + n - 1
                if weigh:
                    pass
                elif n > 1 and not given:
                    times = _occurrences(data, starts, ends, words, numbers, first, n)
                else:
                    size_needed = n - 1
                    for word in range(first, first + n):
                        size_needed += ends[word] - starts[word]
                    if size_needed > len(needle):
                        needle = np.empty(2 * size_needed, dtype=np.uint8)
                    _join(data, starts, ends, first, n, needle)
                    times = _occurrences_of_bytes(text, text_offsets[row], text_offsets[row + 1], needle, size_needed)
                out_top[row, position] = times * joined


@routine
def _repeated_words(prefix, numbers, words, seen, distinct):
    seen[:distinct] = 0
    chars = 0
    for word in range(words):
        if seen[numbers[word]]:
            chars += prefix[word + 1] - prefix[word]
        seen[numbers[word]] = 1
    return chars


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
