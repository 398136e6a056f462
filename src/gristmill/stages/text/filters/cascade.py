"""Runs many filters as one: shared statistics, with expensive ones computed only for remaining documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.text_column import Mask, TextColumn, text_column
from gristmill.ledger.record.trail import DROPPED, Decisions
from gristmill.stages.base import FusedStage, ProcessingStage, Spec
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, Statistic, TextStatistics
from gristmill.tasks.document import DocumentBatch

_SAMPLE = "one two three four five six seven eight nine ten eleven twelve. " * 2


def drop_reason(name: str, *, inverted: bool, failure: str | None = None) -> str:
    """The reason for a filter's drop; all filter reasons in the ledger are built here.

    An inverted filter drops what passes, so none of its failure reasons applies: the reason is `inverted_` followed by
    its name.

    Args:
        name: The filter's name.
        inverted: Whether the filter keeps what it would drop.
        failure: The filter's name for this failure, such as `too_few_words`; None uses the filter's name.
    """
    return f"inverted_{name}" if inverted else failure or name


@dataclass
class CascadeResult:
    """The decision of a cascade for every document of a column.

    Attributes:
        kept: Which documents passed every filter.
        failed_at: Position of the first filter that a document failed; -1 if none.
        score: The score at that filter; NaN for kept documents.
        dropped: Number of documents that each filter was the first to drop.
        scores: By position of the filter, the requested scores; NaN for documents that it never saw.
    """

    kept: Mask
    failed_at: npt.NDArray[np.int32]
    score: Scores
    dropped: list[int]
    scores: dict[int, Scores] = field(default_factory=dict)


class FilterCascade:
    """Runs column filters in order over a column, with the same result as running them one after another.

    Args:
        filters: The filters, in order.
        invert: Per filter, whether it keeps what it would drop; None for none.

    Example:
        >>> from gristmill.stages.text.filters.heuristic import WordCountFilter, NumbersFilter
        >>> cascade = FilterCascade([NumbersFilter(), WordCountFilter(min_words=2)])
        >>> result = cascade.evaluate(pa.array(["12345", "two words", None]))
        >>> result.failed_at.tolist(), [cascade.reason(result, row) for row in range(3)]
        ([0, -1, 0], ['too_many_digits', None, 'too_many_digits'])
    """

    def __init__(self, filters: Sequence[ColumnFilter], *, invert: Sequence[bool] | None = None) -> None:
        self.filters = tuple(filters)
        self.invert = tuple(invert) if invert is not None else (False,) * len(self.filters)
        self._needs: list[tuple[Statistic, ...]] = list(map(tuple, map(methodcaller("needs"), self.filters)))

    def warm_up(self) -> None:
        """Load or compile the kernels that the filters need, without scoring anything."""
        needs = list(chain.from_iterable(self._needs))
        if needs:
            statistics = TextStatistics(text_column([_SAMPLE, _SAMPLE]), needs)
            statistics.require(needs, statistics.alive)
        for one in self.filters:
            one.warm_up()

    def evaluate(
        self,
        column: pa.Array | pa.ChunkedArray | TextColumn,
        *,
        alive: Mask | None = None,
        keep_scores: bool | Sequence[int] = False,
        every_score: bool = False,
    ) -> CascadeResult:
        """Decide on every document.

        Args:
            column: The texts; null counts as empty.
            alive: Documents to consider; others are neither kept nor failed. None means all.
            keep_scores: Whether to keep the scores of every filter, or of the filters at these positions.
            every_score: Score every document with every filter, including documents that an earlier filter dropped.
        """
        texts = column if isinstance(column, TextColumn) else text_column(column)
        start = np.ones(len(texts), dtype=np.bool_) if alive is None else np.asarray(alive, dtype=np.bool_).copy()
        living = start.copy()
        wanted = range(len(self.filters)) if keep_scores is True or every_score else (keep_scores or ())
        result = CascadeResult(
            kept=living,
            failed_at=np.full(len(texts), -1, dtype=np.int32),
            score=np.full(len(texts), np.nan),
            dropped=[0] * len(self.filters),
        )
        statistics = TextStatistics(texts, chain.from_iterable(self._needs))
        for position, one in enumerate(self.filters):
            asked = start if every_score else living
            if not every_score and not living.any():
                if position in wanted:
                    result.scores[position] = np.full(len(texts), np.nan)
                continue
            statistics.require(self._needs[position], asked)
            scores = one.score_column(statistics)
            passed = one.keep(scores)
            if self.invert[position]:
                passed = ~passed
            if position in wanted:
                result.scores[position] = np.where(asked, scores, np.nan)
            rows = np.flatnonzero(living & ~passed)
            if len(rows):
                result.failed_at[rows] = position
                result.score[rows] = scores[rows]
                result.dropped[position] = len(rows)
                living &= passed
        return result

    def reason(self, result: CascadeResult, row: int) -> str | None:
        """Why a document was dropped; None if it was kept."""
        position = int(result.failed_at[row])
        if position < 0:
            return None
        one = self.filters[position]
        return drop_reason(one.name, inverted=self.invert[position], failure=one.reason(float(result.score[row])))


class CascadeStep(NamedTuple):
    """One filter of a pass over a batch.

    Attributes:
        filter: The filter.
        stage: The stage that its drops and scores are recorded under.
        invert: Whether it keeps what it would drop.
        score_field: Column for its scores; None keeps none.
        prefix: Prefix of its reasons.
    """

    filter: ColumnFilter
    stage: str
    invert: bool = False
    score_field: str | None = None
    prefix: str = ""


def apply_cascade(batch: DocumentBatch, texts: pa.Array, steps: Sequence[CascadeStep]) -> DocumentBatch:
    """Apply the filters, record each drop under the name of its stage, and keep the requested scores."""
    cascade = FilterCascade([step.filter for step in steps], invert=[step.invert for step in steps])
    fields = [(position, step.score_field) for position, step in enumerate(steps) if step.score_field is not None]
    everything = batch.wants_all_scores
    result = cascade.evaluate(texts, keep_scores=[position for position, _ in fields], every_score=everything)
    if everything:
        for position, scores in result.scores.items():
            batch.note_scores(steps[position].filter.name, scores, stage=steps[position].stage)
    decisions: list[Decisions] = []
    for position, step in enumerate(steps):
        if not result.dropped[position]:
            continue
        rows = np.flatnonzero(result.failed_at == position)
        one, found = step.filter, result.score[rows]
        alike: dict[tuple[str, float | None], list[int]] = {}
        for place, score in enumerate(found.tolist()):
            reason = step.prefix + drop_reason(one.name, inverted=step.invert, failure=one.reason(score))
            # What an inverted filter drops is within its bounds: the lower bound represents both.
            bound = one.threshold(score) if not step.invert else one.upper if one.lower is None else one.lower
            alike.setdefault((reason, None if bound is None else float(bound)), []).append(place)
        decisions += [
            Decisions(step.stage, DROPPED, reason, batch.rows[rows[at]], found[at], bound)
            for (reason, bound), at in alike.items()
        ]
    kept = batch.drop_decided(~result.kept, decisions)
    survivors = np.arange(batch.num_items) if batch.keeps_dropped else np.flatnonzero(result.kept)
    for position, score_field in fields:
        for name, values in steps[position].filter.columns(score_field, result.scores[position]).items():
            kept = kept.with_column(name, values.take(pa.array(survivors)))
    return kept


def shares_pass(first: ProcessingStage[Any, Any], stage: ProcessingStage[Any, Any], *text_fields: str) -> bool:
    """Whether two stages on these columns can run as one: same column, same workers, no time limit."""
    return (
        len(set(text_fields)) == 1
        and stage.time_limit_s is None
        and stage.resources == first.resources
        and stage.batch_size == first.batch_size
        and stage.runtime_env == first.runtime_env
        and stage.requested_workers() == first.requested_workers()
    )


class FusedFilters(FusedStage):
    """Adjacent filters on one column as a single pass; every document passes them in order.

    Args:
        members: The stages whose work it does.
        steps: Their filters.
        text_field: Column that holds the text.
        name: The stage's name.
    """

    for_dropped = "score"

    def __init__(
        self, members: Sequence[ProcessingStage[Any, Any]], steps: Sequence[CascadeStep], text_field: str, *, name: str
    ) -> None:
        first = members[0]
        self.members = list(members)
        self.steps = list(steps)
        self.text_field = text_field
        self.name = name
        self.resources = first.resources
        self.batch_size = first.batch_size
        self.runtime_env = first.runtime_env
        self._requested_workers = first.requested_workers()

    def inputs(self) -> Spec:
        return ["data"], [self.text_field]

    def outputs(self) -> Spec:
        return ["data"], list(dict.fromkeys(chain.from_iterable(member.outputs()[1] for member in self.members)))

    def warm_up(self) -> None:
        FilterCascade([step.filter for step in self.steps]).warm_up()

    def process(self, task: DocumentBatch) -> DocumentBatch:
        return apply_cascade(task, task.text(self.text_field), self.steps)
