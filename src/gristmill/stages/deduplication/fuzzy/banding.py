"""The bands of MinHash signatures: which pairs they find, and estimates of a deduplication's quality."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import UsageError

MOST_HASHES = 140
"""Maximum number of hashes: more would cost more and find little more."""
WANTED_RECALL = 0.99
"""Share of the pairs exactly at the threshold that must be found; more of those above it are."""
MOST_BANDS = 256
SAMPLE = 2000
REACH = 0.1
"""Distance from the threshold within which an estimate is checked again."""
_Z = 1.96
_NEAR = 0.05

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Banding:
    """Bands of a signature; two documents are compared when they agree in all hashes of at least one band.

    Example:
        >>> round(Banding(20, 7).probability(0.8), 3)
        0.991
    """

    bands: int
    rows: int

    def __post_init__(self) -> None:
        if not 1 <= self.bands <= MOST_BANDS or self.rows < 1:
            raise UsageError(
                f"num_bands={self.bands} and minhashes_per_band={self.rows}: must be 1 to {MOST_BANDS} bands of at "
                "least 1 hash; omit both to derive them from the threshold."
            )

    @property
    def hashes(self) -> int:
        """The length of a signature."""
        return self.bands * self.rows

    def probability(self, similarity: float) -> float:
        """The probability that a pair of this Jaccard similarity is compared."""
        return 1.0 - float((1.0 - similarity**self.rows) ** self.bands)

    def __str__(self) -> str:
        points = ", ".join(f"{at:.2f} → {self.probability(at):.1%}" for at in (0.5, 0.6, 0.7, 0.8, 0.9, 0.95))
        return f"{self.bands} bands of {self.rows} hashes; pairs compared by similarity: {points}"


def derive_banding(threshold: float) -> Banding:
    """The most selective bands that still find nearly all pairs at the threshold.

    Example:
        >>> derive_banding(0.8)
        Banding(bands=20, rows=7)
    """
    for rows in range(MOST_HASHES, 0, -1):
        for bands in range(1, min(MOST_BANDS, MOST_HASHES // rows) + 1):
            if Banding(bands, rows).probability(threshold) >= WANTED_RECALL:
                return Banding(bands, rows)
    return Banding(MOST_HASHES, 1)


def share_with_interval(hits: int, total: int) -> dict[str, Any]:
    """A share with its 95 % interval (Wilson 1927).

    Example:
        >>> share_with_interval(98, 100)["low"]
        0.93
    """
    if not total:
        return {"value": None, "low": None, "high": None, "sample": 0}
    share, square = hits / total, _Z * _Z
    centre = (share + square / (2 * total)) / (1 + square / total)
    half = _Z / (1 + square / total) * math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    return {
        "value": round(share, 4),
        "low": round(max(0.0, centre - half), 4),
        "high": round(min(1.0, centre + half), 4),
        "sample": total,
    }


def random_sample(parts: Iterable[Floats], *, seed: int, count: int = SAMPLE) -> Floats:
    """`count` random values from all parts, or all if there are fewer; only these are kept in memory."""
    rng = np.random.default_rng(seed)
    kept, tickets = np.empty(0), np.empty(0)
    for part in parts:
        kept, tickets = np.concatenate([kept, part]), np.concatenate([tickets, rng.random(len(part))])
        if len(kept) > count:
            lowest = np.argpartition(tickets, count)[:count]
            kept, tickets = kept[lowest], tickets[lowest]
    return kept


def estimated_precision(similarities: Floats, threshold: float) -> dict[str, Any]:
    """The share of a sample of removed documents that really reach the threshold with their survivor."""
    return share_with_interval(int(np.sum(similarities >= threshold)), len(similarities))


class RecallEstimate:
    """The share of all pairs above the threshold that was compared.

    A pair that was found represents 1/p existing pairs, where p is the probability that the bands find a pair of its
    similarity (Horvitz and Thompson 1952).

    Args:
        threshold: Minimum similarity of duplicates.
        banding: The bands that found the pairs.
    """

    def __init__(self, threshold: float, banding: Banding) -> None:
        self._threshold = threshold
        self._banding = banding
        self._found = 0
        self._total = 0.0
        self._variance = 0.0

    def add(self, similarities: Floats) -> None:
        """Count some of the compared pairs that differ, by their exact similarities."""
        found = similarities[similarities >= self._threshold]
        chance = np.maximum(1.0 - (1.0 - found**self._banding.rows) ** self._banding.bands, 1e-9)
        self._found += len(found)
        self._total += float(np.sum(1 / chance))
        self._variance += float(np.sum((1 - chance) / chance**2))

    def result(self) -> dict[str, Any]:
        """The share with its 95 % interval."""
        found, total = self._found, self._total
        if not found:
            return {"value": None, "low": None, "high": None, "sample": 0}
        spread = _Z * math.sqrt(self._variance)
        return {
            "value": round(found / total, 4),
            "low": round(found / (total + spread), 4),
            "high": round(min(1.0, found / max(total - spread, found)), 4),
            "sample": found,
        }


def estimated_recall(similarities: Floats, threshold: float, banding: Banding) -> dict[str, Any]:
    """The `RecallEstimate` of these pairs."""
    estimate = RecallEstimate(threshold, banding)
    estimate.add(similarities)
    return estimate.result()


@dataclass(frozen=True)
class ComparedPairs:
    """Statistics of all compared pairs.

    Attributes:
        count: Number of pairs.
        below: Number of pairs below the threshold: candidates that are not duplicates.
        doubtful: Number of differing pairs near the threshold, where an estimate may be wrong.
        certain: Number of differing pairs so far above it that none is wrong.
        recall: Share of duplicates that was compared.
        near: See `near_threshold`, if similarities are exact.
    """

    count: int
    below: int
    doubtful: int
    certain: int
    recall: dict[str, Any]
    near: dict[str, Any]

    @classmethod
    def of(cls, parts: Iterable[Floats], threshold: float, banding: Banding) -> ComparedPairs:
        """Count the pairs of all parts, one part in memory at a time."""
        count = below = doubtful = certain = near_above = near_below = 0
        recall, near_recall = RecallEstimate(threshold, banding), RecallEstimate(threshold, banding)
        for part in parts:
            differing = part[part < 1.0]
            near = differing[np.abs(differing - threshold) < _NEAR]
            count += len(part)
            below += int(np.sum(part < threshold))
            doubtful += int(np.sum(np.abs(differing - threshold) < REACH))
            certain += int(np.sum(differing >= threshold + REACH))
            near_above += int(np.sum(near >= threshold))
            near_below += int(np.sum(near < threshold))
            recall.add(differing)
            near_recall.add(near)
        exact = share_with_interval(near_above, near_above)
        found = {"above": near_above, "below": near_below, "precision": exact, "recall": exact}
        return cls(count, below, doubtful, certain, recall.result(), {**found, "compared": near_recall.result()})


def recall_of_estimates(
    compared: dict[str, Any], far: int, near: int, taken: npt.NDArray[np.bool_], right: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """The recall if pairs were decided by estimates, some of which were too low.

    Args:
        compared: Share of all duplicates that was compared.
        far: Number of pairs with estimates so high that none is wrong.
        near: Number of other pairs near the threshold, of which a sample was checked.
        taken: Which pairs of the sample were classified as duplicates.
        right: Which pairs of the sample are duplicates.
    """
    if compared["value"] is None or not right.any():
        return compared
    share = share_with_interval(int((taken & right).sum()), int(right.sum()))
    doubtful = near * float(right.mean())
    return {
        name: round(compared[name] * (far + doubtful * share[name]) / (far + doubtful), 4)
        for name in ("value", "low", "high")
    } | {"sample": share["sample"]}


def near_threshold(
    estimates: npt.NDArray[np.float64], exact: npt.NDArray[np.float64], threshold: float, banding: Banding
) -> dict[str, Any]:
    """How well pairs close to the threshold, where mistakes are made, were classified.

    Args:
        estimates: The similarities that decided, for a sample of compared pairs.
        exact: Their true similarities.
        threshold: Minimum similarity of duplicates.
        banding: The bands that found them.

    Returns:
        `above` and `below` count the pairs of the sample by their true similarity; `precision` is the share of pairs
        classified as duplicates that are, `recall` the share of duplicates that were classified as such, and `compared`
        the share of duplicates this close that the bands found at all.
    """
    near = np.abs(exact - threshold) < _NEAR
    taken, right = estimates[near] >= threshold, exact[near] >= threshold
    return {
        "above": int(right.sum()),
        "below": int((~right).sum()),
        "precision": share_with_interval(int((taken & right).sum()), int(taken.sum())),
        "recall": share_with_interval(int((taken & right).sum()), int(right.sum())),
        "compared": estimated_recall(exact[near], threshold, banding),
    }
