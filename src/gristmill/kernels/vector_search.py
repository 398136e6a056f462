"""Clusters and nearest neighbours of integer vectors, from products computed by BLAS.

The vectors have so few bits that every product of two of them is exact in float32 (see `semantic.vectors`), so nothing
here depends on the order in which BLAS adds, on its threads or on the CPU.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float32]
Vectors = npt.NDArray[np.int16]


@kernel
def rounded_vectors(matrix: Floats, length: float) -> tuple[Vectors, npt.NDArray[np.bool_]]:
    """Each row scaled to `length` and rounded, and whether it has a direction: zero and non-finite ones have none."""
    rows, width = matrix.shape
    vectors = np.zeros((rows, width), np.int16)
    usable = np.zeros(rows, np.bool_)
    for row in range(rows):
        largest = 0.0
        finite = True
        for at in range(width):
            value = abs(matrix[row, at])
            finite = finite and value < np.inf
            largest = max(largest, value)
        if not finite or largest == 0.0:
            continue
        # Divided by the largest first, so that squares neither overflow nor vanish.
        total = 0.0
        for at in range(width):
            value = matrix[row, at] / largest
            total += value * value
        norm = math.sqrt(total)
        for at in range(width):
            vectors[row, at] = np.int16(np.rint(matrix[row, at] / largest / norm * length))
        usable[row] = True
    return vectors, usable


@kernel
def add_vectors(vectors: Vectors, labels: Integers, sums: Integers, counts: Integers) -> None:
    """Add every vector to the sum of its label, and one to its count."""
    for row in range(len(vectors)):
        label = labels[row]
        counts[label] += 1
        for at in range(vectors.shape[1]):
            sums[label, at] += vectors[row, at]


@kernel
def squared_lengths(vectors: Vectors) -> Integers:
    """The square of the length of every vector."""
    squares = np.zeros(len(vectors), np.int64)
    for row in range(len(vectors)):
        total = np.int64(0)
        for at in range(vectors.shape[1]):
            total += np.int64(vectors[row, at]) * np.int64(vectors[row, at])
        squares[row] = total
    return squares


@kernel
def visited_clusters(scores: Scores, centroids: Vectors, most: int, margin: float) -> Integers:
    """For each row the cluster it belongs to, and up to `most` others whose border is near; -1 where there are fewer.

    The border of two clusters is the plane half way between their centroids. `scores` are the products of vectors and
    centroids, `margin` is the distance from a border within which a vector also visits the other side, in the units of
    the vectors.
    """
    rows, clusters = scores.shape
    found = np.full((rows, most + 1), -1, np.int64)
    best = np.empty(most + 1, np.float32)
    names = np.empty(most + 1, np.int64)
    for row in range(rows):
        size = 0
        for cluster in range(clusters):
            score = scores[row, cluster]
            if size > most and score <= best[most]:
                continue
            place = min(size, most)
            while place > 0 and best[place - 1] < score:
                best[place] = best[place - 1]
                names[place] = names[place - 1]
                place -= 1
            best[place] = score
            names[place] = cluster
            if size <= most:
                size += 1
        home = names[0]
        found[row, 0] = home
        kept = 1
        for place in range(1, size):
            other = names[place]
            apart = np.int64(0)
            for at in range(centroids.shape[1]):
                step = np.int64(centroids[home, at]) - np.int64(centroids[other, at])
                apart += step * step
            if np.float64(best[0]) - np.float64(best[place]) <= margin * math.sqrt(np.float64(apart)):
                found[row, kept] = other
                kept += 1
    return found


@kernel
def update_nearest(
    scores: Scores,
    row_start: int,
    column_start: int,
    squares: Integers,
    places: Integers,
    least: float,
    similarity: Floats,
    nearest: Integers,
) -> None:
    """Take the pairs of a block of products into account: each vector's nearest one of an earlier place.

    Args:
        scores: The products of the vectors from `row_start` on with those from `column_start` on.
        row_start: Where the rows begin.
        column_start: Where the columns begin.
        squares: The squared length of every vector.
        places: The place of every vector in the order of preference; all different.
        least: Pairs with a lower cosine are ignored.
        similarity: The cosine with the nearest so far, updated.
        nearest: The nearest so far, -1 for none, updated.
    """
    shortest = squares[column_start]
    for column in range(column_start, column_start + scores.shape[1]):
        shortest = min(shortest, squares[column])
    for i in range(scores.shape[0]):
        row = row_start + i
        cut = np.float32(least * math.sqrt(np.float64(squares[row]) * np.float64(shortest)) * 0.999999)
        for j in range(scores.shape[1]):
            score = scores[i, j]
            if score < cut:
                continue
            column = column_start + j
            if row == column:
                continue
            cosine = np.float64(score) / math.sqrt(np.float64(squares[row]) * np.float64(squares[column]))
            if cosine < least:
                continue
            later, earlier = (row, column) if places[row] > places[column] else (column, row)
            before = nearest[later]
            if (
                before < 0
                or cosine > similarity[later]
                or (cosine == similarity[later] and places[earlier] < places[before])
            ):
                similarity[later] = cosine
                nearest[later] = earlier


@kernel
def chain_ends(parents: Integers) -> Integers:
    """For each node the end of its chain of parents; the end of a chain is its own parent."""
    ends = parents.copy()
    for node in range(len(ends)):
        at = node
        while ends[at] != at:
            ends[at] = ends[ends[at]]
            at = ends[at]
        ends[node] = at
    return ends
