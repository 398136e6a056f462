"""Re-evaluates thresholds from the scores of a run with `scores="all"`, without reading any text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gristmill import notebook
from gristmill.errors import UnknownNameError, UsageError, did_you_mean
from gristmill.ledger.ask.why import KEPT
from gristmill.ledger.record.earlier_names import recorded_name
from gristmill.ledger.record.plan_record import read_plan, score_filters
from gristmill.ledger.record.trail import QUARANTINED

if TYPE_CHECKING:
    import polars as pl

    from gristmill.ledger.ask.ledger import Ledger

UNDECIDED = "undecided"
"""The status of a document that now passes a stage which dropped it and that a later stage has never seen; and of a
duplicate if others are now dropped before the stage that compared it with them."""
DEDUPLICATION = "deduplication"


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of scores that are kept, both ends included; None is off."""

    lower: float | None = None
    upper: float | None = None
    invert: bool = False

    def keep(self, score: pl.Expr) -> pl.Expr:
        """Which scores pass, by the rule of filters: NaN passes no bound."""
        import polars as pl

        kept = pl.lit(True)
        if self.lower is not None:
            kept &= (score >= self.lower) & score.is_not_nan()
        if self.upper is not None:
            kept &= score <= self.upper  # to Polars, NaN is above all numbers
        return ~kept if self.invert else kept

    def broken(self, score: pl.Expr) -> pl.Expr:
        """The bound that each failing score broke."""
        import polars as pl

        if self.lower is None or self.upper is None or self.invert:
            return pl.lit(self.upper if self.lower is None else self.lower, pl.Float64)
        return pl.when(score < self.lower).then(pl.lit(self.lower, pl.Float64)).otherwise(self.upper)


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

    def kept(self) -> tuple[int, int]:
        """Number of documents kept by the run, and number that would be kept now."""
        before, now = ((self.frame[column] == KEPT).sum() for column in ("status_before", "status"))
        return int(before), int(now)

    def counts(self) -> dict[str, int]:
        """Number of documents by status."""
        return {str(key): int(n) for key, n in self.frame["status"].value_counts(sort=True).iter_rows()}

    @property
    def changed(self) -> pl.DataFrame:
        """The documents that have a different outcome."""
        return self.frame.filter(
            self.frame["status"].ne_missing(self.frame["status_before"])
            | self.frame["stage"].ne_missing(self.frame["stage_before"])
        )

    _repr_html_ = notebook.as_text

    def __str__(self) -> str:
        parts = ", ".join(f"{number} {status}" for status, number in self.counts().items())
        text = f"{len(self.frame)} documents: {parts}; {len(self.changed)} have a different outcome"
        undecided = self.frame.filter(self.frame["status"] == UNDECIDED)["stage"].value_counts(sort=True)
        if len(undecided):
            stages = ", ".join(f"{stage!r} ({number})" for stage, number in undecided.iter_rows())
            text += (
                f". For the undecided, only a run can decide at {stages}: either they were dropped earlier and would "
                "pass now, so the stage never saw them (a custom stage that handles each document on its own can set "
                "for_dropped = 'run'), or the stage compares them with documents that would be dropped now"
            )
        return text


def rethreshold(ledger: Ledger, thresholds: Mapping[str, Any]) -> Recut:
    """See `Ledger.rethreshold`."""
    bounds = _bounds(cuts(ledger), thresholds)
    return Recut(_decided(ledger, (read_plan(ledger.folder) or {}).get("stages") or (), bounds), bounds)


@dataclass(frozen=True, slots=True)
class Cut:
    """A filter of a run whose thresholds can be changed: its name, its bounds, and the parameters that set them.

    Attributes:
        stage: The name of its stage.
        filter: Its own name; the same unless a stage has several filters.
        bounds: The range that the run kept.
        parameters: The parameter names of the lower and the upper bound; None if no parameter sets it.
    """

    stage: str
    filter: str
    bounds: Bounds
    parameters: tuple[str | None, str | None] = (None, None)

    def settings(self) -> dict[str, float | None]:
        """The bounds of the run by the names of the parameters that set them."""
        sides = zip(self.parameters, (self.bounds.lower, self.bounds.upper), strict=True)
        return {name: bound for name, bound in sides if name is not None}


def cuts(ledger: Ledger) -> list[Cut]:
    """The filters of a run whose thresholds can be changed, in stage order.

    Raises:
        UsageError: The run did not record all scores.
    """
    plan = read_plan(ledger.folder) or {}
    settings = plan.get("settings") or {}
    if settings.get("scores") != "all":
        raise UsageError(
            f"{ledger.folder.path} was made with scores={settings.get('scores')!r}, so only the score that decided is "
            "recorded. Run once with scores='all' (--scores all) to try thresholds without reading any text."
        )
    return [
        Cut(one["stage"], one["filter"], Bounds(one["lower"], one["upper"], one["invert"]), one["parameters"])
        for one in score_filters(plan.get("stages") or ())
    ]


def _bounds(known: Sequence[Cut], thresholds: Mapping[str, Any]) -> dict[tuple[str, str], Bounds]:
    """The bounds of every filter that has some, updated with `thresholds`."""
    found = {
        (cut.stage, cut.filter): cut.bounds
        for cut in known
        if cut.bounds.lower is not None or cut.bounds.upper is not None
    }
    for name, asked in thresholds.items():
        cut = _named(known, name)
        key = (cut.stage, cut.filter)
        found[key] = _asked(name, asked, replace(cut, bounds=found.get(key, cut.bounds)))
    return found


def _named(known: Sequence[Cut], name: str) -> Cut:
    """The filter that a user means by `stage`, or `stage:filter`."""
    stages: dict[str, list[str]] = {}
    for cut in known:
        stages.setdefault(cut.stage, []).append(cut.filter)
    asked, _, score = name.partition(":")
    stage = recorded_name(asked, stages)
    if stage not in stages:
        hint = did_you_mean(stage, stages)
        raise UnknownNameError(
            f"The run has no score filter {stage!r}; it has {', '.join(stages) or 'none'}.{hint}", name=stage
        )
    choices = stages[stage]
    score = recorded_name(score, choices)
    if (not score and len(choices) > 1) or (score and score not in choices):
        raise UsageError(
            f"The stage {stage!r} has the filters {', '.join(choices)}; name one of them as "
            f"{stage + ':' + choices[0]!r}."
        )
    return next(cut for cut in known if cut.stage == stage and cut.filter == (score or choices[0]))


def _asked(name: str, asked: Any, cut: Cut) -> Bounds:
    """The bounds of a filter, updated with the requested ones."""
    before = cut.bounds
    if isinstance(asked, Mapping):
        sides = {"lower": "lower", "upper": "upper"}
        sides |= {own: side for own, side in zip(cut.parameters, ("lower", "upper"), strict=True) if own is not None}
        given: dict[str, Any] = {}
        for key, value in asked.items():
            own = [parameter for parameter in cut.parameters if parameter is not None] or ["lower", "upper"]
            if key not in sides:
                raise UsageError(
                    f"{name!r} has no bound {key!r}; pass {' or '.join(map(repr, own))}.{did_you_mean(key, own)}"
                )
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise UsageError(f"{name}.{key}={value!r}: must be a number, or null for no bound.")
            given[sides[key]] = value
        return replace(before, **given)
    if isinstance(asked, bool) or not isinstance(asked, int | float):
        raise UsageError(f"thresholds[{name!r}]={asked!r}: pass a number, or {{'lower': …, 'upper': …}}.")
    if (before.lower is None) == (before.upper is None):
        raise UsageError(
            f"thresholds[{name!r}]={asked!r}: the filter has "
            f"{'two bounds' if before.lower is not None else 'no bounds that are recorded'}; "
            "say which one with {'lower': …} or {'upper': …}."
        )
    if before.lower is not None:
        return Bounds(float(asked), None, before.invert)
    return Bounds(None, float(asked), before.invert)


def _decided(
    ledger: Ledger, stages: Sequence[Mapping[str, Any]], bounds: Mapping[tuple[str, str], Bounds]
) -> pl.DataFrame:
    """The frame of a `Recut`: every document passes through the stages until one of them ends it."""
    import polars as pl

    frame, columns = _documents(ledger, stages, bounds)
    alive, ended = pl.col("status").is_null(), pl.col("ended")

    def end(where: pl.Expr, status: pl.Expr, stage: str, score: pl.Expr, threshold: pl.Expr) -> pl.DataFrame:
        """The frame with the documents `where` dropped."""
        found = {"status": status, "stage": pl.lit(stage), "score": score, "threshold": threshold}
        return frame.with_columns(
            pl.when(where).then(value).otherwise(pl.col(name)).alias(name) for name, value in found.items()
        )

    nothing = pl.lit(None, pl.Float64)
    for number, stage in enumerate(stages):
        name = str(stage["name"])
        mine = {key: pl.col(column) for key, column in columns.items() if key[0] == name}
        for key, value in mine.items():
            fails = alive & value.is_not_null() & ~bounds[key].keep(value)
            frame = end(fails, pl.lit("dropped"), name, value, bounds[key].broken(value))
        # If the stage has scored nothing in a partition, the decisions of the run stand.
        recorded = [value.is_not_null().any().over("partition") for value in mine.values()]
        scored = pl.any_horizontal(pl.lit(False), *recorded)
        complete = pl.all_horizontal(
            pl.lit(True), *(value.is_not_null() | ~there for value, there in zip(mine.values(), recorded, strict=True))
        )
        seen = pl.when(scored).then(complete).otherwise(ended >= number)
        if stage.get("role") == DEDUPLICATION:
            # A duplicate may now be the only one left of its group.
            lost = (pl.col("status").is_not_null() & (ended >= number)).any()
            frame = end(alive & (ended == number) & lost, pl.lit(UNDECIDED), name, nothing, nothing)
        # It failed an old bound of a scoring stage and passes the new one; quarantined documents stay quarantined.
        ends_here = alive & (ended == number) & (~scored | (pl.col("status_before") == QUARANTINED))
        frame = end(ends_here, pl.col("status_before"), name, pl.col("score_before"), pl.col("threshold_before"))
        if not stage.get("never_drops"):
            frame = end(alive & ~seen & (ended < number), pl.lit(UNDECIDED), name, nothing, nothing)
    return frame.select(
        "partition",
        "row",
        pl.col("status").fill_null(KEPT),
        "stage",
        pl.col("score", "threshold").fill_nan(None),
        "status_before",
        "stage_before",
    )


def _documents(
    ledger: Ledger, stages: Sequence[Mapping[str, Any]], bounds: Mapping[tuple[str, str], Bounds]
) -> tuple[pl.DataFrame, dict[tuple[str, str], str]]:
    """Every document with its last decision, the number of the stage it reached, and the scores with bounds."""
    import polars as pl

    order = {str(stage["name"]): number for number, stage in enumerate(stages)}
    ended = pl.col("stage").replace_strict(order, default=0, return_dtype=pl.Int64)
    decided = ("status", "stage", "score", "threshold")
    documents = ledger.documents()
    frame = documents.select(
        "partition",
        "row",
        *(pl.col(name).alias(f"{name}_before") for name in decided),
        pl.when(pl.col("stage").is_null()).then(len(stages)).otherwise(ended).alias("ended"),
        *(pl.lit(None, documents.schema[name]).alias(name) for name in decided),
    )
    columns: dict[tuple[str, str], str] = {}
    for (stage, score), part in ledger.scores().partition_by("stage", "score", as_dict=True).items():
        if (stage, score) in bounds:
            columns[stage, score] = column = f"value_{len(columns)}"
            values = part.select("partition", "row", pl.col("value").alias(column))
            values = values.unique(["partition", "row"], keep="last", maintain_order=True)
            frame = frame.join(values, on=["partition", "row"], how="left", maintain_order="left")
    return frame, {key: columns[key] for key in bounds if key in columns}
