"""The score of every class of a linear classifier over words and pairs of words, in one pass over the UTF-8 bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.compiler import inlined, kernel

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_PAIR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@inlined
def feature_buckets(data: Any, start: int, end: int, bits: int, out: Any) -> int:
    """Write the bucket of every word and of every pair of neighbours into `out`; their number is returned.

    A word is a run of ASCII letters and digits and of bytes beyond ASCII; ASCII letters count as small ones.
    """
    mask = np.uint64((1 << bits) - 1)
    count = 0
    previous = np.uint64(0)
    value = _OFFSET
    inside = False
    for place in range(start, end + 1):
        byte = data[place] if place < end else np.uint8(32)
        if 65 <= byte <= 90:
            byte = np.uint8(byte + 32)
        if byte >= 128 or 97 <= byte <= 122 or 48 <= byte <= 57:
            value = (value ^ np.uint64(byte)) * _PRIME
            inside = True
        elif inside:
            out[count] = np.int64((value ^ (value >> _SHIFT)) & mask)
            count += 1
            if previous != 0:
                pair = (previous ^ (value * _PAIR)) * _PRIME
                out[count] = np.int64((pair ^ (pair >> _SHIFT)) & mask)
                count += 1
            previous = value
            value = _OFFSET
            inside = False
    return count


@kernel
def linear_scores(data: Any, offsets: Any, bits: int, weights: Any, rarity: Any, bias: Any) -> Any:
    """The score of every class for each text: its normalised features times the weights."""
    rows = len(offsets) - 1
    classes = weights.shape[1]
    scores = np.empty((rows, classes), np.float32)
    longest = 0
    for row in range(rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    scratch = np.empty(longest + 2, np.int64)
    for row in range(rows):
        count = feature_buckets(data, offsets[row], offsets[row + 1], bits, scratch)
        found = np.sort(scratch[:count])
        total = np.zeros(classes, np.float32)
        square = np.float32(0)
        place = 0
        while place < count:
            stop = place + 1
            while stop < count and found[stop] == found[place]:
                stop += 1
            bucket = found[place]
            value = (1 + np.log(np.float32(stop - place))) * rarity[bucket]
            square += value * value
            for number in range(classes):
                total[number] += value * weights[bucket, number]
            place = stop
        scale = 1 / np.sqrt(square) if square > 0 else np.float32(0)
        for number in range(classes):
            scores[row, number] = total[number] * scale + bias[number]
    return scores
