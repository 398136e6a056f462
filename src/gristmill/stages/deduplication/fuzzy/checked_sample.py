"""A random sample of decisions that rest on estimates, whose documents are read once more and compared exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.deduplication.fuzzy.accuracy import SAMPLE
from gristmill.stages.deduplication.fuzzy.shingle_store import ShingleStore
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.sorted_runs import RunFiles, column

REACH = 0.1
"""How far from the threshold an estimate may lie to be looked at again."""

SAMPLED = pa.schema(
    [
        ("document", pa.uint64()),
        ("other", pa.uint64()),
        ("equal", pa.bool_()),
        ("similarity", pa.float64()),
        ("removed", pa.bool_()),
        ("forward", pa.bool_()),
    ]
)
"""Pairs, once from either side; `removed` tells removed documents and their survivors from compared pairs."""

Floats = npt.NDArray[np.float64]


class SampledPairs(RangeReader):
    """Gives a sample of the compared pairs near the threshold, and one of the removed documents and their survivors.

    Args:
        removals: The removal lists.
        threshold: The least similarity of duplicates.
        seed: Chooses the sample.
    """

    name = "sampled_pairs"

    def __init__(self, removals: RunFiles, *, threshold: float, seed: int) -> None:
        super().__init__()
        self._removals = removals
        self.removals = removals.digest
        self.threshold = threshold
        self.seed = seed

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        rng = np.random.default_rng(self.seed)
        for runs, other, removed in ((self.runs, "other", False), (self._removals, "survivor", True)):
            table = runs.read(low, high)
            if not table.num_rows:
                continue
            alike = column(table, "similarity")
            near = np.flatnonzero((alike < 1.0) & (removed | (np.abs(alike - self.threshold) < REACH)))
            chosen = near if len(near) <= SAMPLE else np.sort(rng.choice(near, SAMPLE, replace=False))
            firsts, seconds = column(table, "document")[chosen], column(table, other)[chosen]
            for one, two, forward in ((firsts, seconds, True), (seconds, firsts, False)):
                yield pa.table(
                    [
                        one,
                        two,
                        np.zeros(len(one), bool),
                        alike[chosen],
                        np.full(len(one), removed),
                        np.full(len(one), forward),
                    ],
                    schema=SAMPLED,
                )


def checked(sample: RunFiles, shingles: RunFiles, *, removed: bool) -> tuple[Floats, Floats]:
    """The estimates of the sampled pairs of one kind, and their true similarities."""
    table = sample.read()
    if not table.num_rows:
        return np.empty(0), np.empty(0)
    rows: Any = np.flatnonzero((column(table, "removed") == removed) & column(table, "forward"))
    store = ShingleStore(shingles)
    exact = store.jaccard(store.places(column(table, "document")[rows]), store.places(column(table, "other")[rows]))
    return column(table, "similarity")[rows], exact
