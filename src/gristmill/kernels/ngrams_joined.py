"""Repeated n-grams as tools for Gopher's repetition rules find them: by their words run together, skipping ahead.

A repeated n-gram is counted whole, and the search goes on behind it; n-grams inside it are neither counted nor
remembered. Two n-grams are equal when their letters are, wherever the words were cut.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, routine
from gristmill.kernels.machine import load8
from gristmill.kernels.text_column import Integers, Mask, WordSpans
from gristmill.kernels.text_lines import hash_and_count
from gristmill.kernels.utf8 import ONE, ZERO, count_points, same_bytes

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
# Equal n-grams of this many bytes begin alike, so a beginning that occurs once rules its n-grams out.
_HEAD = 16


@routine
def _repeated_heads(joined, offsets, words, slots, size, repeated):
    """Mark the words from which on the next sixteen bytes occur elsewhere too (or seem to, by their hash)."""
    slots[:size] = ZERO
    for word in range(words):
        at = offsets[word]
        mixed = load8(joined, at) * _MIX
        mixed = (mixed ^ (mixed >> _SHIFT) ^ load8(joined, at + 8)) * _MIX
        mixed ^= mixed >> _SHIFT
        # The lowest bit says that the head was seen; the second, that it was seen again.
        tag = mixed & ~np.uint64(3) | ONE
        slot = np.int64((mixed >> np.uint64(2)) & np.uint64(size - 1))
        while slots[slot] and slots[slot] & ~np.uint64(2) != tag:
            slot = (slot + 1) & (size - 1)
        slots[slot] = tag if slots[slot] == ZERO else tag | np.uint64(2)
        repeated[word] = slot
    for word in range(words):
        repeated[word] = np.int64((slots[repeated[word]] >> ONE) & ONE)


@routine
def _next_candidates(offsets, words, shortest, repeated):
    """Turn the marks into jumps: for each word, the next one (or itself) whose n-grams may be repeated.

    Those of fewer bytes than a head are not ruled out by it; n-grams longer than the shortest have at least its bytes.
    Returns how many candidates there are.
    """
    candidates = 0
    following = words
    for word in range(words - 1, -1, -1):
        last = min(word + shortest, words)
        if repeated[word] or offsets[last] - offsets[word] < _HEAD:
            following = word
            candidates += 1
        repeated[word] = following
    return candidates


@routine
def _repeated_chars(joined, offsets, prefix, words, n, following, slots, size, starts, lengths, hashes):
    slots[:size] = ZERO
    known = 0
    total = 0
    at = 0
    while at + n <= words:
        at = following[at]
        if at + n > words:
            break
        begin = offsets[at]
        length = offsets[at + n] - begin
        mixed, _ = hash_and_count(joined, begin, begin + length)
        slot = np.int64(mixed & np.uint64(size - 1))
        found = False
        while slots[slot]:
            seen = np.int64(slots[slot]) - 1
            if hashes[seen] == mixed and lengths[seen] == length and same_bytes(joined, starts[seen], begin, length):
                found = True
                break
            slot = (slot + 1) & (size - 1)
        if found:
            total += prefix[at + n] - prefix[at]
            at += n
        else:
            starts[known] = begin
            lengths[known] = length
            hashes[known] = mixed
            known += 1
            slots[slot] = np.uint64(known)
            at += 1
    return total


@kernel
def _joined(data, word_starts, word_ends, bounds, alive, sizes, out):
    room = 0
    space = 0
    joined = np.empty(0, dtype=np.uint8)
    offsets = np.empty(0, dtype=np.int64)
    prefix = np.empty(0, dtype=np.int64)
    repeated = np.empty(0, dtype=np.int64)
    starts = np.empty(0, dtype=np.int64)
    lengths = np.empty(0, dtype=np.int64)
    hashes = np.empty(0, dtype=np.uint64)
    slots = np.empty(0, dtype=np.uint64)
    for row in range(len(alive)):
        if not alive[row]:
            continue
        words = bounds[row + 1] - bounds[row]
        total = 0
        for word in range(bounds[row], bounds[row + 1]):
            total += word_ends[word] - word_starts[word]
        if words + 1 > room:
            room = words + words // 4 + 1024
            offsets = np.empty(room, dtype=np.int64)
            prefix = np.empty(room, dtype=np.int64)
            repeated = np.empty(room, dtype=np.int64)
            starts = np.empty(room, dtype=np.int64)
            lengths = np.empty(room, dtype=np.int64)
            hashes = np.empty(room, dtype=np.uint64)
            size = 256
            while size < 2 * room:
                size *= 2
            slots = np.empty(size, dtype=np.uint64)
        if total + 24 > space:
            space = total + total // 4 + 4096
            joined = np.empty(space, dtype=np.uint8)
        at = 0
        chars = 0
        for word in range(words):
            offsets[word] = at
            prefix[word] = chars
            begin = word_starts[bounds[row] + word]
            end = word_ends[bounds[row] + word]
            for position in range(begin, end):
                joined[at] = data[position]
                at += 1
            chars += count_points(data, begin, end)
        offsets[words] = at
        prefix[words] = chars
        joined[at : at + 24] = 0
        size = 64
        while size < words + words // 2:
            size *= 2
        _repeated_heads(joined, offsets, words, slots, size, repeated)
        shortest = words
        for position in range(len(sizes)):
            shortest = min(shortest, sizes[position])
        candidates = _next_candidates(offsets, words, shortest, repeated)
        size = 64
        while size < candidates + candidates // 2:
            size *= 2
        for position in range(len(sizes)):
            out[row, position] = _repeated_chars(
                joined, offsets, prefix, words, sizes[position], repeated, slots, size, starts, lengths, hashes
            )


def joined_duplicates(words: WordSpans, alive: Mask, sizes: tuple[int, ...]) -> Integers:
    """Per document and length of n-gram, the characters of n-grams that occurred before."""
    out = np.zeros((len(words.bounds) - 1, len(sizes)), dtype=np.int64)
    _joined(*words, alive, np.array(sizes, dtype=np.int64), out)
    return out
