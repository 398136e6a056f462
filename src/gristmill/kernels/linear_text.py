"""Words and pairs of words of a text column as hashed features, and the scores of a linear classifier over them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.arrays import grown
from gristmill.kernels.compiler import inlined, kernel

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_PAIR = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@inlined
def feature_buckets(data: Any, start: int, end: int, bits: int, out: Any) -> int:
    """Write the bucket of every word and of every pair of neighbours into `out`; returns their number.

    A word is a run of ASCII letters and digits and of bytes beyond ASCII; ASCII letters are lower-cased.
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
def linear_features(data: Any, offsets: Any, bits: int) -> Any:
    """The features of each text: where its part of the arrays ends, the buckets, and 1 + log of their counts."""
    rows = len(offsets) - 1
    ends = np.zeros(rows + 1, np.int64)
    buckets = np.empty(max(16, (offsets[-1] - offsets[0]) // 2), np.int64)
    values = np.empty(len(buckets), np.float32)
    longest = 0
    for row in range(rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    scratch = np.empty(longest + 2, np.int64)
    used = 0
    for row in range(rows):
        count = feature_buckets(data, offsets[row], offsets[row + 1], bits, scratch)
        found = np.sort(scratch[:count])
        if used + count > len(buckets):
            size = 2 * len(buckets) + count
            buckets, values = grown(buckets, size), grown(values, size)
        place = 0
        while place < count:
            stop = place + 1
            while stop < count and found[stop] == found[place]:
                stop += 1
            buckets[used] = found[place]
            values[used] = 1 + np.log(np.float32(stop - place))
            used += 1
            place = stop
        ends[row + 1] = used
    return ends, buckets[:used].copy(), values[:used].copy()


@kernel
def bucket_table(buckets: Any) -> Any:
    """Where each of some different buckets stands, as a table of places from 0 on for `linear_scores`; -1 is free.

    A bucket is looked for from the place that its last bits name, and then in the places after it. At least half of
    the places are free, so that a search is short.
    """
    size = 2
    while size < 2 * len(buckets):
        size *= 2
    table = np.full(size, -1, np.int64)
    for row in range(len(buckets)):
        place = buckets[row] & (size - 1)
        while table[place] >= 0:
            place = (place + 1) & (size - 1)
        table[place] = row
    return table


@kernel
def linear_scores(
    data: Any, offsets: Any, bits: int, buckets: Any, table: Any, weights: Any, rarity: Any, bias: Any
) -> Any:
    """The score of every class for each text: its normalised features times the weights.

    The rows of `weights` and `rarity` belong to `buckets`; features in other buckets do not count.
    """
    rows = len(offsets) - 1
    classes = weights.shape[1]
    scores = np.empty((rows, classes), np.float32)
    longest = 0
    for row in range(rows):
        longest = max(longest, offsets[row + 1] - offsets[row])
    scratch = np.empty(longest + 2, np.int64)
    times = np.zeros(len(buckets), np.int32)
    logarithms = 1 + np.log(np.maximum(np.arange(256), 1)).astype(np.float32)
    last = len(table) - 1
    for row in range(rows):
        count = feature_buckets(data, offsets[row], offsets[row + 1], bits, scratch)
        known = 0
        for number in range(count):
            bucket = scratch[number]
            place = bucket & last
            while table[place] >= 0 and buckets[table[place]] != bucket:
                place = (place + 1) & last
            feature = table[place]
            if feature >= 0:
                if times[feature] == 0:
                    scratch[known] = feature
                    known += 1
                times[feature] += 1
        total = np.zeros(classes, np.float32)
        square = np.float32(0)
        for number in range(known):
            feature = scratch[number]
            often = times[feature]
            times[feature] = 0
            value = (logarithms[often] if often < 256 else 1 + np.log(np.float32(often))) * rarity[feature]
            square += value * value
            for label in range(classes):
                total[label] += value * weights[feature, label]
        scale = 1 / np.sqrt(square) if square > 0 else np.float32(0)
        for number in range(classes):
            scores[row, number] = total[number] * scale + bias[number]
    return scores
