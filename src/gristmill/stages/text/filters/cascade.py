"""Many filters as one: statistics shared, costly ones computed only for documents that are still alive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.text_column import Mask, TextColumn, text_column
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, Statistic, TextStatistics

_BUILT_IN = ("gristmill.stages.text.filters.heuristic", "gristmill.stages.text.filters.published")


@dataclass
class CascadeResult:
    """What a cascade decided for every document of a column.

    Attributes:
        kept: Which documents passed every filter.
        failed_at: The position of the first filter that a document failed; -1 where none did.
        score: The score at that filter; NaN for kept documents.
        threshold: The bound that the score broke; NaN for kept documents.
        dropped: Per filter, how many documents it was the first to drop.
        scores: By position of the filter, the scores that were asked for; NaN for documents that it never saw.
    """

    kept: Mask
    failed_at: npt.NDArray[np.int32]
    score: Scores
    threshold: Scores
    dropped: list[int]
    scores: dict[int, Scores] = field(default_factory=dict)


class FilterCascade:
    """Runs column filters in order over a column, with the result that running them one after another would have.

    Args:
        filters: The filters, first one first.
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
        self._needs: tuple[tuple[Statistic, ...], ...] = tuple(tuple(one.needs()) for one in self.filters)

    def warm_up(self) -> None:
        """Load or compile the kernels that the built-in filters among these need."""
        ours = [one for one in self.filters if type(one).__module__.startswith(_BUILT_IN)]
        if ours:
            text = "one two three four five six seven eight nine ten eleven twelve. " * 2
            FilterCascade(ours).evaluate(pa.array([text, text], pa.large_string()), every_score=True)

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
            alive: Documents to look at; others are neither kept nor failed. None means all.
            keep_scores: Whether to keep the scores of every filter, or of the filters at these positions.
            every_score: Score every document with every filter, also those that an earlier filter dropped.
        """
        texts = column if isinstance(column, TextColumn) else text_column(column)
        start = np.ones(len(texts), dtype=np.bool_) if alive is None else np.asarray(alive, dtype=np.bool_).copy()
        living = start.copy()
        wanted = range(len(self.filters)) if keep_scores is True or every_score else (keep_scores or ())
        result = CascadeResult(
            kept=living,
            failed_at=np.full(len(texts), -1, dtype=np.int32),
            score=np.full(len(texts), np.nan),
            threshold=np.full(len(texts), np.nan),
            dropped=[0] * len(self.filters),
        )
        statistics = TextStatistics(texts, (one for needs in self._needs for one in needs))
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
            failed = living & ~passed
            rows = np.flatnonzero(failed)
            if len(rows):
                result.failed_at[rows] = position
                result.score[rows] = scores[rows]
                result.threshold[rows] = self._thresholds(position, scores[rows])
                result.dropped[position] = len(rows)
                living &= passed
        return result

    def _thresholds(self, position: int, scores: Scores) -> Scores:
        one = self.filters[position]
        if one.lower is None or one.upper is None or self.invert[position]:
            bound = one.upper if one.lower is None else one.lower
            return np.full(len(scores), np.nan if bound is None else bound, dtype=np.float64)
        return np.where(scores < one.lower, float(one.lower), float(one.upper))

    def reason(self, result: CascadeResult, row: int) -> str | None:
        """Why a document went; None where it was kept."""
        position = int(result.failed_at[row])
        if position < 0:
            return None
        return self.reason_at(position, float(result.score[row]))

    def reason_at(self, position: int, score: float) -> str:
        """The reason the filter at this position gives for a failing score."""
        one = self.filters[position]
        return f"not_{one.reasons()[0]}" if self.invert[position] else one.reason(score)
