"""How well a fuzzy deduplication has done, estimated from what it has compared."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.stages.deduplication.fuzzy.banding import Banding

SAMPLE = 2000
_Z = 1.96
_NEAR = 0.05


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


def estimated_precision(similarities: npt.NDArray[np.float64], threshold: float, *, seed: int) -> dict[str, Any]:
    """Which share of the removed documents really is that similar to its survivor, from a random sample."""
    sample = similarities
    if len(sample) > SAMPLE:
        sample = np.random.default_rng(seed).choice(similarities, SAMPLE, replace=False)
    return share_with_interval(int(np.sum(sample >= threshold)), len(sample))


def estimated_recall(similarities: npt.NDArray[np.float64], threshold: float, banding: Banding) -> dict[str, Any]:
    """Which share of all pairs above the threshold was compared at all.

    A pair that was found stands for 1/p pairs that exist, where p is the probability with which bands find a pair of
    its similarity (Horvitz and Thompson 1952).

    Args:
        similarities: Of the compared pairs that differ, exact.
        threshold: The least similarity of duplicates.
        banding: The bands that found them.
    """
    found = similarities[similarities >= threshold]
    if not len(found):
        return {"value": None, "low": None, "high": None, "sample": 0}
    chance = np.maximum(1.0 - (1.0 - found**banding.rows) ** banding.bands, 1e-9)
    total = float(np.sum(1 / chance))
    spread = _Z * math.sqrt(float(np.sum((1 - chance) / chance**2)))
    return {
        "value": round(len(found) / total, 4),
        "low": round(len(found) / (total + spread), 4),
        "high": round(min(1.0, len(found) / max(total - spread, len(found))), 4),
        "sample": len(found),
    }


def recall_of_estimates(
    compared: dict[str, Any], far: int, near: int, taken: npt.NDArray[np.bool_], right: npt.NDArray[np.bool_]
) -> dict[str, Any]:
    """The recall when pairs were decided by estimates, some of which were too low.

    Args:
        compared: Which share of all duplicates was compared.
        far: How many pairs have estimates so high that none is wrong.
        near: How many others lie near the threshold, of which a sample was checked.
        taken: Of the sample, which pairs were taken for duplicates.
        right: Of the sample, which are duplicates.
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
    """How well pairs close to the threshold, where mistakes are made, were told apart.

    Args:
        estimates: By which pairs were decided, of a sample of pairs that were compared.
        exact: Their true similarities.
        threshold: The least similarity of duplicates.
        banding: The bands that found them.

    Returns:
        `above` and `below` count the pairs of the sample by their true similarity; `precision` is the share of those
        taken for duplicates that are, `recall` the share of duplicates that were taken for it, and `compared` the
        share of duplicates this close that bands have found at all.
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
