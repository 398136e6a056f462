"""Finds repeated hashes within a batch or a range of sorted rows, and looks up those of a batch in a list."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel, leaf
from gristmill.kernels.text_column import Integers

Hashes = npt.NDArray[np.uint64]

_SPREAD = np.uint64(0x9E3779B185EBCA87)
NOWHERE = np.uint64(0xFFFFFFFFFFFFFFFF)
"""A key that no document has: nothing is kept."""


@leaf
def _slot(first, mask):
    return np.int64((first ^ (first >> np.uint64(32))) & mask)


@kernel
def first_and_counts(
    first: Hashes, second: Hashes, scopes: Integers
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The places of hashes that did not occur before in their scope, in order, and how often each occurs.

    `scopes` is ascending; equal hashes of different scopes are told apart. Linear, even if all hashes are equal.
    """
    count = len(first)
    size = 16
    while size < 2 * count:
        size *= 2
    mask = np.uint64(size - 1)
    table = np.full(size, -1, np.int64)
    places, counts = np.empty(count, np.int64), np.empty(count, np.int64)
    found = 0
    for at in range(count):
        slot = _slot(first[at] + np.uint64(scopes[at]) * _SPREAD, mask)
        while True:
            entry = table[slot]
            if entry < 0:
                table[slot] = found
                places[found], counts[found] = at, 1
                found += 1
                break
            other = places[entry]
            if first[other] == first[at] and second[other] == second[at] and scopes[other] == scopes[at]:
                counts[entry] += 1
                break
            slot = (slot + 1) & np.int64(mask)
    return places[:found].copy(), counts[:found].copy()


@kernel
def repeated_rows(
    order: Integers,
    first: Hashes,
    second: Hashes,
    documents: Hashes,
    places: Integers,
    counts: Integers,
    max_count: int,
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    """Which rows have a hash that occurs more than `max_count` times, and where each of these occurs first.

    Args:
        order: The rows sorted by `first`.
        first: The first half of every hash.
        second: The second half.
        documents: The document of each row.
        places: Where in its document.
        counts: How many occurrences a row stands for; its document and place are those of the first of them.
        max_count: Maximum number of occurrences that does not count as a repetition.
    """
    rows = len(order)
    repeated = np.zeros(rows, np.bool_)
    kept, kept_places = np.zeros(rows, np.uint64), np.zeros(rows, np.int64)
    begin = 0
    while begin < rows:
        end = begin + 1
        mixed = False
        while end < rows and first[order[end]] == first[order[begin]]:
            mixed |= second[order[end]] != second[order[begin]]
            end += 1
        # Texts that collide in one half only are rare, so this may take a turn for each of them.
        start = begin
        while start < end:
            half = second[order[start]]
            total = 0
            document, place = NOWHERE, np.int64(0)
            for at in range(start, end):
                row = order[at]
                if second[row] == half:
                    total += counts[row]
                    if documents[row] < document or (documents[row] == document and places[row] < place):
                        document, place = documents[row], places[row]
            if total > max_count:
                for at in range(start, end):
                    row = order[at]
                    if second[row] == half:
                        repeated[row] = True
                        kept[row], kept_places[row] = document, place
            if not mixed:
                break
            start += 1
            while start < end:  # the next half that had no turn yet
                fresh = True
                for at in range(begin, start):
                    fresh &= second[order[at]] != second[order[start]]
                if fresh:
                    break
                start += 1
        begin = end
    return repeated, kept, kept_places


@kernel
def build_lookup(first: Hashes, second: Hashes, scopes: Hashes) -> npt.NDArray[np.int64]:
    """A table of places by hash and scope, for `look_up`; of equal ones the first."""
    size = 16
    while size < 2 * len(first):
        size *= 2
    mask = np.uint64(size - 1)
    table = np.full(size, -1, np.int64)
    for at in range(len(first)):
        slot = _slot(first[at] + scopes[at] * _SPREAD, mask)
        while table[slot] >= 0:
            other = table[slot]
            if first[other] == first[at] and second[other] == second[at] and scopes[other] == scopes[at]:
                break
            slot = (slot + 1) & np.int64(mask)
        if table[slot] < 0:
            table[slot] = at
    return table


@leaf
def place_of(table, first, second, scopes, wanted, wanted_2, scope):
    """The place of a hash in the list that `table` was built from, -1 where it is not in it."""
    mask = np.uint64(len(table) - 1)
    slot = _slot(wanted + scope * _SPREAD, mask)
    while table[slot] >= 0:
        other = table[slot]
        if first[other] == wanted and second[other] == wanted_2 and scopes[other] == scope:
            return other
        slot = (slot + 1) & np.int64(mask)
    return np.int64(-1)


@kernel
def look_up(
    table: Integers, first: Hashes, second: Hashes, scopes: Hashes, wanted: Hashes, wanted_2: Hashes, scope: Hashes
) -> npt.NDArray[np.int64]:
    """The place of every wanted hash in the list that `table` was built from, -1 where it is not in it."""
    found = np.empty(len(wanted), np.int64)
    for at in range(len(wanted)):
        found[at] = place_of(table, first, second, scopes, wanted[at], wanted_2[at], scope[at])
    return found
