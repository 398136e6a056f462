"""The order of keys that are hashes, and keys that two sorted arrays share.

Hashes are evenly distributed, so the highest bits and a few comparisons determine the position of each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.arrays import grown
from gristmill.kernels.compiler import kernel

_FEW = 1024
"""Up to this many keys, sorting by comparison is no slower."""
_SHARE = 4
"""Target number of keys that share the same highest bits."""
_CROWD = 1024
"""If this many keys share them, the keys are not evenly distributed."""


def stable_order(keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """As `np.argsort(keys, kind="stable")`, but several times as fast if the keys are hashes.

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
    """The order of the keys; empty if they are not evenly distributed."""
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
    # From here on, `ends` holds the position of the next key of each slot, and finally the end of the slot.
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


def key_slots(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], int]:
    """For `shared_keys`: where keys with the same highest bits begin, in sorted keys, and how many bits to drop."""
    span = int(keys[-1] - keys[0])
    shift = max(0, span.bit_length() - (2 * len(keys)).bit_length())
    return np.cumsum(np.bincount(((keys - keys[0]) >> np.uint64(shift)).astype(np.int64) + 1)), shift


@kernel
def shared_keys(
    keys: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64], slots: npt.NDArray[np.int64], shift: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which of the `wanted` keys are in `keys`, and their ranges there; both are sorted, and `wanted` is distinct.

    One walk through `keys`, however many are wanted: `slots` and `shift`, from `key_slots(wanted)`, lead to the place
    of each. No key is below the first wanted one or above the last.
    """
    found, firsts, ends = np.empty(64, np.int64), np.empty(64, np.int64), np.empty(64, np.int64)
    made = at = place = 0
    while at < len(keys):
        value, end = keys[at], at + 1
        slot = (value - wanted[0]) >> np.uint64(shift)
        place = max(place, slots[slot])
        while wanted[place] < value:
            place += 1
        if wanted[place] == value:
            while end < len(keys) and keys[end] == value:
                end += 1
            if made == len(found):
                found, firsts, ends = grown(found, 2 * made), grown(firsts, 2 * made), grown(ends, 2 * made)
            found[made], firsts[made], ends[made] = place, at, end
            made += 1
        at = end
    return found[:made].copy(), firsts[:made].copy(), ends[:made].copy()
