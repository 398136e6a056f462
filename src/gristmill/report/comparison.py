"""Collects everything that the comparison page of two runs shows: both records, and the documents that differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.record.layout import RunFolder
from gristmill.report.contents import UNREADABLE, WHOLE, ReportContents

if TYPE_CHECKING:
    import polars as pl

_EXTENT = WHOLE._replace(text_partitions=0, lengths=0, examples=0, pairs=0)
_CHANGES = {
    "entered": "kept only in B",
    "left": "kept only in A",
    "another reason": "dropped for another reason",
    "new": "only in the input of B",
    "gone": "only in the input of A",
}
_MOVES = 40
_EXAMPLES = 100


def compare_runs(before: RunFolder, after: RunFolder) -> dict[str, Any]:
    """The contents of the page for two runs."""
    runs = [ReportContents(folder, _EXTENT).collect() for folder in (before, after)]
    missing = [f"{side}: {one}" for side, run in zip("AB", runs, strict=True) for one in run["missing"]]
    try:
        documents = _documents(before, after)
    except UNREADABLE as error:
        documents = {"error": f"The documents of the two runs cannot be compared: {error}"}
    return {
        "format": 1,
        "kind": "comparison",
        "made": runs[1]["made"],
        "made_by": runs[1]["made_by"],
        "runs": [{name: run[name] for name in ("run", "stages", "history")} for run in runs],
        "documents": documents,
        "thresholds": _thresholds([run["scores"]["filters"] for run in runs]),
        "missing": missing,
    }


def _documents(before: RunFolder, after: RunFolder) -> dict[str, Any]:
    """The number of documents that the runs treated differently, and how."""
    import polars as pl

    found = Ledger(before).diff(Ledger(after))
    counts = found.counts()
    frame = found.frame.with_columns(_outcome("before").alias("in_a"), _outcome("after").alias("in_b"))
    moves = frame.group_by("in_a", "in_b").len().sort(["len", "in_a", "in_b"], descending=[True, False, False])
    named = pl.coalesce("id", pl.format("{}#{}", "partition", "row"))
    examples = frame.select(named.alias("id"), pl.col("in_a").alias("before"), pl.col("in_b").alias("after"))
    return {
        "same": found.same,
        "matched_by": found.matched_by,
        "changes": [(words, counts.get(change, 0)) for change, words in _CHANGES.items()],
        "moves": [{"before": a, "after": b, "number": number} for a, b, number in moves.head(_MOVES).iter_rows()],
        "examples": examples.head(_EXAMPLES).to_dicts(),
    }


def _outcome(when: str) -> pl.Expr:
    import polars as pl

    status, stage, reason = (pl.col(f"{name}_{when}") for name in ("status", "stage", "reason"))
    return (
        pl.when(status.is_null())
        .then(pl.lit("not in the input"))
        .when(stage.is_null())
        .then(status)
        .otherwise(pl.format("{} ({})", reason, stage))
    )


def _thresholds(runs: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The filters of both runs with their bounds and the middle of the recorded scores."""
    sides = [{(one["stage"], one["filter"]): one for one in filters} for filters in runs]
    return [
        {
            "filter": key[1] if key[0] == key[1] else f"{key[1]} ({key[0]})",
            "bounds": [None if key not in side else (side[key]["lower"], side[key]["upper"]) for side in sides],
            "medians": [_median(side.get(key)) for side in sides],
        }
        for key in dict.fromkeys([*sides[1], *sides[0]])
    ]


def _median(scores: Mapping[str, Any] | None) -> float | None:
    """The approximate median score, from the histogram."""
    if scores is None or not scores["grid"] or not scores["number"]:
        return None
    counts = np.cumsum(np.add(scores["kept"], scores["dropped"]))
    at = int(np.searchsorted(counts, counts[-1] / 2))
    grid: list[float] = scores["grid"]
    return grid[min(max(at - 1, 0), len(grid) - 1)]
