"""The search: for every vector the nearest one preferred to it, first in each cluster, then over all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.vector_search import Vectors, squared_lengths, update_nearest
from gristmill.stages.deduplication.exact.steps import equal_rows
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.semantic.vectors import vectors_of
from gristmill.stages.deduplication.sorted_runs import column

WhichToKeep = Literal["hard", "easy", "random"]
SEARCH_BLOCK = 2048

PAIRS = pa.schema(
    [
        ("document", pa.uint64()),
        ("other", pa.uint64()),
        ("similarity", pa.float64()),
        ("hash", pa.uint64()),
        ("other_hash", pa.uint64()),
        ("id", pa.large_string()),
        ("other_id", pa.large_string()),
    ]
)
"""A document, its nearest preferred one, and their cosine; hashes lead to the vectors."""

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def check_which_to_keep(value: str) -> None:
    """Reject an unknown rule."""
    if value not in get_args(WhichToKeep):
        known = get_args(WhichToKeep)
        raise UsageError(
            f"which_to_keep={value!r}: must be one of {', '.join(known)}.{did_you_mean(str(value), known)}"
        )


def nearest_preferred(vectors: Vectors, members: int, places: Integers, least: float) -> tuple[Floats, Integers]:
    """For each vector its nearest one of lower rank, and their cosine; -1 if none reaches `least`.

    The first `members` vectors are compared with all others, the rest (visitors) only with members.
    """
    count = len(vectors)
    similarity, nearest = np.zeros(count), np.full(count, -1, np.int64)
    squares = squared_lengths(vectors)
    for column_start in range(0, members, SEARCH_BLOCK):
        columns = vectors[column_start : min(members, column_start + SEARCH_BLOCK)].astype(np.float32).T
        for row_start in _blocks(column_start, members, count):
            row_end = min(row_start + SEARCH_BLOCK, members if row_start < members else count)
            scores = vectors[row_start:row_end].astype(np.float32) @ columns
            update_nearest(scores, row_start, column_start, squares, places, least, similarity, nearest)
    return similarity, nearest


def _blocks(column_start: int, members: int, count: int) -> Iterator[int]:
    # Each pair of members is compared once: the rows before this column have compared it from the other side.
    yield from range(column_start, members, SEARCH_BLOCK)
    yield from range(members, count, SEARCH_BLOCK)


class ClusterNeighbours(RangeReader):
    """Lists the pairs of a range of clusters.

    Args:
        least: Minimum cosine of pairs.
        which_to_keep: Prefers the vectors far from their centroid (`hard`), near it (`easy`), or any (`random`); None
            uses the rank of the survivor rule.
        seed: For `random`.
    """

    name = "cluster_neighbours"
    fork_safe = True

    def __init__(self, *, least: float, which_to_keep: WhichToKeep | None, seed: int) -> None:
        super().__init__()
        self.least = least
        self.which_to_keep = which_to_keep
        self.seed = seed

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        clusters, visitor = column(table, "cluster"), column(table, "visitor")
        documents, hashes = column(table, "document"), column(table, "hash")
        order = np.lexsort((documents, self._ranks(table)))
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        vectors = vectors_of(table)
        ids = table.column("id").combine_chunks()
        grouped = np.lexsort((documents, visitor, clusters))
        cuts = np.flatnonzero(np.diff(clusters[grouped])) + 1
        for group in np.split(grouped, cuts):
            members = int(np.count_nonzero(~visitor[group]))
            similarity, nearest = nearest_preferred(
                np.ascontiguousarray(vectors[group]), members, place[group], self.least
            )
            found = np.flatnonzero(nearest >= 0)
            if not len(found):
                continue
            later, earlier = group[found], group[nearest[found]]
            yield pa.table(
                [
                    documents[later],
                    documents[earlier],
                    similarity[found],
                    hashes[later],
                    hashes[earlier],
                    ids.take(pa.array(later)),
                    ids.take(pa.array(earlier)),
                ],
                schema=PAIRS,
            )

    def _ranks(self, table: pa.Table) -> npt.NDArray[np.float64]:
        given = column(table, "rank")
        if self.which_to_keep is None:
            return given
        if self.which_to_keep == "random":
            ranks = _shuffled(column(table, "document"), self.seed)
        else:
            central = column(table, "centrality")
            ranks = central if self.which_to_keep == "hard" else -central
        # Documents that are always kept come before all others.
        return np.where(np.isneginf(given), given, ranks)


def _shuffled(documents: npt.NDArray[np.uint64], seed: int) -> npt.NDArray[np.float64]:
    """A pseudo-random number for every document (the finalizer of SplitMix64, Steele et al. 2014)."""
    values = documents + np.uint64(seed * 0x9E3779B97F4A7C15 % (1 << 64))
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((values ^ (values >> np.uint64(31))) >> np.uint64(11)).astype(np.float64)


class EqualVectors(RangeReader):
    """Lists the pairs of a range of hashes whose vectors are equal."""

    name = "equal_vectors"
    fork_safe = True

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        gone, kept = equal_rows(table)
        documents, hashes = column(table, "document"), column(table, "hash")
        ids = table.column("id").combine_chunks()
        yield pa.table(
            [
                documents[gone],
                documents[kept],
                np.ones(len(gone)),
                hashes[gone],
                hashes[kept],
                ids.take(pa.array(gone)),
                ids.take(pa.array(kept)),
            ],
            schema=PAIRS,
        )


class NearestPairs(RangeReader):
    """Lists one pair for each document of a range, the nearest, from which any `eps` can be chosen later."""

    name = "nearest_pairs"
    fork_safe = True

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = self.runs.read(low, high)
        if not table.num_rows:
            return
        documents = column(table, "document")
        order = np.lexsort((column(table, "other"), -column(table, "similarity"), documents))
        first = np.ones(len(order), bool)
        first[1:] = documents[order][1:] != documents[order][:-1]
        yield table.take(pa.array(order[first]))
