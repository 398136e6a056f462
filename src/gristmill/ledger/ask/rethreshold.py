"""Decides again with other thresholds, from the scores that a run with `scores="all"` recorded; no text is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import UnknownNameError, UsageError, did_you_mean
from gristmill.ledger.ask.why import KEPT
from gristmill.ledger.record.plan_record import read_plan

if TYPE_CHECKING:
    import polars as pl

    from gristmill.ledger.ask.ledger import Ledger

UNDECIDED = "undecided"
"""The status of a document that now passes a stage which dropped it, and that a later stage has never seen."""

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The scores that are kept, both ends included; None is off."""

    lower: float | None = None
    upper: float | None = None
    invert: bool = False

    def keep(self, scores: Floats) -> Mask:
        """Which scores pass, as filters decide it: one that is not a number passes no bound."""
        kept = np.ones(len(scores), bool)
        if self.lower is not None:
            kept &= scores >= self.lower
        if self.upper is not None:
            kept &= scores <= self.upper
        return ~kept if self.invert else kept

    def broken(self, score: Floats) -> Floats:
        """The bound that each failing score broke."""
        none = float("nan")
        if self.lower is None or self.upper is None or self.invert:
            bound = self.upper if self.lower is None else self.lower
            return np.full(len(score), none if bound is None else bound)
        return np.where(score < self.lower, self.lower, self.upper)


@dataclass(slots=True)
class Recut:
    """What other thresholds would decide.

    Attributes:
        frame: One row per document: `partition`, `row`, `status` (`kept`, `dropped`, the outcome it had for another
            reason, or `undecided`), and `stage`, `score` and `threshold` of what ended it; `status_before` and
            `stage_before` as the run decided.
        bounds: The bounds that were used, by stage and score.
    """

    frame: pl.DataFrame
    bounds: dict[tuple[str, str], Bounds]

    def counts(self) -> dict[str, int]:
        """How many documents have which status."""
        return {str(key): int(n) for key, n in self.frame["status"].value_counts(sort=True).iter_rows()}

    @property
    def changed(self) -> pl.DataFrame:
        """The documents that fare differently."""
        return self.frame.filter(
            self.frame["status"].ne_missing(self.frame["status_before"])
            | self.frame["stage"].ne_missing(self.frame["stage_before"])
        )

    def __str__(self) -> str:
        parts = ", ".join(f"{number} {status}" for status, number in self.counts().items())
        text = f"{len(self.frame)} documents: {parts}; {len(self.changed)} fare differently"
        undecided = self.frame.filter(self.frame["status"] == UNDECIDED)["stage"].value_counts(sort=True)
        if len(undecided):
            stages = ", ".join(f"{stage!r} ({number})" for stage, number in undecided.iter_rows())
            text += (
                f". Undecided are documents that were dropped before {stages} and would pass now: that stage has not "
                "seen them, so only a run can tell; a stage that takes each document by itself says so with "
                "for_dropped = 'run'"
            )
        return text


def rethreshold(ledger: Ledger, thresholds: Mapping[str, Any]) -> Recut:
    """See `Ledger.rethreshold`."""
    import polars as pl

    plan = read_plan(ledger.folder) or {}
    settings = plan.get("settings") or {}
    if settings.get("scores") != "all":
        raise UsageError(
            f"{ledger.folder.path} was made with scores={settings.get('scores')!r}, so only the score that decided is "
            "recorded. Run once with scores='all' (--scores all) to decide again without reading a text."
        )
    bounds = _bounds(plan, thresholds)
    stages: list[Mapping[str, Any]] = list(plan.get("stages") or ())
    frames = []
    for name, arrays in _partitions(ledger):
        frames.append(_decide(name, arrays, stages, bounds))
    schema = {
        "partition": pl.String, "row": pl.Int64, "status": pl.String, "stage": pl.String, "score": pl.Float64,
        "threshold": pl.Float64, "status_before": pl.String, "stage_before": pl.String,
    }  # fmt: skip
    return Recut(pl.concat([pl.DataFrame(schema=schema), *frames]), bounds)


def _bounds(plan: Mapping[str, Any], thresholds: Mapping[str, Any]) -> dict[tuple[str, str], Bounds]:
    """The bounds of every score filter of the plan, with those of `thresholds` in their place."""
    known: dict[tuple[str, str], Bounds] = {}
    names: dict[str, list[str]] = {}
    inverted: dict[tuple[str, str], bool] = {}
    for stage in plan.get("stages") or ():
        if stage.get("role") != "score_filter":
            continue
        parameters = stage["parameters"]
        for one, invert in zip(parameters["filter_obj"], parameters["invert"], strict=True):
            key = (str(stage["name"]), str(one.get("name", stage["name"])))
            names.setdefault(key[0], []).append(key[1])
            inverted[key] = bool(invert)
            if "lower" in one:  # a filter written in Python decides by its own code
                known[key] = Bounds(one["lower"], one.get("upper"), bool(invert))
    for name, asked in thresholds.items():
        stage_name, _, score = name.partition(":")
        if stage_name not in names:
            raise UnknownNameError(
                f"The run has no score filter {stage_name!r}; it has {', '.join(names) or 'none'}."
                f"{did_you_mean(stage_name, names)}",
                name=stage_name,
            )
        choices = names[stage_name]
        if (not score and len(choices) > 1) or (score and score not in choices):
            raise UsageError(
                f"The stage {stage_name!r} has the filters {', '.join(choices)}; name one of them as "
                f"{stage_name + ':' + choices[0]!r}."
            )
        key = (stage_name, score or choices[0])
        known[key] = _asked(name, asked, known.get(key, Bounds(invert=inverted[key])))
    return known


def _asked(name: str, asked: Any, before: Bounds) -> Bounds:
    if isinstance(asked, Mapping):
        unknown = sorted(set(asked) - {"lower", "upper"})
        if unknown:
            raise UsageError(f"thresholds[{name!r}] has {unknown[0]!r}; give 'lower', 'upper' or both.")
        return Bounds(asked.get("lower", before.lower), asked.get("upper", before.upper), before.invert)
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        raise UsageError(f"thresholds[{name!r}]={asked!r}: give a number, or {{'lower': …, 'upper': …}}.")
    if (before.lower is None) == (before.upper is None):
        raise UsageError(
            f"thresholds[{name!r}]={asked!r}: the filter has "
            f"{'two bounds' if before.lower is not None else 'no bounds that are recorded'}; "
            "say which one with {'lower': …} or {'upper': …}."
        )
    if before.lower is not None:
        return Bounds(float(asked), None, before.invert)
    return Bounds(None, float(asked), before.invert)


@dataclass(slots=True)
class _Arrays:
    """One partition: the last verdict on every row, and its scores by stage and name."""

    rows: npt.NDArray[np.int64]
    status: list[str]
    stage: list[str | None]
    score: Floats
    threshold: Floats
    scores: dict[tuple[str, str], tuple[Floats, Mask]]


def _partitions(ledger: Ledger) -> Iterator[tuple[str, _Arrays]]:
    import polars as pl

    decisions = ledger.frame().filter(pl.col("row").is_not_null()).partition_by("partition", as_dict=True)
    scores = ledger.scores().filter(pl.col("row").is_not_null()).partition_by("partition", as_dict=True)
    for name, entry in ledger.entries().items():
        size = entry.row_numbers
        arrays = _Arrays(
            np.arange(size), [KEPT] * size, [None] * size, np.full(size, np.nan), np.full(size, np.nan), {}
        )
        mine = decisions.get((name,))
        if mine is not None:
            for row, stage, outcome, score, bound in mine.select(
                "row", "stage", "outcome", "score", "threshold"
            ).iter_rows():
                arrays.status[row], arrays.stage[row] = outcome, stage
                arrays.score[row] = np.nan if score is None else score
                arrays.threshold[row] = np.nan if bound is None else bound
        found = scores.get((name,))
        if found is not None:
            for (stage, score_name), part in found.partition_by(["stage", "score"], as_dict=True).items():
                values, there = np.full(size, np.nan), np.zeros(size, bool)
                at = part["row"].to_numpy()
                values[at], there[at] = part["value"].to_numpy(), True
                arrays.scores[str(stage), str(score_name)] = (values, there)
        yield name, arrays


def _decide(
    name: str,
    arrays: _Arrays,
    stages: Sequence[Mapping[str, Any]],
    bounds: Mapping[tuple[str, str], Bounds],
) -> pl.DataFrame:
    import polars as pl

    size = len(arrays.rows)
    order = {str(stage["name"]): number for number, stage in enumerate(stages)}
    ended = np.array([len(stages) if stage is None else order.get(stage, 0) for stage in arrays.stage], np.int64)
    status = np.array([KEPT] * size, object)
    where = np.array([None] * size, object)
    score, threshold = np.full(size, np.nan), np.full(size, np.nan)
    alive = np.ones(size, bool)
    before = np.array(arrays.status, object)
    for number, stage in enumerate(stages):
        stage_name = str(stage["name"])
        mine = [key for key in bounds if key[0] == stage_name and key in arrays.scores]
        if mine:
            for key in mine:
                values, there = arrays.scores[key]
                fails = alive & there & ~bounds[key].keep(values)
                status[fails], where[fails] = "dropped", stage_name
                score[fails] = values[fails]
                threshold[fails] = bounds[key].broken(values[fails])
                alive &= ~fails
            seen = np.logical_and.reduce([arrays.scores[key][1] for key in mine])
        else:
            seen = ended >= number
        ends_here = alive & (ended == number)
        if mine:
            # It failed an old bound of this stage and passes the new one; what was quarantined stays so.
            ends_here &= before == "quarantined"
        status[ends_here], where[ends_here] = before[ends_here], stage_name
        score[ends_here], threshold[ends_here] = arrays.score[ends_here], arrays.threshold[ends_here]
        alive &= ~ends_here
        if not stage.get("never_drops"):
            unseen = alive & ~seen & (ended < number)
            status[unseen], where[unseen] = UNDECIDED, stage_name
            alive &= ~unseen
    return pl.DataFrame(
        {
            "partition": pl.Series([name] * size, dtype=pl.String),
            "row": arrays.rows,
            "status": pl.Series(status.tolist(), dtype=pl.String),
            "stage": pl.Series(where.tolist(), dtype=pl.String),
            "score": pl.Series(score).fill_nan(None),
            "threshold": pl.Series(threshold).fill_nan(None),
            "status_before": pl.Series(before.tolist(), dtype=pl.String),
            "stage_before": pl.Series(arrays.stage, dtype=pl.String),
        }
    )
