"""Rules for repetition within a text: lines, paragraphs and word n-grams (Gopher, Rae et al. 2021)."""

from __future__ import annotations

from gristmill.stages.text.filters import statistics as s
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Statistic


class RepeatedLinesFilter(ColumnFilter):
    r"""Drops texts with too few distinct lines. Despite its name, the parameter is a minimum share.

    Example:
        >>> RepeatedLinesFilter().score_document("a\na\nb\nc")
        0.75
    """

    statistic, denominator = s.UNIQUE_LINES, s.N_LINES
    score_kind = "share"
    empty_score = 0.0
    lower_reason = "repeated_lines"
    lower_parameter = "max_repeated_line_fraction"

    def __init__(self, max_repeated_line_fraction: float = 0.7) -> None:
        super().__init__(lower=max_repeated_line_fraction)


class RepeatedParagraphsFilter(ColumnFilter):
    r"""Drops texts with too few distinct paragraphs. Despite its name, the parameter is a minimum share.

    Example:
        >>> RepeatedParagraphsFilter().score_document("a\n\na")
        0.5
    """

    statistic, denominator = s.UNIQUE_PARAGRAPHS, s.N_PARAGRAPHS
    score_kind = "share"
    empty_score = 0.0
    lower_reason = "repeated_paragraphs"
    lower_parameter = "max_repeated_paragraphs_ratio"

    def __init__(self, max_repeated_paragraphs_ratio: float = 0.7) -> None:
        super().__init__(lower=max_repeated_paragraphs_ratio)


class RepeatedLinesByCharFilter(ColumnFilter):
    r"""Drops texts with too few characters in distinct lines. The parameter is a minimum share.

    Example:
        >>> RepeatedLinesByCharFilter().score_document("ab\nab")
        0.5
    """

    statistic, denominator = s.UNIQUE_LINE_CHARS, s.LINE_CHARS
    score_kind = "share"
    empty_score = 0.0
    lower_reason = "repeated_line_chars"
    lower_parameter = "max_repeated_lines_char_ratio"

    def __init__(self, max_repeated_lines_char_ratio: float = 0.8) -> None:
        super().__init__(lower=max_repeated_lines_char_ratio)


class RepeatedParagraphsByCharFilter(ColumnFilter):
    r"""Drops texts with too few characters in distinct paragraphs. The parameter is a minimum share.

    Example:
        >>> RepeatedParagraphsByCharFilter().score_document("ab\n\nab")
        0.5
    """

    statistic, denominator = s.UNIQUE_PARAGRAPH_CHARS, s.PARAGRAPH_CHARS
    score_kind = "share"
    empty_score = 0.0
    lower_reason = "repeated_paragraph_chars"
    lower_parameter = "max_repeated_paragraphs_char_ratio"

    def __init__(self, max_repeated_paragraphs_char_ratio: float = 0.8) -> None:
        super().__init__(lower=max_repeated_paragraphs_char_ratio)


class RepeatingTopNGramsFilter(ColumnFilter):
    """Drops texts in which the most frequent n-gram has too large a share; ties go to the first one.

    A text with fewer words than n scores 1.

    Example:
        >>> RepeatingTopNGramsFilter(n=2).score_document("to be or to be")
        0.7142857142857143
    """

    denominator = s.N_CHARS
    upper_parameter = "max_repeating_ngram_ratio"

    def __init__(self, n: int = 2, max_repeating_ngram_ratio: float = 0.2, lang: str = "en") -> None:
        super().__init__(f"RepeatingTopNGramsFilter_n{n}", upper=max_repeating_ngram_ratio)
        self.statistic = Statistic(s.TOP_NGRAM, 0, n, s.splitter_of(lang))
        self.upper_reason = f"top_{n}gram_repeats"
        if not 0 <= max_repeating_ngram_ratio <= n:  # n-grams overlap, so that a score may exceed 1
            raise self._refused("upper", max_repeating_ngram_ratio, "must be a share of the text, from 0 to 1.")


class RepeatingDuplicateNGramsFilter(ColumnFilter):
    """Drops texts in which repeated n-grams have too large a share.

    A text with fewer words than n scores 1.

    Example:
        >>> RepeatingDuplicateNGramsFilter(n=2).score_document("to be or to be")
        0.35714285714285715
    """

    denominator = s.N_CHARS
    upper_parameter = "max_repeating_duplicate_ngram_ratio"

    def __init__(self, n: int = 2, max_repeating_duplicate_ngram_ratio: float = 0.2, lang: str = "en") -> None:
        super().__init__(f"RepeatingDuplicateNGramsFilter_n{n}", upper=max_repeating_duplicate_ngram_ratio)
        self.statistic = Statistic(s.DUPLICATE_NGRAM, 0, n, s.splitter_of(lang))
        self.upper_reason = f"duplicate_{n}grams"
        if not 0 <= max_repeating_duplicate_ngram_ratio <= n:  # n-grams overlap, so that a score may exceed 1
            raise self._refused(
                "upper", max_repeating_duplicate_ngram_ratio, "must be a share of the text, from 0 to 1."
            )
