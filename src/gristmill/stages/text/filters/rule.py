"""Built-in filters: the statistics a filter needs, a rule that turns columns of them into scores, and bounds."""

from __future__ import annotations

from collections.abc import Iterable
from numbers import Real
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, require_module
from gristmill.kernels.text_column import Mask, text_column
from gristmill.stages.text.filters.doc_filter import DocumentFilter, ScoreKind
from gristmill.stages.text.filters.statistics import LIBRARIES, Scores, Statistic, TextStatistics


class ColumnFilter(DocumentFilter):
    """A filter that scores whole columns; adjacent ones share one pass over the text.

    A subclass names a statistic, and a denominator if the score is a share, or overrides `needs` and `score_column`. It
    sets inclusive bounds; a bound of None is off. A missing text counts as empty, and if a rule has nothing to measure
    (no word, no line), the score is the one that fails, unless the class says otherwise.

    Args:
        name: Name of the filter in reports and the ledger; defaults to the class name.
        lower: Minimum score to keep.
        upper: Maximum score to keep.

    Attributes:
        statistic: The statistic that is counted.
        denominator: The statistic to divide by; None uses the count itself.
        score_kind: Type of the scores: `count`, `share` or `number`. Columns of counts hold whole numbers.
        empty_score: The score if there is nothing to divide by, or nothing to count.
        lower_reason: Why a document below `lower` is dropped.
        upper_reason: Why a document above `upper` is dropped.
    """

    statistic: Statistic | None = None
    denominator: Statistic | None = None
    score_kind: ScoreKind = "number"
    empty_score: float = 1.0
    lower_reason: str = "score_too_low"
    upper_reason: str = "score_too_high"

    def __init__(self, name: str = "", *, lower: float | None = None, upper: float | None = None) -> None:
        for side, bound in (("lower", lower), ("upper", upper)):
            if bound is None or bound == np.inf:
                continue
            if not isinstance(bound, Real) or bound != bound:
                raise self._refused(side, bound, "must be a number.")
            if self.score_kind == "share" and not 0 <= bound <= 1:
                check_shares(self, **{getattr(self, f"{side}_parameter") or side: bound})
            if self.score_kind == "count" and bound < 0:
                raise self._refused(side, bound, "the score is a count: must be 0 or more.")
        if lower is not None and upper is not None and lower > upper:
            least, most = self.lower_parameter or "lower", self.upper_parameter or "upper"
            raise UsageError(
                f"{type(self).__name__} would keep scores from {lower} up to {upper}, which is an empty range. Set "
                f"both {least} and {most}; an omitted one has its default."
            )
        self._name = name or type(self).__name__
        self.lower = lower
        self.upper = upper

    def _refused(self, side: str, bound: Any, why: str) -> UsageError:
        parameter = (self.lower_parameter if side == "lower" else self.upper_parameter) or side
        return UsageError(f"{type(self).__name__}({parameter}={bound!r}): {why}", parameter=parameter, value=bound)

    def check_environment(self) -> None:
        """Reject word splitting by a library that is not installed."""
        for statistic in self.needs():
            if statistic.splitter in LIBRARIES:
                require_module(*LIBRARIES[statistic.splitter])

    def warm_up(self) -> None:
        """Called in the driver before workers start: load kernels that are not covered by a statistic in `needs`."""

    def needs(self) -> Iterable[Statistic]:
        """The statistics that `score_column` reads."""
        return list(filter(None, (self.statistic, self.denominator)))

    def score_column(self, statistics: TextStatistics) -> Scores:
        """The score of every document, as float64: the declared statistic, or its share of the denominator."""
        counts = list(map(statistics.__getitem__, self.needs()))
        if self.statistic is None:
            raise NotImplementedError(f"{type(self).__name__} does not define how it scores")
        if self.denominator is None:
            return counts[0].astype(np.float64)
        scores = statistics.ratio(counts[0], counts[1], nothing=self.empty_score)
        # A text with fewer words than an n-gram has no count.
        scores[counts[0] < 0] = self.empty_score
        return scores

    def keep(self, scores: Scores) -> Mask:
        """Which scores to keep."""
        kept = np.ones(len(scores), dtype=np.bool_)
        if self.lower is not None:
            kept &= scores >= self.lower
        if self.upper is not None:
            kept &= scores <= self.upper
        return kept

    def reason(self, score: float) -> str:
        """Why a document with this failing score is dropped."""
        return self.lower_reason if self.lower is not None and not score >= self.lower else self.upper_reason

    def threshold(self, score: float) -> float | None:
        """The bound that a failing score violates; None if no fixed bound decides."""
        return self.lower if self.lower is not None and not score >= self.lower else self.upper

    def stored_scores(self, scores: Scores) -> pa.Array:
        """The values of a `score_field` for these scores, which `score_column` has just returned."""
        if self.score_kind == "count":  # a document that was not scored has no count
            return pa.array(scores, from_pandas=True).cast(pa.int64())
        return pa.array(scores)

    def added_fields(self) -> list[str]:
        """The additional columns of a `score_field`."""
        return []

    def added_columns(self, scores: Scores) -> dict[str, pa.Array]:
        """The values of the `added_fields` for these scores, which `score_column` has just returned."""
        return {}

    def columns(self, score_field: str, scores: Scores) -> dict[str, pa.Array]:
        """All columns for these scores: the `score_field`, and additional ones with other names."""
        stored = {score_field: self.stored_scores(scores)}
        return stored | self.added_columns(scores) | stored

    def reasons(self) -> tuple[str, ...]:
        """Every reason this filter can return."""
        bounds = ((self.lower, self.lower_reason), (self.upper, self.upper_reason))
        return tuple(reason for bound, reason in bounds if bound is not None)

    def score_document(self, text: str | None) -> Any:
        """The score of one text, by the same rule and kernel as for a column."""
        needs = list(self.needs())
        statistics = TextStatistics(text_column([text]), needs)
        statistics.require(needs, statistics.alive)
        score = float(self.score_column(statistics)[0])
        return int(score) if self.score_kind == "count" else score

    def keep_document(self, score: Any) -> bool:
        """Whether to keep a document with this score."""
        return bool(self.keep(np.array([score], dtype=np.float64))[0])


def check_shares(owner: object, **values: float | None) -> None:
    """Reject share parameters outside of 0 to 1; None and infinity turn a rule off.

    Raises:
        UsageError: Names the parameter, its value and what is valid.
    """
    for parameter, value in values.items():
        if value is not None and not 0 <= value <= 1 and value != np.inf:
            percent = f" ({value:g} % is {value / 100:g})" if 2 <= value <= 100 else ""
            raise UsageError(
                f"{type(owner).__name__}({parameter}={value!r}): this is a share: must be a number from 0 to "
                f"1{percent}.",
                parameter=parameter,
                value=value,
            )
