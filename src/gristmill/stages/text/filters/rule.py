"""Built-in filters: the statistics a filter needs, a rule that turns columns of them into scores, and bounds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError
from gristmill.kernels.text_column import Mask, text_column
from gristmill.stages.text.filters.doc_filter import DocumentFilter
from gristmill.stages.text.filters.statistics import Scores, Statistic, TextStatistics


class ColumnFilter(DocumentFilter):
    """A filter that scores whole columns; adjacent ones share one pass over the text.

    A subclass names its statistics, computes scores from them, and sets inclusive bounds. A bound of None is off. A
    text that is missing counts as an empty one, and where a rule has nothing to measure (no word, no line), the score
    is the one that fails, unless the class says otherwise.

    Attributes:
        lower: The least score that is kept.
        upper: The greatest score that is kept.
        lower_reason: Why a document below `lower` goes.
        upper_reason: Why a document above `upper` goes.
    """

    lower_reason: ClassVar[str] = "score_too_low"
    upper_reason: ClassVar[str] = "score_too_high"

    def __init__(self, name: str, *, lower: float | None = None, upper: float | None = None) -> None:
        super().__init__()
        if lower is not None and upper is not None and lower > upper:
            raise UsageError(
                f"{type(self).__name__} would keep scores from {lower} up to {upper}, so nothing at all. Set both "
                "bounds; one that is not given has its default."
            )
        self._name = name
        self.lower = lower
        self.upper = upper

    def needs(self) -> Iterable[Statistic]:
        """The statistics that `score_column` reads."""
        return ()

    def score_column(self, statistics: TextStatistics) -> Scores:
        """The score of every document, as float64."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it scores")

    def keep(self, scores: Scores) -> Mask:
        """Which scores stay."""
        kept = np.ones(len(scores), dtype=np.bool_)
        if self.lower is not None:
            kept &= scores >= self.lower
        if self.upper is not None:
            kept &= scores <= self.upper
        return kept

    def reason(self, score: float) -> str:
        """Why a document with this failing score goes."""
        return self.lower_reason if self.lower is not None and not score >= self.lower else self.upper_reason

    def threshold(self, score: float) -> float:
        """The bound that a failing score broke."""
        if self.lower is not None and not score >= self.lower:
            return float(self.lower)
        return float("nan") if self.upper is None else float(self.upper)

    def stored_scores(self, scores: Scores) -> pa.Array:
        """What a `score_field` holds for these scores, which `score_column` has just given."""
        return pa.array(scores)

    def reasons(self) -> tuple[str, ...]:
        """Every reason this filter can give."""
        return tuple(
            reason
            for bound, reason in ((self.lower, self.lower_reason), (self.upper, self.upper_reason))
            if bound is not None
        )

    def score_document(self, text: str | None) -> Any:
        """The score of one text, by the same rule and the same kernel as for a column."""
        statistics = TextStatistics(text_column([text]), self.needs())
        statistics.require(self.needs(), statistics.alive)
        return float(self.score_column(statistics)[0])

    def keep_document(self, score: Any) -> bool:
        """Whether a document with this score stays."""
        return bool(self.keep(np.array([score], dtype=np.float64))[0])
