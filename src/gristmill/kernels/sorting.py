"""The order of keys that are hashes, and keys that two sorted arrays share.

Hashes are evenly distributed, so the highest bits and a few comparisons determine the position of each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel

_FEW = 1024
"""Up to this many keys, sorting by comparison is no slower."""
_SHARE = 4
"""Target number of keys that share the same highest bits."""
_BITS = 8
"""Bits per key in `key_bits`; of unwanted keys, at most one in eight is looked up."""
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


def key_bits(keys: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint8], int]:
    """For `shared_keys`: a bit for each value that the highest bits of keys can have, and how many bits are dropped."""
    span = int(keys[-1] - keys[0])
    shift = max(0, span.bit_length() - (_BITS * len(keys)).bit_length())
    occur = np.zeros((span >> shift) + 1, bool)
    occur[(keys - keys[0]) >> np.uint64(shift)] = True
    return np.packbits(occur, bitorder="little"), shift


def shared_keys(
    keys: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64], bits: npt.NDArray[np.uint8], shift: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The positions of those `keys` that are `wanted`, and the positions of the same keys in `wanted`; it is distinct.

    Both are sorted, and no key is below the first wanted one or above the last. One pass over `keys`, however many are
    wanted: `bits` and `shift`, from `key_bits(wanted)`, leave few to look up.
    """
    likely = _likely(keys, wanted[0], bits, shift)
    places = np.searchsorted(wanted, keys[likely])
    same = wanted[places] == keys[likely]
    return likely[same], places[same]


@kernel
def _likely(
    keys: npt.NDArray[np.uint64], low: np.uint64, bits: npt.NDArray[np.uint8], shift: int
) -> npt.NDArray[np.int64]:
    """The positions of keys whose bit is set. Nothing depends on the key before, so that accesses overlap."""
    found = np.empty(len(keys), np.int64)
    made = 0
    for at in range(len(keys)):
        slot = (keys[at] - low) >> np.uint64(shift)
        found[made] = at
        made += (bits[slot >> np.uint64(3)] >> np.uint8(slot & np.uint64(7))) & np.uint8(1)
    return found[:made].copy()
