"""The building blocks of published sets: a rule is a ratio or count of statistics with a bound and a reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.text_column import Mask, TextColumn
from gristmill.stages.text.filters.cascade import CascadeResult, FilterCascade
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import SPACE, SPACY, UNICODE, Scores, Statistic, TextStatistics


class Rule(ColumnFilter):
    """A count, or one count divided by another, within a bound.

    Args:
        name: Name of the rule, which is also its reason.
        part: The statistic that is counted.
        whole: The statistic to divide by; None uses the count itself.
        nothing: The score if there is nothing to divide by.
        lower: Minimum score to keep.
        upper: Maximum score to keep.
        spare_zero: Keep a score of exactly 0, whatever the bounds.
    """

    def __init__(
        self,
        name: str,
        part: Statistic,
        whole: Statistic | Sequence[Statistic] | None = None,
        *,
        nothing: float = 0.0,
        lower: float | None = None,
        upper: float | None = None,
        spare_zero: bool = False,
    ) -> None:
        super().__init__(name, lower=lower, upper=upper)
        self._part = part
        # The first statistic, less the others.
        self._whole = () if whole is None else (whole,) if isinstance(whole, Statistic) else tuple(whole)
        self._nothing = nothing
        self._spare_zero = spare_zero

    def needs(self) -> Iterable[Statistic]:
        return (self._part, *self._whole)

    def score_column(self, statistics: TextStatistics) -> Scores:
        part = np.maximum(statistics[self._part], 0)
        if not self._whole:
            return part.astype(np.float64)
        whole = statistics[self._whole[0]]
        for less in self._whole[1:]:
            whole = whole - statistics[less]
        return statistics.ratio(part, whole, nothing=self._nothing)

    def keep(self, scores: Scores) -> Mask:
        kept = super().keep(scores)
        return kept | (scores == 0) if self._spare_zero else kept

    def reason(self, score: float) -> str:
        return self.name

    def reasons(self) -> tuple[str, ...]:
        return (self.name,)


class FilterSet:
    """Rules that are applied together, in order; the first that fails is the reason.

    Attributes:
        rules: The rules, in order.
    """

    def __init__(self, rules: Iterable[ColumnFilter]) -> None:
        self.rules: tuple[ColumnFilter, ...] = tuple(rules)

    @property
    def cascade(self) -> FilterCascade:
        """The rules as one cascade."""
        return FilterCascade(self.rules)

    def evaluate(self, column: pa.Array | pa.ChunkedArray | TextColumn, *, alive: Mask | None = None) -> CascadeResult:
        """Decide on every document of a column."""
        return self.cascade.evaluate(column, alive=alive)

    def reason_for(self, text: str | None) -> str | None:
        """Why this text would be dropped; None if it would be kept."""
        cascade = self.cascade
        return cascade.reason(cascade.evaluate(pa.array([text], pa.large_string())), 0)


def check_splitter(name: str) -> str:
    """Returns the name if the published sets can split words that way."""
    valid = (UNICODE, SPACY, SPACE)
    if name not in valid:
        raise UsageError(
            f"word_splitter={name!r} is not one of {', '.join(valid)}.{did_you_mean(name, valid)}", word_splitter=name
        )
    return name
