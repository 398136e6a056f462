"""Where shards begin and end: exact cuts by documents, bytes or tokens, in memory that does not grow with the data.

Two passes over keys and weights: sums in bins of keys, then only the documents of bins that contain a cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.sharding.keys import RANDOM_BITS, RANDOM_MASK, Integers, Keys

_BINS = 1 << 20
"""Number of bins that the strata share."""

Weights = Callable[[], Iterator[tuple[Keys, Integers]]]
"""Yields keys and weights of all documents, file by file; called once for each pass."""


@dataclass(frozen=True)
class Totals:
    """The documents of one stratum.

    Attributes:
        documents: Number of documents.
        weight: The sum of their weights.
    """

    documents: int
    weight: int


def weights_in(runs: Sequence[RunFiles], unit: str) -> Weights:
    """Keys and weights of the documents of some runs; the unit is `documents`, or the column of sizes or tokens."""

    def each() -> Iterator[tuple[Keys, Integers]]:
        for one in runs:
            for file in one.files:
                table = open_run(file.path, storage_options=one.storage_options)
                keys = column(table, "key")
                yield keys, np.ones(len(keys), np.int64) if unit == "documents" else column(table, unit)

    return each


def totals_of(weights: Weights) -> dict[int, Totals]:
    """Documents and weight of every non-empty stratum."""
    counts, sums = np.zeros(1 << 16, np.int64), np.zeros(1 << 16, np.int64)
    for keys, values in weights():
        strata = (keys >> np.uint64(RANDOM_BITS)).astype(np.int64)
        counts += np.bincount(strata, minlength=1 << 16)
        np.add.at(sums, strata, values)
    return {int(at): Totals(int(counts[at]), int(sums[at])) for at in np.flatnonzero(counts)}


def cut_keys(
    weights: Weights, targets: Mapping[int, Sequence[float]], *, nearest: bool = False
) -> dict[int, list[int]]:
    """For every target weight of a stratum, the first key with at least that much weight before it.

    Args:
        weights: Keys and weights of all documents.
        targets: Stratum to target weights, in ascending order.
        nearest: Count half of a document as before it, so that the weight before a cut is as close to the target as
            whole documents allow.

    Returns:
        Stratum to keys, one for each target; a target beyond all documents returns the end of the stratum.

    Example:
        >>> keys = np.array([10, 20, 30], np.uint64)
        >>> cut_keys(lambda: iter([(keys, np.array([5, 5, 5]))]), {0: [0, 5, 6, 99]})[0][:3]
        [10, 20, 30]
    """
    strata = sorted(targets)
    bits = max(4, min(20, int(np.log2(_BINS / max(1, len(strata))))))
    shift = np.uint64(RANDOM_BITS - bits)
    place = np.full(1 << 16, -1, np.int64)
    place[strata] = np.arange(len(strata))

    def bins_of(keys: Keys) -> tuple[npt.NDArray[np.bool_], Integers]:
        rows = place[(keys >> np.uint64(RANDOM_BITS)).astype(np.int64)]
        return rows >= 0, (rows << bits) + ((keys & RANDOM_MASK) >> shift).astype(np.int64)

    sums = np.zeros(len(strata) << bits, np.int64)
    for keys, values in weights():
        mine, bins = bins_of(keys)
        np.add.at(sums, bins[mine], values[mine])
    before = np.zeros((len(strata), (1 << bits) + 1), np.int64)
    np.cumsum(sums.reshape(len(strata), 1 << bits), axis=1, out=before[:, 1:])
    wanted = np.zeros(len(sums), bool)
    found: dict[int, list[int]] = {}
    for row, stratum in enumerate(strata):
        # Documents that begin at a target are in the bin where the running sum passes it.
        bins = np.searchsorted(before[row], np.asarray(targets[stratum], np.float64), side="right") - 1
        for at in bins[bins < 1 << bits].tolist():
            wanted[(row << bits) + at] = True
            nxt = int(np.searchsorted(before[row], before[row][at + 1], side="right")) - 1
            if nxt < 1 << bits:
                wanted[(row << bits) + nxt] = True
    parts = []
    for keys, values in weights():
        mine, bins = bins_of(keys)
        chosen = mine & wanted[np.maximum(bins, 0)]
        parts.append((keys[chosen], values[chosen], bins[chosen]))
    keys = np.concatenate([part[0] for part in parts] or [np.empty(0, np.uint64)])
    values = np.concatenate([part[1] for part in parts] or [np.empty(0, np.int64)])
    bins = np.concatenate([part[2] for part in parts] or [np.empty(0, np.int64)])
    order = np.argsort(keys, kind="stable")
    keys, values, bins = keys[order], values[order], bins[order]
    starts = _sums_before(values, bins, before.ravel(), bits) + (values / 2 if nearest else 0)
    for row, stratum in enumerate(strata):
        low, high = np.searchsorted(bins >> bits, [row, row + 1])
        end = (stratum + 1) << RANDOM_BITS
        own, begins = keys[low:high], starts[low:high]
        places = np.searchsorted(begins, np.asarray(targets[stratum], np.float64), side="left")
        found[stratum] = [int(own[at]) if at < len(own) else end for at in places]
    return found


def _sums_before(values: Integers, bins: Integers, before: Integers, bits: int) -> Integers:
    """For each selected document, the weight of all documents of its stratum before it."""
    if not len(values):
        return values
    inclusive = np.cumsum(values)
    first = np.ones(len(bins), bool)
    first[1:] = bins[1:] != bins[:-1]
    heads = np.flatnonzero(first)
    offset = np.repeat(inclusive[heads] - values[heads], np.diff(np.append(heads, len(bins))))
    rows, inner = bins >> bits, bins & ((1 << bits) - 1)
    result: Integers = inclusive - values - offset + before[rows * ((1 << bits) + 1) + inner]
    return result
