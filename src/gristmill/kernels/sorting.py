"""The order of keys that are hashes: evenly spread, each finds its place by its highest bits and a few comparisons."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel

_FEW = 1024
"""So many keys are sorted by comparisons in no more time."""
_SHARE = 4
"""About how many keys are to have the same highest bits."""
_CROWD = 1024
"""Where so many have, the keys are not spread evenly."""


def stable_order(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """As `np.argsort(keys, kind="stable")`, several times as fast where keys are hashes.

    Example:
        >>> stable_order(np.array([3, 1, 3, 2], np.uint64)).tolist()
        [1, 3, 0, 2]
    """
    if len(keys) >= _FEW:
        given = keys.view()
        given.flags.writeable = False
        order = _order(given)
        if len(order):
            return order
    return np.argsort(keys, kind="stable")


@kernel
def _order(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """The order of the keys, or nothing where they are not spread evenly."""
    count = len(keys)
    low, high = keys[0], keys[0]
    for key in keys:
        low, high = min(low, key), max(high, key)
    bits = 1
    while (_SHARE << bits) < count:
        bits += 1
    shift = np.uint64(0)
    while ((high - low) >> shift) >> np.uint64(bits) != np.uint64(0):
        shift += np.uint64(1)
    ends = np.zeros((1 << bits) + 1, np.int64)
    for key in keys:
        ends[((key - low) >> shift) + np.uint64(1)] += 1
    for slot in range(1 << bits):
        if ends[slot + 1] > _CROWD:
            return np.empty(0, np.int64)
        ends[slot + 1] += ends[slot]
    order = np.empty(count, np.int64)
    values = np.empty(count, np.uint64)
    # From here on `ends` say where the next key of every slot goes: at last where the slot ends.
    for place in range(count):
        slot = (keys[place] - low) >> shift
        values[ends[slot]], order[ends[slot]] = keys[place], place
        ends[slot] += 1
    for place in range(1, count):
        value, number = values[place], order[place]
        at = place
        while at > 0 and values[at - 1] > value:
            values[at], order[at] = values[at - 1], order[at - 1]
            at -= 1
        values[at], order[at] = value, number
    return order
