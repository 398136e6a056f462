"""The kernels of semantic search against plain references, and the arithmetic that makes them exact."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.kernels.vector_search import (
    add_vectors,
    chain_ends,
    rounded_vectors,
    squared_lengths,
    update_nearest,
    visited_clusters,
)
from gristmill.stages.deduplication.semantic.vectors import scale, whole_vectors

shapes = st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(0, 2**32 - 1))


def random_vectors(rows: int, width: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, width)) + rng.integers(0, 3) * rng.standard_normal(width)
    matrix[rng.random(rows) < 0.2] = matrix[0]
    return whole_vectors(matrix)[0]


@given(st.integers(1, 40), st.integers(1, 700), st.integers(0, 2**32 - 1), st.integers(-300, 300))
def test_products_of_rounded_vectors_are_exact_in_float32(rows: int, width: int, seed: int, power: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.standard_normal((rows, width)) ** 3 * 10.0**power
    vectors, usable = rounded_vectors(matrix, scale(width))
    assert usable.all()
    whole = vectors.astype(np.int64)
    assert (whole * whole).sum(1).max() <= 1 << 24
    assert np.array_equal((vectors.astype(np.float32) @ vectors.astype(np.float32).T).astype(np.int64), whole @ whole.T)


def test_rounding_changes_a_cosine_by_little() -> None:
    matrix = np.random.default_rng(1).standard_normal((300, 384))
    matrix[150:] = matrix[:150] + 0.3 * matrix[150:]
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    vectors = whole_vectors(matrix)[0].astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(unit @ unit.T - vectors @ vectors.T).max() < 6e-4
    near = (unit[:150] * unit[150:]).sum(1)
    assert near.min() > 0.9
    assert np.abs(near - (vectors[:150] * vectors[150:]).sum(1)).max() < 2e-4


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
def test_rows_without_a_direction_are_told(bad: float) -> None:
    matrix = np.array([[3.0, 4.0], [bad, 0.0], [1e308, 1e308], [5e-324, 0.0]])
    vectors, usable = rounded_vectors(matrix, 10.0)
    assert usable.tolist() == [True, False, True, True]
    assert vectors.tolist() == [[6, 8], [0, 0], [7, 7], [10, 0]]


@given(shapes)
def test_sums_and_squares(shape: tuple[int, int, int]) -> None:
    rows, width, seed = shape
    vectors = random_vectors(rows, width, seed)
    labels = np.random.default_rng(seed).integers(0, 3, rows)
    sums, counts = np.zeros((3, width), np.int64), np.zeros(3, np.int64)
    add_vectors(vectors, labels, sums, counts)
    for label in range(3):
        assert sums[label].tolist() == vectors[labels == label].astype(np.int64).sum(0).tolist()
        assert counts[label] == (labels == label).sum()
    assert squared_lengths(vectors).tolist() == (vectors.astype(np.int64) ** 2).sum(1).tolist()


@given(shapes, st.integers(1, 7), st.integers(0, 4), st.floats(0, 6000))
def test_visited_clusters(shape: tuple[int, int, int], clusters: int, most: int, margin: float) -> None:
    rows, width, seed = shape
    vectors, centroids = random_vectors(rows, width, seed), random_vectors(clusters, width, seed + 1)
    scores = vectors.astype(np.float32) @ centroids.astype(np.float32).T
    found = visited_clusters(scores, centroids, most, margin)
    for row in range(rows):
        order = sorted(range(clusters), key=lambda cluster: (-scores[row, cluster], cluster))
        expected = order[:1]
        for other in order[1 : most + 1]:
            apart = np.linalg.norm(centroids[order[0]].astype(np.float64) - centroids[other])
            if float(scores[row, order[0]]) - float(scores[row, other]) <= margin * apart:
                expected.append(other)
        assert found[row].tolist() == expected + [-1] * (most + 1 - len(expected))


@settings(deadline=None)
@given(shapes, st.floats(-0.2, 1.0))
def test_nearest_of_an_earlier_place(shape: tuple[int, int, int], least: float) -> None:
    rows, width, seed = shape
    vectors = random_vectors(rows, width, seed)
    places = np.random.default_rng(seed).permutation(rows)
    squares = squared_lengths(vectors)
    scores = vectors.astype(np.float32) @ vectors.astype(np.float32).T
    similarity, nearest = np.zeros(rows), np.full(rows, -1)
    half = rows // 2
    for start, end in ((0, half), (half, rows)):
        if end > start:
            update_nearest(scores[:, start:end].copy(), 0, start, squares, places, least, similarity, nearest)
    for row in range(rows):
        best = None
        for other in range(rows):
            cosine = float(scores[row, other]) / np.sqrt(float(squares[row]) * float(squares[other]))
            if places[other] < places[row] and cosine >= least:
                best = max(best or (-2.0, 0, 0), (cosine, -places[other], other))
        if best is None:
            assert nearest[row] == -1
        else:
            assert (similarity[row], nearest[row]) == (best[0], best[2])


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50))
def test_ends_of_chains(numbers: list[int]) -> None:
    parents = np.array([number % (at + 1) for at, number in enumerate(numbers)])
    found = chain_ends(parents.copy())
    for node in range(len(parents)):
        end = node
        while parents[end] != end:
            end = parents[end]
        assert found[node] == end
