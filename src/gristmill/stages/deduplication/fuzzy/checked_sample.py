"""A random sample of decisions based on estimates, whose documents are read again and compared exactly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.stages.deduplication.fuzzy.banding import REACH, SAMPLE
from gristmill.stages.deduplication.fuzzy.shingle_store import ShingleStore
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.deduplication.source import Keys

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
"""Pairs, once from either side; `removed` distinguishes removed documents and their survivors from compared pairs."""

Floats = npt.NDArray[np.float64]


class SampledPairs(RangeReader):
    """Samples the compared pairs near the threshold, and the removed documents with their survivors.

    Args:
        removals: The removal lists.
        threshold: Minimum similarity of duplicates.
        seed: Random seed of the sample.
    """

    name = "sampled_pairs"
    fork_safe = True

    def __init__(self, removals: RunFiles, *, threshold: float, seed: int) -> None:
        super().__init__()
        self._removals = removals
        self.removals = removals.digest
        self.threshold = threshold
        self.seed = seed

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        for runs, other, removed in ((self.runs, "other", False), (self._removals, "survivor", True)):
            firsts, seconds, alike = self._sample(runs, other, everything=removed)
            for one, two, forward in ((firsts, seconds, True), (seconds, firsts, False)):
                yield pa.table(
                    [
                        one,
                        two,
                        np.zeros(len(one), bool),
                        alike,
                        np.full(len(one), removed),
                        np.full(len(one), forward),
                    ],
                    schema=SAMPLED,
                )

    def _sample(self, runs: RunFiles, other: str, *, everything: bool) -> tuple[Keys, Keys, Floats]:
        """A random selection of differing pairs; one file and the selection are in memory at a time."""
        rng = np.random.default_rng(self.seed)
        kept: list[npt.NDArray[Any]] = [np.empty(0, np.uint64), np.empty(0, np.uint64), np.empty(0), np.empty(0)]
        for file in runs.files:
            table = open_run(file.path, storage_options=runs.storage_options)
            alike = column(table, "similarity")
            near = np.flatnonzero((alike < 1.0) & (everything | (np.abs(alike - self.threshold) < REACH)))
            drawn = [column(table, "document")[near], column(table, other)[near], alike[near], rng.random(len(near))]
            kept = [np.concatenate(pair) for pair in zip(kept, drawn, strict=True)]
            if len(kept[3]) > SAMPLE:
                lowest = np.argpartition(kept[3], SAMPLE)[:SAMPLE]
                kept = [values[lowest] for values in kept]
        order = np.lexsort((kept[1], kept[0]))
        return kept[0][order], kept[1][order], kept[2][order]


def checked(sample: RunFiles, shingles: RunFiles, *, removed: bool) -> tuple[Floats, Floats]:
    """The estimates of the sampled pairs of one kind, and their true similarities."""
    table = sample.read()
    if not table.num_rows:
        return np.empty(0), np.empty(0)
    rows: Any = np.flatnonzero((column(table, "removed") == removed) & column(table, "forward"))
    store = ShingleStore(shingles)
    exact = store.jaccard(store.places(column(table, "document")[rows]), store.places(column(table, "other")[rows]))
    return column(table, "similarity")[rows], exact
