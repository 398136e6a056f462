"""Groups of rows: connected documents (union-find with path halving), and neighbours up to a total size."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.arrays import grown, sort_items
from gristmill.kernels.compiler import kernel, leaf

Floats = npt.NDArray[np.float64]
Hashes = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]


@leaf
def _root(parents, node):
    while parents[node] != node:
        parents[node] = parents[parents[node]]
        node = parents[node]
    return node


@kernel
def join(parents: Integers, firsts: Integers, seconds: Integers) -> None:
    """Add edges to a forest of nodes that begins as `np.arange(count)`; edges may come in any number of parts."""
    for edge in range(len(firsts)):
        a, b = _root(parents, firsts[edge]), _root(parents, seconds[edge])
        # The lower node always becomes the root, so the order of the edges leaves no trace.
        if a < b:
            parents[b] = a
        elif b < a:
            parents[a] = b


@kernel
def settle(parents: Integers) -> None:
    """Make every node of a forest point to the lowest node that it is connected with."""
    for node in range(len(parents)):
        parents[node] = _root(parents, node)


@kernel
def leaders(chosen: Integers, first: int, bounds: Integers, seconds: Integers, similarities: Floats) -> None:
    """Choose for some consecutive nodes the most similar earlier node among the kept ones joined to it.

    A node joined to a kept one is removed, all others are kept, so that nothing is removed because of a chain. `chosen`
    begins as `np.arange(count)` and is right already for the nodes before `first`; the edges of node `first + n` to
    earlier nodes are `bounds[n]` to `bounds[n + 1]`, and among equals the first of them counts.
    """
    for place in range(len(bounds) - 1):
        best = -1.0
        for edge in range(bounds[place], bounds[place + 1]):
            other = seconds[edge]
            if chosen[other] == other and similarities[edge] > best:
                best = similarities[edge]
                chosen[first + place] = other


@kernel
def group_pairs(
    hashes: Hashes, contents: Hashes, documents: Hashes, wide: int
) -> tuple[Hashes, Hashes, npt.NDArray[np.bool_]]:
    """Pairs out of groups of equal band hashes: rows of one hash lie together, among them those of one content.

    Documents of equal content are in source order. They are joined to the first of them, once, in band 0. The first
    ones of different contents are paired with each other; in a group of more than `wide` contents, with the first and
    with the next few only, so that the number of pairs stays in proportion.

    Returns the two sides of each pair, and whether their contents are equal.
    """
    firsts = np.empty(1024, np.uint64)
    seconds = np.empty(1024, np.uint64)
    equal = np.empty(1024, np.bool_)
    heads = np.empty(64, np.uint64)
    made = 0
    start = 0
    while start < len(hashes):
        end = start + 1
        while end < len(hashes) and hashes[end] == hashes[start]:
            end += 1
        if end - start > 1:
            count = 0
            room = end - start
            if room > len(heads):
                heads = np.empty(2 * room, np.uint64)
            for place in range(start, end):
                if place == start or contents[place] != contents[place - 1]:
                    heads[count] = documents[place]
                    count += 1
                elif hashes[start] & np.uint64(255) == np.uint64(0):
                    if made == len(firsts):
                        firsts, seconds, equal = (
                            grown(firsts, 2 * made),
                            grown(seconds, 2 * made),
                            grown(equal, 2 * made),
                        )
                    firsts[made], seconds[made], equal[made] = heads[count - 1], documents[place], True
                    made += 1
            if count > 1:
                sort_items(heads, count)
                for place in range(count):
                    reach = count if count <= wide else min(count, place + 5)
                    for other in range(place + 1, reach):
                        if made == len(firsts):
                            firsts, seconds, equal = (
                                grown(firsts, 2 * made),
                                grown(seconds, 2 * made),
                                grown(equal, 2 * made),
                            )
                        firsts[made], seconds[made], equal[made] = heads[place], heads[other], False
                        made += 1
                    if count > wide and place > 4:
                        if made == len(firsts):
                            firsts, seconds, equal = (
                                grown(firsts, 2 * made),
                                grown(seconds, 2 * made),
                                grown(equal, 2 * made),
                            )
                        firsts[made], seconds[made], equal[made] = heads[0], heads[place], False
                        made += 1
        start = end
    return firsts[:made].copy(), seconds[:made].copy(), equal[:made].copy()


@kernel
def limited_groups(documents: Integers, lengths: Integers, between: int, limit: int) -> tuple[Integers, Integers]:
    """For each row the row that begins its group, and the size of the group up to it.

    A row continues the group before it when both have the same document and the sizes, with `between` for each joint,
    stay within `limit`.
    """
    heads = np.empty(len(documents), np.int64)
    totals = np.empty(len(documents), np.int64)
    for row in range(len(documents)):
        heads[row], totals[row] = row, lengths[row]
        if row and documents[row] == documents[row - 1]:
            joined = totals[row - 1] + between + lengths[row]
            if joined <= limit:
                heads[row], totals[row] = heads[row - 1], joined
    return heads, totals
