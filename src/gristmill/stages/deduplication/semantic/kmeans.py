"""Spherical k-means: directions around which vectors gather (Dhillon and Modha 2001)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.vector_search import Vectors, add_vectors
from gristmill.stages.deduplication.semantic.vectors import scale, whole_vectors

BLOCK = 4096
"""How many vectors are multiplied with the centroids at once."""


def spherical_kmeans(vectors: Vectors, count: int, *, seed: int, max_iter: int, tol: float) -> Vectors:
    """`count` centroids of the vectors, as vectors of whole numbers.

    Products, sums and so the assignments are exact: the same vectors in the same order give the same centroids
    everywhere.

    Args:
        vectors: Vectors of whole numbers.
        count: How many centroids, at most as many as there are vectors.
        seed: Chooses the vectors to begin with.
        max_iter: The most rounds of assigning and averaging.
        tol: Rounds end when the mean cosine between vectors and their centroids grows by less than this share of it.

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
        # A centroid that nothing is near to stays where it is.
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
