"""Scores on a grid: exact at its points, whatever comes in how many pieces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.report import distribution
from gristmill.report.distribution import ScoreDistribution

SCORES = st.one_of(st.floats(-5, 5), st.integers(0, 100_000).map(float), st.sampled_from([0.0, 0.3, 1.0]))


@pytest.fixture(autouse=True)
def _few_scores_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "_BEFORE_GRID", 7)
    monkeypatch.setattr(distribution, "_AT_ONCE", 3)


@given(
    scores=st.lists(st.tuples(SCORES, st.booleans(), st.booleans()), max_size=60),
    thresholds=st.lists(st.sampled_from([0.0, 0.3, 50.0]), min_size=1, max_size=2, unique=True),
)
def test_counts_at_the_points_of_the_grid_are_exact(
    scores: list[tuple[float, bool, bool]], thresholds: list[float]
) -> None:
    counted = ScoreDistribution(thresholds)
    for first in range(0, len(scores), 4):
        counted.add(*map(np.array, zip(*scores[first : first + 4], strict=True)))
    found = counted.described()
    if not scores:
        assert found == {"number": 0, "unordered": 0, "grid": []}
        return
    free = [score for score, _, is_free in scores if is_free]
    assert set(thresholds) <= set(found["grid"])
    assert found["number"] == len(scores)
    assert found["free"] == len(free)
    assert found["below"] == [sum(score < point for score in free) for point in found["grid"]]
    assert found["upto"] == [sum(score <= point for score in free) for point in found["grid"]]
    assert sum(found["kept"]) == sum(kept for _, kept, _ in scores)
    assert found["kept"][0] == sum(kept and score < found["grid"][0] for score, kept, _ in scores)


def described(scores: Sequence[float], thresholds: Sequence[float]) -> dict[str, object]:
    counted = ScoreDistribution(thresholds)
    values = np.array(scores, np.float64)
    counted.add(values, np.ones(len(values), bool), np.ones(len(values), bool))
    return counted.described()


def test_scores_that_are_no_numbers_are_counted_apart() -> None:
    found = described([np.nan, 1.0, np.nan], [2.0])
    assert (found["unordered"], found["number"]) == (2, 1)


def test_a_threshold_at_the_end_can_be_loosened() -> None:
    grid = described([*np.linspace(0, 0.1, 1000), 0.9], [0.2])["grid"]
    assert isinstance(grid, list)
    assert max(grid) > 0.2


def test_few_large_counts_get_an_axis_by_orders_of_magnitude() -> None:
    found = described([*range(50), 90_000, 100_000], [50.0])
    assert found["log"] is True
    assert all(isinstance(point, float) and point.is_integer() for point in found["grid"])  # type: ignore[attr-defined]
