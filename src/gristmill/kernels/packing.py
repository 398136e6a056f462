"""Best-fit packing: pieces of different lengths into sequences of one length, with little left over."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel

Integers = npt.NDArray[np.int64]


@kernel
def best_fit(lengths: Integers, order: Integers, capacity: int) -> tuple[Integers, Integers, int]:
    """Place each piece into the fullest sequence that still has room for it, or into a new one.

    Among equally full sequences it takes the one that changed last. A segment tree over the free space finds it in
    O(log capacity).

    Args:
        lengths: The length of every piece, from 1 to `capacity`.
        order: The pieces in the order in which they are placed; longest first leaves least space (best-fit decreasing).
        capacity: The length of a sequence.

    Returns:
        The sequence of every piece, its offset there, and the number of sequences.
    """
    count = len(lengths)
    leaves = 1
    while leaves < capacity + 1:
        leaves *= 2
    # How many open sequences have a free space in the range of each node; leaf `leaves + f` stands for f tokens.
    tree = np.zeros(2 * leaves, np.int64)
    last = np.full(capacity + 1, -1, np.int64)  # by free space: the last sequence that reached it
    below = np.full(count, -1, np.int64)  # by sequence: the previous one with the same free space
    sequences = np.empty(count, np.int64)
    offsets = np.empty(count, np.int64)
    opened = 0
    for piece in order:
        length = lengths[piece]
        # The smallest free space that is large enough: climb until a right neighbour has any, then descend to it.
        node = leaves + length
        if tree[node] == 0:
            while node > 1 and (node % 2 == 1 or tree[node + 1] == 0):
                node //= 2
            if node > 1:
                node += 1
                while node < leaves:
                    node = 2 * node if tree[2 * node] > 0 else 2 * node + 1
        if node > 1:
            free = node - leaves
            sequence = last[free]
            last[free] = below[sequence]
            while node >= 1:
                tree[node] -= 1
                node //= 2
        else:
            free, sequence = capacity, opened
            opened += 1
        sequences[piece] = sequence
        offsets[piece] = capacity - free
        free -= length
        below[sequence] = last[free]
        last[free] = sequence
        node = leaves + free
        while node >= 1:
            tree[node] += 1
            node //= 2
    return sequences, offsets, opened
