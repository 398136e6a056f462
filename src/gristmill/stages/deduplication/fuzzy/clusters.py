"""The last two steps of the search: verify candidates and group them into clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.union_find import join, leaders, settle
from gristmill.stages.deduplication.fuzzy.candidates import distinct_pairs
from gristmill.stages.deduplication.fuzzy.shingle_store import Integers, Kept, ShingleStore
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.removal import REMOVALS
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run
from gristmill.stages.deduplication.source import Keys

Edges = tuple[Integers, Integers, npt.NDArray[np.float64]]
_NO_EDGES: Edges = (np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
_HALF = np.uint64(32)
_SLICE = 1 << 16
_EDGES_AT_ONCE = 1 << 21

EDGES = pa.schema([("document", pa.uint64()), ("other", pa.uint64()), ("similarity", pa.float64())])
"""Compared pairs, the lower document first."""


class VerifiedPairs(RangeReader):
    """Computes the similarity of every candidate pair of a range of documents.

    Args:
        documents: The shingles of the candidates.
        kind: How shingles are stored; with signatures the similarity is an estimate.
    """

    name = "verified_pairs"
    fork_safe = True

    def __init__(self, documents: RunFiles, kind: Kept = "sets") -> None:
        super().__init__()
        self._documents = documents
        self.documents = documents.digest
        self.kind = kind
        self._store: ShingleStore | None = None

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        if self._store is None:
            self._store = ShingleStore(self._documents, self.kind)
        firsts, seconds, equal = distinct_pairs(table)
        similarity = np.ones(len(firsts))
        open_pairs = np.flatnonzero(~equal)
        store = self._store
        similarity[open_pairs] = store.jaccard(store.places(firsts[open_pairs]), store.places(seconds[open_pairs]))
        yield pa.table([pa.array(firsts), pa.array(seconds), pa.array(similarity)], schema=EDGES)


class UnverifiedPairs(RangeReader):
    """Treats every candidate pair as duplicates, if verification is off."""

    name = "unverified_pairs"
    fork_safe = True

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if table.num_rows:
            firsts, seconds, equal = distinct_pairs(table)
            yield pa.table([pa.array(firsts), pa.array(seconds), pa.array(np.where(equal, 1.0, np.nan))], schema=EDGES)


class Clusters(RangeReader):
    """Lists the documents to remove: every document of a cluster except the survivor.

    Args:
        documents: Ids, ranks and shingles of the candidates.
        threshold: Minimum similarity of duplicates.
        chains: Whether documents that are linked only transitively belong together.
        kind: How shingles are stored.
    """

    name = "clusters"
    fork_safe = True

    def __init__(self, documents: RunFiles, kind: Kept = "sets", *, threshold: float, chains: bool) -> None:
        super().__init__()
        self._documents = documents
        self.documents = documents.digest
        self.threshold = threshold
        self.chains = chains
        self.kind = kind

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        store = ShingleStore(self._documents, self.kind)
        # Only these: an index holds all documents, most of which are not duplicates.
        keys = _distinct_keys(self._duplicates())
        places = store.places(keys)
        removed, survivors, alike = choose(
            store.ranks[places],
            lambda: ((np.searchsorted(keys, one), np.searchsorted(keys, two), s) for one, two, s in self._duplicates()),
            chains=self.chains,
            jaccard=lambda firsts, seconds: store.jaccard(places[firsts], places[seconds]),
        )
        for start in range(0, len(removed), _SLICE):
            part = slice(start, start + _SLICE)
            yield pa.table(
                [
                    pa.array(keys[removed[part]]),
                    pa.array(keys[survivors[part]]),
                    store.ids(places[removed[part]]),
                    store.ids(places[survivors[part]]),
                    pa.array(alike[part]),
                ],
                schema=REMOVALS,
            )

    def _duplicates(self) -> Iterator[tuple[Keys, Keys, npt.NDArray[np.float64]]]:
        """The pairs of duplicates, one file at a time, so that memory does not grow with their number."""
        for file in self.runs.files:
            table = open_run(file.path, storage_options=self.runs.storage_options)
            similarity = column(table, "similarity")
            kept = ~(similarity < self.threshold)
            yield column(table, "document")[kept], column(table, "other")[kept], similarity[kept]


def _distinct_keys(pairs: Iterable[tuple[Keys, Keys, npt.NDArray[np.float64]]]) -> Keys:
    """The documents of some pairs, in order."""
    return np.unique(np.concatenate([np.empty(0, np.uint64), *(np.unique(both) for *both, _ in pairs)]))


def choose(
    ranks: npt.NDArray[np.float64],
    edges: Callable[[], Iterable[Edges]],
    *,
    chains: bool,
    jaccard: Any,
    at_once: int = _EDGES_AT_ONCE,
) -> tuple[Integers, Integers, npt.NDArray[np.float64]]:
    """Which documents to remove, their survivors, and their similarities.

    Args:
        ranks: Rank of every document, in source order; the lowest is kept, and among equals the first.
        edges: Returns all pairs of duplicates in parts: both sides, and the similarity, which is exactly 1 for texts
            with the same words.
        chains: Whether documents that are linked only transitively belong together.
        jaccard: Computes the similarity of pairs that were not compared.
        at_once: Without chains, the number of pairs to hold in memory.
    """
    count = len(ranks)
    place = np.empty(count, np.int64)
    order = np.lexsort((np.arange(count), ranks))
    place[order] = np.arange(count)
    # From here on documents are numbered in order of preference, so that the lowest one is kept.
    twin, chosen = np.arange(count), np.arange(count)
    for firsts, seconds, similarity in edges():
        equal = similarity == 1.0
        join(twin, place[firsts[equal]], place[seconds[equal]])
        if chains:
            join(chosen, place[firsts], place[seconds])
    settle(twin)
    if chains:
        settle(chosen)
    else:
        chosen = _led(twin[place], edges, at_once)[twin]
    gone = np.flatnonzero(chosen != np.arange(count))
    removed, survivors = order[gone], order[chosen[gone]]
    alike = np.ones(len(gone))
    # Of documents with the same words, only the first in source order was compared and has its shingles kept.
    compared = np.full(count, count)
    np.minimum.at(compared, twin, order)
    mine, theirs = twin[gone], twin[chosen[gone]]
    other = np.flatnonzero(mine != theirs)
    alike[other] = _similarities(compared[mine[other]], compared[theirs[other]], edges, jaccard)
    by_key = np.argsort(removed, kind="stable")
    return removed[by_key], survivors[by_key], alike[by_key]


def _similarities(
    firsts: Integers, seconds: Integers, edges: Callable[[], Iterable[Edges]], jaccard: Any
) -> npt.NDArray[np.float64]:
    """The similarity of pairs: that of the edge between them, computed if there is none."""
    codes, back = np.unique(_pair_codes(firsts, seconds), return_inverse=True)
    found = np.full(len(codes), np.nan)
    for one, other, similarity in edges() if len(codes) else ():
        code = _pair_codes(one, other)
        place = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
        here = codes[place] == code
        found[place[here]] = similarity[here]
    left = np.flatnonzero(np.isnan(found))
    low, high = codes[left] >> _HALF, codes[left] & np.uint64(0xFFFFFFFF)
    found[left] = jaccard(low.astype(np.int64), high.astype(np.int64))
    return found[back]


def _pair_codes(firsts: Integers, seconds: Integers) -> npt.NDArray[np.uint64]:
    """A number for every pair, the same for both orders."""
    low, high = np.minimum(firsts, seconds).astype(np.uint64), np.maximum(firsts, seconds).astype(np.uint64)
    return low << _HALF | high


def _led(nodes: Integers, edges: Callable[[], Iterable[Edges]], at_once: int) -> Integers:
    """For each node its survivor, or itself; it is linked directly to its survivor.

    Nodes are decided in order, a group at a time, with only their pairs in memory: all pairs are read once for every
    `at_once` of them.

    Args:
        nodes: The number of each document here.
        edges: Returns all pairs of duplicates.
        at_once: Approximate number of pairs to hold.
    """
    count = len(nodes)
    chosen = np.arange(count)
    degrees = np.zeros(count, np.int64)
    for later, _, _ in _backwards(nodes, edges()):
        degrees += np.bincount(later, minlength=count)
    ends = np.cumsum(degrees)
    first = 0
    while first < count:
        done = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, done + at_once, "right")))
        parts = []
        for later, earlier, alike in _backwards(nodes, edges()):
            here = (first <= later) & (later < end)
            parts.append((later[here], earlier[here], alike[here]))
        later, earlier, alike = (np.concatenate(side) for side in zip(*parts, strict=True)) if parts else _NO_EDGES
        order = np.lexsort((earlier, later))
        bounds = np.searchsorted(later[order], np.arange(first, end + 1))
        leaders(chosen, first, bounds, earlier[order], alike[order])
        first = end
    return chosen


def _backwards(nodes: Integers, edges: Iterable[Edges]) -> Iterator[Edges]:
    """The pairs that differ, the later node first."""
    for firsts, seconds, similarity in edges:
        differ = similarity != 1.0
        one, other = nodes[firsts[differ]], nodes[seconds[differ]]
        yield np.maximum(one, other), np.minimum(one, other), similarity[differ]
