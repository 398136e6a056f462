"""Words and pairs of words of a text column as hashed features, for the training of linear classifiers."""

from __future__ import annotations

from typing import Any

import numpy as np

from gristmill.kernels.compiler import kernel
from gristmill.kernels.linear_text import feature_buckets


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
            more, amounts = np.empty(size, np.int64), np.empty(size, np.float32)
            more[:used] = buckets[:used]
            amounts[:used] = values[:used]
            buckets, values = more, amounts
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
