"""Counts scores at the points of a grid, in one pass and bounded memory, so that a page can try thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Counts = npt.NDArray[np.int64]

_POINTS = 81
_BEFORE_GRID = 200_000
"""Number of scores to look at before the grid is chosen."""
_AT_ONCE = 50_000
_LOG_FROM = 30.0
"""Minimum ratio of the largest to the median score for a logarithmic axis."""
_MARGIN = 0.3
_TAIL = 0.005
"""Share of scores at either end that the axis may leave out."""


class ScoreDistribution:
    """The number of documents with a score below and up to each point of a grid.

    The grid is chosen from the first scores and includes the thresholds; counts at its points are exact for all scores.

    Args:
        thresholds: Bounds that must be points of the grid.

    Example:
        >>> scores = ScoreDistribution([0.5])
        >>> scores.add(np.array([0.1, 0.9]), np.array([False, True]), np.array([True, True]))
        >>> scores.described()["number"]
        2
    """

    def __init__(self, thresholds: Sequence[float]) -> None:
        self._thresholds = [bound for bound in thresholds if math.isfinite(bound)]
        self._waiting: list[tuple[Floats, Mask, Mask]] = []
        self._size = 0
        self._grid: Floats | None = None
        self._is_log = False
        self._counts: dict[str, Counts] = {}
        self.unordered = 0

    def add(self, scores: Floats, kept: Mask, free: Mask) -> None:
        """Count scores.

        Args:
            scores: One per document.
            kept: Whether the run kept the document.
            free: Whether nothing else dropped the document, so that its score alone decides.
        """
        there = ~np.isnan(scores)
        if not there.all():
            self.unordered += int(len(there) - there.sum())
            scores, kept, free = scores[there], kept[there], free[there]
        self._waiting.append((scores, kept, free))
        self._size += len(scores)
        if self._size >= (_BEFORE_GRID if self._grid is None else _AT_ONCE):
            self._count()

    def _count(self) -> None:
        scores, kept, free = map(np.concatenate, zip(*self._waiting, strict=True))
        self._waiting, self._size = [], 0
        if self._grid is None:
            self._grid = self._points(scores)
            names = ("kept", "dropped", "below", "upto")
            self._counts = {name: np.zeros(len(self._grid) + 1, np.int64) for name in names}
        grid, size = self._grid, len(self._grid) + 1
        upto = np.searchsorted(grid, scores)  # the first point that is not below the score
        below = upto + (grid[np.minimum(upto, len(grid) - 1)] == scores)
        for name, places in (
            ("kept", below[kept]),
            ("dropped", below[~kept]),
            ("below", below[free]),
            ("upto", upto[free]),
        ):
            self._counts[name] += np.bincount(places, minlength=size)[:size]

    def _points(self, scores: Floats) -> Floats:
        """The points of the axis: evenly spaced, or by orders of magnitude where few scores are far above the rest."""
        finite = scores[np.isfinite(scores)]
        middle, low, high = 0.0, 0.0, 1.0
        if len(finite):
            low, middle, high = map(float, np.quantile(finite, (_TAIL, 0.5, 1 - _TAIL)))
        low, high = min(low, *self._thresholds, high), max(high, *self._thresholds, low)
        if len(finite):  # a threshold at the end of the axis could not be loosened
            margin = _MARGIN * (high - low)
            low = max(low - margin * (low in self._thresholds), min(low, float(finite.min())))
            high = min(high + margin * (high in self._thresholds), max(high, float(finite.max())))
        if low == high:
            low, high = low - 0.5, high + 0.5
        self._is_log = low >= 0 and high > 10 and high > _LOG_FROM * max(middle, 1.0)
        if self._is_log:
            points = np.expm1(np.linspace(math.log1p(low), math.log1p(high), _POINTS))
        else:
            points = np.linspace(low, high, _POINTS)
        if len(finite) and not np.mod(finite, 1).any():
            points = np.round(points)
        else:
            digits = min(4 - math.floor(math.log10(max(abs(low), abs(high)))), 15)
            points = np.round(points, digits)
        return np.unique(np.concatenate([points, self._thresholds]))

    def described(self) -> dict[str, Any]:
        """The grid, a histogram between its points, and how many free scores are below and up to each point."""
        if self._waiting:
            self._count()
        if self._grid is None:
            return {"number": 0, "unordered": self.unordered, "grid": []}
        counts = self._counts
        return {
            "number": int((counts["kept"] + counts["dropped"]).sum()),
            "unordered": self.unordered,
            "log": self._is_log,
            "grid": self._grid.tolist(),
            "kept": counts["kept"].tolist(),
            "dropped": counts["dropped"].tolist(),
            "free": int(counts["below"].sum()),
            "below": np.cumsum(counts["below"])[:-1].tolist(),
            "upto": np.cumsum(counts["upto"])[:-1].tolist(),
        }
