"""Repeated word n-grams of each document: the most frequent one, and the text covered by repeated ones.

Only repeated n-grams can be part of longer repeated ones. A table with a byte per slot shows which pairs of words may
repeat: in ordinary text about a third. These are numbered, with the same number for equal pairs, by comparing their
words. A longer n-gram is the pair of its two (n-1)-grams, so equality is exact at every length, and each length only
examines the survivors of the previous one, which soon become few.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import WIDTH, address_of, load8, pair_mask, trailing_zeros
from gristmill.kernels.text_column import Integers, Mask, TextColumn, WordSpans
from gristmill.kernels.text_words import split_words
from gristmill.kernels.utf8 import ONE, ZERO, count_points, load_part, same_bytes

# Marks a document with fewer words than the n-gram in every result.
TOO_SHORT = -1

_MIX = np.uint64(0x9E3779B97F4A7C15)
_OTHER_MIX = np.uint64(0xC2B2AE3D27D4EB4F)
_SHIFT = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
# The lowest bytes of a number, by how many.
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(9)], dtype=np.uint64)

# How common a byte is: letters of English by their order, then spaces and what all wide characters of a text share.
_COMMON = np.zeros(256, dtype=np.int64)
_COMMON[list(b"zqxjkvbpygfwmucldrhsnioate ")] = range(1, 28)
_COMMON[0x80:0xC0] = 12
_COMMON[0xC0:] = 30


@routine
def _odd_hash(data, begin, length):
    """The result of `_word_hash` for an empty word, a long one, or one at an edge of the data."""
    if length == 0:
        return ZERO
    if length < 8:
        part = load_part(data, begin, length)
        return (part << np.uint64(64 - 8 * length)) * _MIX + part * _OTHER_MIX
    mixed = load8(data, begin) * _MIX + load8(data, begin + length - 8) * _OTHER_MIX
    for at in range(begin + 8, begin + length - 8, 8):
        mixed = (mixed ^ (mixed >> _SHIFT) ^ load8(data, at)) * _MIX
    return mixed


@leaf
def _word_hash(data, begin, length):
    """A hash of a word, branch-free for nearly all words: lengths are unpredictable."""
    if np.uint64(length - 1) >= np.uint64(16) or begin + length < 8 or begin + 8 > len(data):
        return _odd_hash(data, begin, length)
    # Eight bytes that begin with the word, and eight that end with it, in both of which a short word is all that stays.
    surplus = np.uint64(max(64 - 8 * length, 0))
    return (load8(data, begin) << surplus) * _MIX + (load8(data, begin + length - 8) >> surplus) * _OTHER_MIX


@leaf
def _same_words(data, starts, ends, one, other, count):
    for step in range(count):
        begin = starts[one + step]
        again = starts[other + step]
        length = ends[one + step] - begin
        if ends[other + step] - again != length:
            return False
        if length <= 16 and max(begin, again) + 8 <= len(data):
            mask = _MASKS[min(length, 8)]
            rest = max(length - 8, 0)
            different = (load8(data, begin) ^ load8(data, again)) | (
                load8(data, begin + rest) ^ load8(data, again + rest)
            )
            if different & mask:
                return False
        elif not same_bytes(data, begin, again, length):
            return False
    return True


@leaf
def _chars(data, starts, ends, first, last, ascii_only):
    """The characters of a row of words."""
    total = 0
    for word in range(first, last):
        total += ends[word] - starts[word] if ascii_only else count_points(data, starts[word], ends[word])
    return total


@leaf
def _table(slots, entries):
    """Clear a table for this many entries; returns the shift that turns a hash into a slot."""
    size = 16
    shift = 60
    while size < entries:
        size *= 2
        shift -= 1
    slots[:size] = 0
    return np.uint64(shift), size - 1


@routine
def _chain_units(data, starts, ends, words, unit, slots, links, places):
    """Chain the units (one or two words from each word on) whose hashes share a slot; returns how many follow another.

    A link is one more than the place of the unit before in the chain, or 0, below half of the hash. Almost branch-free:
    which units follow another is unpredictable.
    """
    shift, _ = _table(slots, 4 * words)
    before = ZERO
    found = 0
    for word in range(words):
        own = _word_hash(data, starts[word], ends[word] - starts[word])
        key = own if unit == 1 else (before ^ (before >> _SHIFT)) * _MIX + own
        before = own
        at = word + 1 - unit
        if at < 0:
            continue
        slot = key >> shift
        link = slots[slot]
        slots[slot] = at + 1
        links[at] = (key << _SHIFT) | np.uint64(link)
        places[found] = at
        found += link > 0
    return found


@routine
def _repeated_units(data, starts, ends, unit, links, origins, places, candidates):
    """Of the units that follow another in a chain keep those that occurred before, with their origin; how many."""
    found = 0
    for candidate in range(candidates):
        place = np.int64(places[candidate])
        half = links[place] & ~_LOW
        newer = place
        while links[newer] & _LOW:
            seen = np.int64(links[newer] & _LOW) - 1
            if links[seen] & ~_LOW == half and _same_words(data, starts, ends, seen, place, unit):
                origins[place] = origins[seen]
                places[found] = place
                found += 1
                # Only the latest of equal units stays in a chain, which keeps it short.
                links[newer] = (links[newer] & ~_LOW) | (links[seen] & _LOW)
                break
            newer = seen
    return found


@routine
def _lengthen(n, words, places, found, slots, origins, longer, longer_origins):
    """Turn what is known of (n-1)-grams into what is known of n-grams; returns how many of them occurred before.

    An n-gram that occurred before begins with an (n-1)-gram that did. It is the n-gram at the origin of that one if the
    next (n-1)-grams are the same; only those that go on in another way than at the origin need a table.
    """
    shift, last = _table(slots, 2 * found)
    kept = 0
    for at in range(found):
        place = np.int64(places[at])
        if place + n > words:
            break
        origin = np.int64(origins[place])
        following = origins[place + 1]
        if origins[origin + 1] != following:
            slot = np.int64(((np.uint64(origin) << _SHIFT | np.uint64(following)) * _MIX) >> shift)
            while slots[slot]:
                seen = np.int64(slots[slot]) - 1
                if origins[seen] == origin and origins[seen + 1] == following:
                    break
                slot = (slot + 1) & last
            if not slots[slot]:
                slots[slot] = place + 1
                continue
            origin = np.int64(slots[slot]) - 1
        longer[kept] = place
        longer_origins[kept] = origin
        kept += 1
    for at in range(found):
        origins[places[at]] = places[at]
    for at in range(kept):
        origins[longer[at]] = longer_origins[at]
    return kept


@routine
def _duplicate_chars(n, data, starts, ends, ascii_only, places, found):
    """The characters of n-grams that occurred before and of the spaces in them, once where they overlap."""
    chars = 0
    last = -n
    for at in range(found):
        place = np.int64(places[at])
        overlap = max(n - (place - last), 0)
        chars += _chars(data, starts, ends, place + overlap, place + n, ascii_only) + min(n - overlap, n - 1)
        last = place
    return chars


@routine
def _most_frequent(places, found, origins, counts):
    """The first occurrence of the most frequent n-gram, and its count; the earliest one among ties."""
    for at in range(found):
        counts[origins[places[at]]] = 1
    first = np.int64(0)
    most = np.int64(1)
    for at in range(found):
        origin = np.int64(origins[places[at]])
        times = np.int64(counts[origin]) + 1
        counts[origin] = times
        if times > most or (times == most and origin < first):
            most = times
            first = origin
    return first, most


@leaf
def _rare_places(pattern, length):
    """Where the two least common of the first bytes of a pattern are, the earlier place first."""
    # Rank and place in one number, so that the two least are found without a branch.
    rarest = _COMMON[pattern[0]] << 8
    second = np.int64(1 << 30)
    for at in range(1, min(length, 16)):
        here = _COMMON[pattern[at]] << 8 | at
        second = min(second, max(rarest, here))
        rarest = min(rarest, here)
    near = rarest & 255
    far = second & 255 if length > 1 else near
    return min(near, far), max(near, far)


@leaf
def _stands_at(data, at, pattern, length):
    """Whether the bytes from a place on are the pattern, and how many were looked at."""
    position = 0
    while position + 8 <= length:
        if load8(data, at + position) != load8(pattern, position):
            return False, position + 8
        position += 8
    while position < length:
        if data[at + position] != pattern[position]:
            return False, position + 1
        position += 1
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
        hits = np.uint64(pair_mask(base + at + near, far - near, one, other, 0))
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
    """The same, with a rolling hash."""
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
    links = np.empty(0, dtype=np.uint64)
    slots = np.empty(0, dtype=np.int32)
    origins = np.empty(0, dtype=np.int32)
    places = np.empty(0, dtype=np.int32)
    longer = np.empty(0, dtype=np.int32)
    scratch = np.empty(0, dtype=np.int32)
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
            links = np.empty(room, dtype=np.uint64)
            # Between documents every place is its own origin.
            origins = np.arange(room, dtype=np.int32)
            places = np.empty(room, dtype=np.int32)
            longer = np.empty(room, dtype=np.int32)
            scratch = np.empty(room, dtype=np.int32)
            size = 512
            while size < 4 * room:
                size *= 2
            slots = np.empty(size, dtype=np.int32)
        found = _chain_units(data, starts, ends, words, unit, slots, links, places)
        found = _repeated_units(data, starts, ends, unit, links, origins, places, found)
        for n in range(unit, longest + 1):
            if n > unit and found:
                found = _lengthen(n, words, places, found, slots, origins, longer, scratch)
                places, longer = longer, places
            for position in range(len(duplicate)):
                if duplicate[position] == n:
                    chars = _duplicate_chars(n, data, starts, ends, ascii_only, places, found)
                    out_duplicate[row, position] = chars if words >= n else TOO_SHORT
            for position in range(len(top)):
                if top[position] != n:
                    continue
                if words < n:
                    out_top[row, position] = TOO_SHORT
                    continue
                first, times = _most_frequent(places, found, origins, scratch)
                if not weigh:
                    length = n - 1
                    for word in range(first, first + n):
                        length += ends[word] - starts[word]
                    if length > len(needle):
                        needle = np.empty(2 * length, dtype=np.uint8)
                    _join(data, starts, ends, first, n, needle)
                    times = _occurrences(text, text_offsets[row], text_offsets[row + 1], needle, length)
                out_top[row, position] = times * (_chars(data, starts, ends, first, first + n, ascii_only) + n - 1)
        for at in range(found):
            origins[places[at]] = places[at]


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
