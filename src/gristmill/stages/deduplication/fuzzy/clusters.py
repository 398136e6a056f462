"""The last two steps of the search: candidates are verified, and what is left of them becomes clusters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.union_find import connected, leaders
from gristmill.stages.deduplication.fuzzy.candidates import distinct_pairs
from gristmill.stages.deduplication.fuzzy.shingle_store import Integers, ShingleStore
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.removal import REMOVALS
from gristmill.stages.deduplication.sorted_runs import RunFiles, column

EDGES = pa.schema([("document", pa.uint64()), ("other", pa.uint64()), ("similarity", pa.float64())])
"""Compared pairs, the lower document first."""


class VerifiedPairs(RangeReader):
    """Computes the similarity of every candidate pair of a range of documents.

    Args:
        documents: The shingles of the candidates.
        signatures: Whether these are signatures, so that the similarity is an estimate.
    """

    name = "verified_pairs"

    def __init__(self, documents: RunFiles, *, signatures: bool = False) -> None:
        super().__init__()
        self._documents = documents
        self.documents = documents.digest
        self.signatures = signatures
        self._store: ShingleStore | None = None

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        if self._store is None:
            self._store = ShingleStore(self._documents, signatures=self.signatures)
        firsts, seconds, equal = distinct_pairs(table)
        similarity = np.ones(len(firsts))
        open_pairs = np.flatnonzero(~equal)
        store = self._store
        similarity[open_pairs] = store.jaccard(store.places(firsts[open_pairs]), store.places(seconds[open_pairs]))
        yield pa.table([pa.array(firsts), pa.array(seconds), pa.array(similarity)], schema=EDGES)


class UnverifiedPairs(RangeReader):
    """Takes every candidate pair for a pair of duplicates, when verification is off."""

    name = "unverified_pairs"

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if table.num_rows:
            firsts, seconds, equal = distinct_pairs(table)
            yield pa.table([pa.array(firsts), pa.array(seconds), pa.array(np.where(equal, 1.0, np.nan))], schema=EDGES)


class Clusters(RangeReader):
    """Gives the removal list: every document of a cluster but the one that stays.

    Args:
        documents: Ids, ranks and shingles of the candidates.
        threshold: The least similarity of duplicates.
        chains: Whether documents that are connected only through others belong together.
        signatures: Whether signatures were kept instead of shingles.
    """

    name = "clusters"

    def __init__(self, documents: RunFiles, *, threshold: float, chains: bool, signatures: bool = False) -> None:
        super().__init__()
        self._documents = documents
        self.documents = documents.digest
        self.threshold = threshold
        self.chains = chains
        self.signatures = signatures

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        similarity = column(table, "similarity")
        kept = ~(similarity < self.threshold)
        store = ShingleStore(self._documents, signatures=self.signatures)
        firsts = store.places(column(table, "document")[kept])
        seconds = store.places(column(table, "other")[kept])
        removed, survivors, alike = choose(
            store.ranks, firsts, seconds, similarity[kept], chains=self.chains, jaccard=store.jaccard
        )
        yield pa.table(
            [
                pa.array(store.keys[removed]),
                pa.array(store.keys[survivors]),
                store.ids(removed),
                store.ids(survivors),
                pa.array(alike),
            ],
            schema=REMOVALS,
        )


def choose(
    ranks: npt.NDArray[np.float64],
    firsts: Integers,
    seconds: Integers,
    similarity: npt.NDArray[np.float64],
    *,
    chains: bool,
    jaccard: Any,
) -> tuple[Integers, Integers, npt.NDArray[np.float64]]:
    """Which documents go, for whom, and how alike they are.

    Args:
        ranks: Of every document, in source order; the lowest stays, and among equals the first.
        firsts: One side of every pair of duplicates.
        seconds: The other side.
        similarity: Of every pair; exactly 1 for texts with the same words.
        chains: Whether documents that are connected only through others belong together.
        jaccard: Computes the similarity of pairs that were not compared.
    """
    count = len(ranks)
    place = np.empty(count, np.int64)
    order = np.lexsort((np.arange(count), ranks))
    place[order] = np.arange(count)
    # From here on documents are called by their place in the order of preference, so that the lowest one stays.
    a, b = place[firsts], place[seconds]
    equal = similarity == 1.0
    twin = connected(count, a[equal], b[equal])
    left, right = twin[a[~equal]], twin[b[~equal]]
    if chains:
        chosen = connected(count, np.concatenate([left, a[equal]]), np.concatenate([right, b[equal]]))
    else:
        chosen = leaders(count, *_adjacency(count, left, right, similarity[~equal]))[0][twin]
    gone = np.flatnonzero(chosen != np.arange(count))
    removed, survivors = order[gone], order[chosen[gone]]
    alike = np.ones(len(gone))
    # Of documents with the same words only the first in source order was compared and has its shingles kept.
    compared = np.full(count, count)
    np.minimum.at(compared, twin, order)
    mine, theirs = twin[gone], twin[chosen[gone]]
    other = np.flatnonzero(mine != theirs)
    alike[other] = jaccard(compared[mine[other]], compared[theirs[other]])
    by_key = np.argsort(removed, kind="stable")
    return removed[by_key], survivors[by_key], alike[by_key]


def _adjacency(
    count: int, left: Integers, right: Integers, similarity: npt.NDArray[np.float64]
) -> tuple[Integers, Integers, Integers, npt.NDArray[np.float64]]:
    firsts, seconds = np.concatenate([left, right]), np.concatenate([right, left])
    order = np.lexsort((seconds, firsts))
    bounds = np.searchsorted(firsts[order], np.arange(count + 1))
    return firsts[order], seconds[order], bounds, np.concatenate([similarity, similarity])[order]
