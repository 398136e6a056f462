"""Rules over what repeats itself within a text: lines, paragraphs and word n-grams (Gopher, Rae et al. 2021)."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gristmill.stages.text.filters import statistics as s
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.splitters import splitter_of_language
from gristmill.stages.text.filters.statistics import Scores, Statistic, TextStatistics


class _UniqueShareFilter(ColumnFilter):
    """Drops texts of which too little is left when repeated pieces are taken once; without any piece the score is 0."""

    def __init__(self, name: str, unique: Statistic, total: Statistic, lower: float) -> None:
        super().__init__(name, lower=lower)
        self._unique = unique
        self._total = total

    def needs(self) -> Iterable[Statistic]:
        return (self._unique, self._total)

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.ratio(self._unique, self._total, nothing=0.0)


class RepeatedLinesFilter(_UniqueShareFilter):
    r"""Drops texts in which too few lines are distinct. The parameter is a least share, for all its name.

    Example:
        >>> RepeatedLinesFilter().score_document("a\na\nb\nc")
        0.75
    """

    lower_reason = "repeated_lines"

    def __init__(self, max_repeated_line_fraction: float = 0.7) -> None:
        super().__init__("repeated_lines", s.UNIQUE_LINES, s.N_LINES, max_repeated_line_fraction)


class RepeatedParagraphsFilter(_UniqueShareFilter):
    r"""Drops texts in which too few paragraphs are distinct. The parameter is a least share, for all its name.

    Example:
        >>> RepeatedParagraphsFilter().score_document("a\n\na")
        0.5
    """

    lower_reason = "repeated_paragraphs"

    def __init__(self, max_repeated_paragraphs_ratio: float = 0.7) -> None:
        super().__init__("repeated_paragraphs", s.UNIQUE_PARAGRAPHS, s.N_PARAGRAPHS, max_repeated_paragraphs_ratio)


class RepeatedLinesByCharFilter(_UniqueShareFilter):
    r"""Drops texts in which too few characters stand in distinct lines. The parameter is a least share.

    Example:
        >>> RepeatedLinesByCharFilter().score_document("ab\nab")
        0.5
    """

    lower_reason = "repeated_line_chars"

    def __init__(self, max_repeated_lines_char_ratio: float = 0.8) -> None:
        super().__init__("repeated_lines_char", s.UNIQUE_LINE_CHARS, s.LINE_CHARS, max_repeated_lines_char_ratio)


class RepeatedParagraphsByCharFilter(_UniqueShareFilter):
    r"""Drops texts in which too few characters stand in distinct paragraphs. The parameter is a least share.

    Example:
        >>> RepeatedParagraphsByCharFilter().score_document("ab\n\nab")
        0.5
    """

    lower_reason = "repeated_paragraph_chars"

    def __init__(self, max_repeated_paragraphs_char_ratio: float = 0.8) -> None:
        super().__init__(
            "repeated_paragraphs_char",
            s.UNIQUE_PARAGRAPH_CHARS,
            s.PARAGRAPH_CHARS,
            max_repeated_paragraphs_char_ratio,
        )


class _NGramFilter(ColumnFilter):
    """A share of characters that n-grams take; a text with fewer words than n scores 1."""

    def __init__(self, name: str, statistic: Statistic, upper: float) -> None:
        super().__init__(name, upper=upper)
        self._statistic = statistic

    def needs(self) -> Iterable[Statistic]:
        return (s.N_CHARS, self._statistic)

    def score_column(self, statistics: TextStatistics) -> Scores:
        scores = statistics.ratio(self._statistic, s.N_CHARS, nothing=1.0)
        return np.where(statistics[self._statistic] < 0, 1.0, scores)

    @property
    def n(self) -> int:
        """Words in an n-gram."""
        return self._statistic.n


class RepeatingTopNGramsFilter(_NGramFilter):
    """Drops texts of which the most frequent n-gram takes too large a part; of equals, the first one counts.

    Example:
        >>> RepeatingTopNGramsFilter(n=2).score_document("to be or to be")
        0.7142857142857143
    """

    def __init__(self, n: int = 2, max_repeating_ngram_ratio: float = 0.2, lang: str = "en") -> None:
        statistic = s.top_ngram(n, splitter_of_language(lang))
        super().__init__(f"repeating_top_{n}grams", statistic, max_repeating_ngram_ratio)

    @property
    def upper_reason(self) -> str:  # type: ignore[override]
        return f"top_{self.n}gram_repeats"


class RepeatingDuplicateNGramsFilter(_NGramFilter):
    """Drops texts of which n-grams that occurred before take too large a part.

    Example:
        >>> RepeatingDuplicateNGramsFilter(n=2).score_document("to be or to be")
        0.35714285714285715
    """

    def __init__(self, n: int = 2, max_repeating_duplicate_ngram_ratio: float = 0.2, lang: str = "en") -> None:
        statistic = s.duplicate_ngram(n, splitter_of_language(lang))
        super().__init__(f"repeating_dup_{n}gram", statistic, max_repeating_duplicate_ngram_ratio)

    @property
    def upper_reason(self) -> str:  # type: ignore[override]
        return f"duplicate_{self.n}grams"
