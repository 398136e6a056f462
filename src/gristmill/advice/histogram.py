"""The distribution of a score in bounded memory: counts of fixed bins, which add up over workers in any order."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_STEPS = 256
"""Bins between 0 and 1, all of one width."""
_PER_OCTAVE = 32
"""Bins per doubling from 1 on: each whole number up to 32 has its own bin, and no bin is wider than 2.2 %."""
_OCTAVES = 40
_ONE = 1 + _STEPS
BINS = _ONE + _PER_OCTAVE * _OCTAVES + 1
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def _edges() -> Floats:
    """The lower bound of each bin, and the upper bound of the last."""
    linear = np.arange(_STEPS) / _STEPS
    beyond = np.exp2(np.arange(BINS - _ONE + 1) / _PER_OCTAVE)
    return np.concatenate([[-np.inf], linear, beyond])


_EDGES = _edges()


@dataclass(slots=True)
class Histogram:
    """Counts by bin: up to 0, then 256 equal steps to 1, then steps of 2.2 %; with the exact extremes and sum.

    Attributes:
        kind: What the values are: `count`, `share` or `number`.
        counts: One per bin.
        total: The sum of all values.
        least: The smallest value.
        most: The largest value.

    Example:
        >>> words = Histogram("count")
        >>> words.add(np.array([3.0, 5.0, 5.0, 40.0]))
        >>> words.quantile(0.5), words.most
        (5.0, 40.0)
    """

    kind: str
    counts: Counts = field(default_factory=lambda: np.zeros(BINS, np.int64))
    total: float = 0.0
    least: float = np.inf
    most: float = -np.inf

    @property
    def size(self) -> int:
        """Number of values."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float | None:
        """Their mean; None without any."""
        return self.total / self.size if self.size else None

    def add(self, values: Floats) -> None:
        """Count values; NaN is ignored."""
        values = values[np.isfinite(values)]
        if not len(values):
            return
        bins = np.zeros(len(values), np.int64)
        small, large = (values > 0) & (values < 1), values >= 1
        bins[small] = 1 + (values[small] * _STEPS).astype(np.int64)
        bins[large] = np.minimum(_ONE + (np.log2(values[large]) * _PER_OCTAVE).astype(np.int64), BINS - 1)
        self.counts += np.bincount(bins, minlength=BINS)
        self.total += float(values.sum())
        self.least, self.most = min(self.least, float(values.min())), max(self.most, float(values.max()))

    def merge(self, other: Histogram) -> None:
        """Add the values of another histogram."""
        self.counts += other.counts
        self.total += other.total
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)

    def quantile(self, share: float) -> float | None:
        """Approximate quantile, as exact as the bins allow; None without values."""
        if not self.size:
            return None
        place = int(np.searchsorted(np.cumsum(self.counts), share * self.size))
        place = min(place, int(np.flatnonzero(self.counts)[-1]))
        low, high = float(_EDGES[place]), float(_EDGES[place + 1])
        if place == 0:
            value = min(self.least, 0.0)
        elif self.kind == "count":
            value = float(np.ceil(low - 1e-9))
        else:
            value = low if place == _ONE else (low + high) / 2
        return min(max(value, self.least), self.most)

    def bars(self, number: int = 24) -> list[tuple[float, float, int]]:
        """The counts in about `number` bars of equal width on the scale of the bins: lower bound, upper bound, count.

        Zeros have a separate bar. The scale is linear up to 1 and logarithmic beyond.
        """
        used = np.flatnonzero(self.counts)
        if not len(used):
            return []
        first, last = int(used[0]), int(used[-1])
        found = []
        if first == 0:
            found.append((min(self.least, 0.0), 0.0, int(self.counts[0])))
            first = int(used[1]) if len(used) > 1 else last + 1
        step = max(1, -(-(last + 1 - first) // number))
        for start in range(first, last + 1, step):
            end = min(start + step, last + 1)
            count = int(self.counts[start:end].sum())
            found.append((max(float(_EDGES[start]), self.least), min(float(_EDGES[end]), self.most), count))
        return found

    def summary(self) -> dict[str, object]:
        """The distribution as plain values."""
        quantiles = {f"{share:g}": self.quantile(share) for share in QUANTILES}
        empty = not self.size
        return {
            "kind": self.kind,
            "documents": self.size,
            "mean": self.mean,
            "min": None if empty else self.least,
            "max": None if empty else self.most,
            "quantiles": quantiles,
            "histogram": [list(bar) for bar in self.bars()],
        }

    def __getstate__(self) -> tuple[str, bytes, bytes, float, float, float]:
        used = np.flatnonzero(self.counts).astype(np.int16)
        return self.kind, used.tobytes(), self.counts[used].tobytes(), self.total, self.least, self.most

    def __setstate__(self, state: tuple[str, bytes, bytes, float, float, float]) -> None:
        self.kind, used, counts, self.total, self.least, self.most = state
        self.counts = np.zeros(BINS, np.int64)
        self.counts[np.frombuffer(used, np.int16)] = np.frombuffer(counts, np.int64)
