"""Repeated n-grams as tools for Gopher's repetition rules find them: by their concatenated words, skipping ahead.

A repeated n-gram is counted as a whole, and the search continues after it; n-grams inside it are neither counted nor
remembered. Two n-grams are equal when their letters are, wherever the words were cut.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel, leaf, routine
from gristmill.kernels.machine import address_of, copy_bytes, load8, store_word
from gristmill.kernels.text_column import Integers, Mask, WordSpans
from gristmill.kernels.utf8 import ONE, ZERO, count_points, same_bytes

_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)
# Equal n-grams of at least this many bytes have the same beginning, so a beginning that occurs once rules out its
# n-grams. All words are tried with the shortest first, the remaining ones with longer ones.
_HEADS = (8, 12, 16)
_LONGEST_HEAD = 32
_PADDING = 40
# The largest table of marks, which stays in the cache; a document too long for it has more candidates, but the same
# result.
_MOST_MARKS = 1 << 20


@leaf
def _hash(joined, begin, length):
    """A hash of a range of bytes, behind which there is padding."""
    mixed = np.uint64(length) * _MIX
    other = ZERO
    at = begin
    end = begin + length
    while at + 16 <= end:
        mixed = (mixed ^ (mixed >> _SHIFT) ^ load8(joined, at)) * _MIX
        other = (other ^ (other >> _SHIFT) ^ load8(joined, at + 8)) * _MIX
        at += 16
    if at + 8 <= end:
        mixed = (mixed ^ (mixed >> _SHIFT) ^ load8(joined, at)) * _MIX
        at += 8
    if at < end:
        other = (other ^ (other >> _SHIFT) ^ (load8(joined, at) << np.uint64(64 - 8 * (end - at)))) * _MIX
    mixed = (mixed ^ (other >> _SHIFT) ^ other) * _MIX
    return mixed ^ (mixed >> _SHIFT)


@routine
def _join(data, starts, ends, first, words, joined, offsets):
    """Write the words of a document without what is between them, and where each begins there."""
    target = address_of(joined)
    source = address_of(data)
    at = 0
    for word in range(words):
        begin = starts[first + word]
        length = ends[first + word] - begin
        offsets[word] = at
        if length <= 8 and begin + 8 <= len(data):
            # Excess bytes are overwritten by the next word.
            store_word(target + at, load8(data, begin))
        else:
            copy_bytes(target + at, source + begin, length)
        at += length
    offsets[words] = at
    joined[at : at + _PADDING] = 0


@routine
def _repeated_heads(joined, offsets, positions, n, head, known, candidates, keys, marks):
    """Keep the words from which on the first bytes may occur elsewhere too; returns how many there are.

    Those whose n-gram has fewer bytes are not ruled out. `known` of them are listed, or it is -1: all words before
    `positions`, which is where the last n-gram begins.
    """
    count = positions if known < 0 else known
    shift = np.uint64(56)
    size = 256
    while size < 8 * count and size < len(marks):
        size *= 2
        shift -= ONE
    marks[:size] = 0
    for listed in range(count):
        at = offsets[listed if known < 0 else candidates[listed]]
        mixed = load8(joined, at) * _MIX
        for part in range(8, head, 8):
            mixed = (mixed ^ (mixed >> _SHIFT) ^ load8(joined, at + min(part, head - 8))) * _MIX
        keys[listed] = mixed
        slot = mixed >> shift
        # The first of a slot leaves 1, every further one 3.
        marks[slot] = (marks[slot] << 1 | 1) & 3
    found = 0
    for listed in range(count):
        word = np.int64(listed if known < 0 else candidates[listed])
        if word >= positions:
            break
        candidates[found] = word
        short = offsets[word + n] - offsets[word] < head
        found += short | (marks[keys[listed] >> shift] >> 1)
    return found


@routine
def _repeated_chars(joined, offsets, words, n, candidates, found, slots, hashes):
    """The characters of n-grams that occurred before."""
    shift = np.uint64(60)
    size = 16
    while size < 2 * found:
        size *= 2
        shift -= ONE
    slots[:size] = 0
    total = 0
    free = 0
    for candidate in range(found):
        word = np.int64(candidates[candidate])
        if word + n > words:
            break
        if word < free:
            continue
        begin = offsets[word]
        length = offsets[word + n] - begin
        mixed = _hash(joined, begin, length)
        slot = np.int64(mixed >> shift)
        repeated = False
        while slots[slot] and not repeated:
            seen = np.int64(slots[slot]) - 1
            other = np.int64(candidates[seen])
            repeated = (
                hashes[seen] == mixed
                and offsets[other + n] - offsets[other] == length
                and same_bytes(joined, offsets[other], begin, length)
            )
            slot = (slot + 1) & (size - 1)
        if repeated:
            total += count_points(joined, begin, begin + length)
            free = word + n
        else:
            slots[slot] = candidate + 1
            hashes[candidate] = mixed
    return total


@kernel
def _joined(data, word_starts, word_ends, bounds, alive, sizes, out):
    """Fill one column per length; lengths are in ascending order."""
    shortest = sizes[0]
    room = 0
    space = 0
    joined = np.empty(0, dtype=np.uint8)
    offsets = np.empty(0, dtype=np.int64)
    candidates = np.empty(0, dtype=np.int32)
    hashes = np.empty(0, dtype=np.uint64)
    slots = np.empty(0, dtype=np.int32)
    marks = np.empty(0, dtype=np.uint8)
    for row in range(len(alive)):
        words = bounds[row + 1] - bounds[row]
        if not alive[row] or words < shortest:
            continue
        total = 0
        for word in range(bounds[row], bounds[row + 1]):
            total += word_ends[word] - word_starts[word]
        if words + 1 > room:
            room = words + words // 4 + 1024
            offsets = np.empty(room, dtype=np.int64)
            candidates = np.empty(room, dtype=np.int32)
            hashes = np.empty(room, dtype=np.uint64)
            size = 256
            while size < 2 * room:
                size *= 2
            slots = np.empty(size, dtype=np.int32)
            marks = np.empty(min(4 * size, _MOST_MARKS), dtype=np.uint8)
        if total + _PADDING > space:
            space = total + total // 4 + 4096
            joined = np.empty(space, dtype=np.uint8)
        _join(data, word_starts, word_ends, bounds[row], words, joined, offsets)
        found = -1
        for head in _HEADS:
            found = _repeated_heads(
                joined, offsets, words + 1 - shortest, shortest, head, found, candidates, hashes, marks
            )
        for position in range(len(sizes)):
            n = sizes[position]
            if n > shortest and found:
                # Longer n-grams have more bytes by which they can be ruled out; most of a text falls to the first two.
                head = min(max((n + 1) // 2 * 8 - 8, 8), _LONGEST_HEAD)
                found = _repeated_heads(joined, offsets, words + 1 - n, n, head, found, candidates, hashes, marks)
            if found:
                out[row, position] = _repeated_chars(joined, offsets, words, n, candidates, found, slots, hashes)


def joined_duplicates(words: WordSpans, alive: Mask, sizes: tuple[int, ...]) -> Integers:
    """Per document and length of n-gram, the characters of n-grams that occurred before."""
    ordered = sorted(sizes)
    out = np.zeros((len(words.bounds) - 1, len(sizes)), dtype=np.int64)
    _joined(*words, alive, np.array(ordered, dtype=np.int64), out)
    return out[:, [ordered.index(n) for n in sizes]]
