"""The steps that cluster vectors: centroids from a sample, then every vector under its clusters.

A vector near the boundary of its cluster may have its nearest neighbour on the other side, so it also visits the
neighbouring clusters that are near.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.vector_search import Vectors, add_vectors, squared_lengths, visited_clusters
from gristmill.stages.deduplication.exact.steps import equal_rows
from gristmill.stages.deduplication.key_ranges import RangeReader
from gristmill.stages.deduplication.semantic.vectors import scale, vector_array, vectors_of, whole_vectors
from gristmill.stages.deduplication.sorted_runs import RunFiles, column, open_run

BLOCK = 4096
"""Number of vectors multiplied with the centroids at once."""
MOST_VISITS = 16
_REACH = 0.33
SAMPLE_BYTES = 96 << 20
"""Maximum bytes of vectors for training k-means."""
SAMPLE_PER_CLUSTER = 96
"""Number of sampled vectors per centroid, if memory allows."""


def border_width(least: float) -> float:
    """Distance from a boundary within which a vector visits the other side, to find neighbours of at least this cosine.

    Vectors of that cosine are `sqrt(2 - 2 cosine)` apart, but only part of that crosses the boundary. Chosen by
    measurement: see `benchmarks/bench_dedup_semantic.py`.
    """
    return _REACH * math.sqrt(1.0 - least)


def sample_size(count: int, clusters: int, dimensions: int) -> int:
    """Number of vectors for training k-means: enough for each centroid, within a fixed memory."""
    wanted = max(20_000, SAMPLE_PER_CLUSTER * clusters)
    return min(count, wanted, max(clusters, SAMPLE_BYTES // (2 * dimensions)))


class Centroids(RangeReader):
    """Computes the centroids from the vectors of a range of hashes; a range of hashes is a random sample.

    Args:
        clusters: Number of centroids.
        seed: Seed for the initial vectors.
        max_iter: Maximum number of rounds.
        tol: Tolerance for stopping.
    """

    name = "centroids"
    fork_safe = True

    def __init__(self, clusters: int, *, seed: int, max_iter: int, tol: float) -> None:
        super().__init__()
        self.clusters = clusters
        self.seed = seed
        self.max_iter = max_iter
        self.tol = tol

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = distinct_vectors(self.runs.read(low, high))
        # A sample may happen to be smaller than the number of clusters.
        count = min(self.clusters, table.num_rows)
        if not count:
            return
        # Each file holds the hashes of one partition; sorted, the sample does not depend on how documents were
        # partitioned.
        table = table.take(pa.array(np.lexsort((column(table, "hash_2"), column(table, "hash")))))
        found = spherical_kmeans(vectors_of(table), count, seed=self.seed, max_iter=self.max_iter, tol=self.tol)
        yield pa.table({"cluster": np.arange(len(found), dtype=np.uint64), "vector": vector_array(found)})


class ClusterMembers(RangeReader):
    """Lists the vectors of a range of hashes under the cluster of each, and again under those that it visits.

    Of equal vectors only the preferred one is passed on. `centrality` is the cosine with its own centroid.

    Args:
        centroids: The output of `Centroids`.
        least: Minimum cosine of neighbours to find.
    """

    name = "cluster_members"
    fork_safe = True

    def __init__(self, centroids: RunFiles, *, least: float) -> None:
        super().__init__()
        self._centroids = centroids
        self.centroids = centroids.digest
        self.least = least
        self._matrix: Vectors | None = None

    def rows_from(self, low: int, high: int) -> Iterator[pa.Table]:
        table = distinct_vectors(self.runs.read(low, high))
        if not table.num_rows:
            return
        if self._matrix is None:
            self._matrix = np.ascontiguousarray(vectors_of(self._centroids.read()))
        centroids = self._matrix
        across = centroids.astype(np.float32).T
        lengths = squared_lengths(centroids)
        margin = border_width(self.least) * scale(centroids.shape[1])
        for start in range(0, table.num_rows, BLOCK):
            block = table.slice(start, BLOCK)
            vectors = np.ascontiguousarray(vectors_of(block))
            scores = vectors.astype(np.float32) @ across
            visited = visited_clusters(scores, centroids, MOST_VISITS, margin)
            home = visited[:, 0]
            product = scores[np.arange(len(vectors)), home].astype(np.float64)
            central = product / np.sqrt((squared_lengths(vectors) * lengths[home]).astype(np.float64))
            rows, places = np.nonzero(visited >= 0)
            yield pa.table(
                {
                    "cluster": visited[rows, places].astype(np.uint64),
                    "visitor": places > 0,
                    "document": column(block, "document")[rows],
                    "hash": column(block, "hash")[rows],
                    "rank": column(block, "rank")[rows],
                    "centrality": central[rows],
                    "id": block.column("id").combine_chunks().take(pa.array(rows)),
                    "vector": vector_array(vectors[rows]),
                }
            )


def distinct_vectors(table: pa.Table) -> pa.Table:
    """The table with only the first of equal vectors, by rank and then in source order."""
    if not table.num_rows:
        return table
    gone, _ = equal_rows(table)
    if not len(gone):
        return table
    kept = np.ones(table.num_rows, bool)
    kept[gone] = False
    return table.filter(pa.array(kept))


def cluster_cuts(runs: RunFiles, clusters: int, range_bytes: int) -> list[int]:
    """Bounds of ranges of whole clusters, so that each holds about `range_bytes`."""
    counts = np.zeros(clusters + 1, np.int64)
    for file in runs.files:
        keys = column(open_run(file.path, storage_options=runs.storage_options), "cluster")
        counts += np.searchsorted(keys, np.arange(clusters + 1, dtype=np.uint64))
    per_row = runs.size / max(1, int(counts[-1]))
    cuts = [0]
    for cluster in range(1, clusters):
        # The first cut at or after the point where a range is full.
        if (counts[cluster] - counts[cuts[-1]]) * per_row >= range_bytes:
            cuts.append(cluster)
    return [*cuts, 1 << 64]


def spherical_kmeans(vectors: Vectors, count: int, *, seed: int, max_iter: int, tol: float) -> Vectors:
    """`count` centroid directions of the vectors (spherical k-means, Dhillon and Modha 2001), as integer vectors.

    Products, sums and so the assignments are exact: the same vectors in the same order produce the same centroids
    everywhere.

    Args:
        vectors: Integer vectors.
        count: Number of centroids, at most the number of vectors.
        seed: Seed for the initial vectors.
        max_iter: Maximum number of rounds of assigning and averaging.
        tol: Stop when the mean cosine between vectors and their centroids grows by less than this share.

    Example:
        >>> vectors, _ = whole_vectors(np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]))
        >>> spherical_kmeans(vectors, 2, seed=0, max_iter=10, tol=0.0).shape
        (2, 2)
    """
    chosen = np.sort(np.random.default_rng(seed).choice(len(vectors), count, replace=False))
    centroids = np.ascontiguousarray(vectors[chosen])
    before = -np.inf
    for _ in range(max_iter):
        labels, total = nearest_centroids(vectors, centroids)
        mean = total / (len(vectors) * scale(vectors.shape[1]) ** 2)
        if mean - before <= tol * abs(mean):
            break
        before = mean
        sums = np.zeros(centroids.shape, np.int64)
        counts = np.zeros(count, np.int64)
        add_vectors(vectors, labels, sums, counts)
        moved, usable = whole_vectors(sums)
        # A centroid without near vectors does not move.
        centroids[usable] = moved[usable]
    return centroids


def nearest_centroids(vectors: Vectors, centroids: Vectors) -> tuple[npt.NDArray[np.int64], float]:
    """The centroid with the largest product for every vector, and the sum of these products."""
    across = centroids.astype(np.float32).T
    labels = np.empty(len(vectors), np.int64)
    total = 0.0
    for start in range(0, len(vectors), BLOCK):
        scores = vectors[start : start + BLOCK].astype(np.float32) @ across
        best = scores.argmax(axis=1)
        labels[start : start + BLOCK] = best
        total += float(np.take_along_axis(scores, best[:, None], 1).sum(dtype=np.float64))
    return labels, total
