"""The quality rules of FineWeb (Penedo et al. 2024, arXiv:2406.17557, section 3.6)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gristmill.kernels import text_layout, text_tokens
from gristmill.stages.text.filters import statistics as s
from gristmill.stages.text.filters.published.gopher import STOP_WORDS
from gristmill.stages.text.filters.published.rules import FilterSet, Rule, check_splitter
from gristmill.stages.text.filters.rule import ColumnFilter, check_shares
from gristmill.stages.text.filters.statistics import UNICODE, Scores, TextStatistics


class FineWebQualityFilter(FilterSet):
    """FineWeb's rules: lines with terminal punctuation, short lines, repeated lines, and lists.

    A limit of None is off.

    Args:
        min_finished_line_ratio: Minimum share of lines with terminal punctuation.
        spare_without_marks: Keep texts in which no line at all has terminal punctuation.
        stop_chars: Punctuation that ends a line; None for that of all scripts in Unicode. A custom set runs in Python.
        max_short_line_ratio: Maximum share of short lines.
        short_line_length: Maximum number of characters of a short line.
        max_repeated_char_ratio: Maximum share of characters in repeated lines.
        max_newline_ratio: Maximum number of newlines per word.
        word_splitter: `unicode`, `space`, or `spacy` for the tokens of spaCy's English tokenizer.

    Example:
        >>> FineWebQualityFilter().reason_for("no full stop here")
        'too_few_finished_lines'
    """

    def __init__(
        self,
        *,
        min_finished_line_ratio: float | None = 0.12,
        spare_without_marks: bool = False,
        stop_chars: Sequence[str] | None = None,
        max_short_line_ratio: float | None = 0.67,
        short_line_length: int = 30,
        max_repeated_char_ratio: float | None = 0.01,
        max_newline_ratio: float | None = 0.3,
        word_splitter: str = UNICODE,
    ) -> None:
        splitter = check_splitter(word_splitter)
        check_shares(
            self,
            min_finished_line_ratio=min_finished_line_ratio,
            max_short_line_ratio=max_short_line_ratio,
            max_repeated_char_ratio=max_repeated_char_ratio,
        )
        finished = s.layout(text_layout.FINISHED_LINES, short_line_length)
        short = s.layout(text_layout.SHORT_LINES, short_line_length)
        words = s.tokens(text_tokens.N_TOKENS, splitter, STOP_WORDS)

        def rules() -> Iterable[ColumnFilter]:
            yield Rule("empty", s.N_LINES, lower=1)
            if min_finished_line_ratio is not None:
                if stop_chars is None:
                    yield Rule(
                        "too_few_finished_lines",
                        finished,
                        s.N_LINES,
                        lower=min_finished_line_ratio,
                        spare_zero=spare_without_marks,
                    )
                else:
                    yield _GivenMarksRule(tuple(stop_chars), min_finished_line_ratio, spare_zero=spare_without_marks)
            if max_short_line_ratio is not None:
                yield Rule("too_many_short_lines", short, s.N_LINES, upper=max_short_line_ratio)
            if max_repeated_char_ratio is not None:
                yield _RepeatedLinesRule(max_repeated_char_ratio)
            if max_newline_ratio is not None:
                yield Rule("too_many_newlines", s.NEWLINES, words, nothing=1.0, upper=max_newline_ratio)

        super().__init__(rules())


class _RepeatedLinesRule(Rule):
    """Characters in repeated lines, as a share of all but the newlines."""

    def __init__(self, upper: float) -> None:
        super().__init__("repeated_line_chars", s.LINE_CHARS, (s.N_CHARS, s.NEWLINES), upper=upper)

    def needs(self) -> Iterable[s.Statistic]:
        return (s.LINE_CHARS, s.UNIQUE_LINE_CHARS, s.N_CHARS, s.NEWLINES)

    def score_column(self, statistics: TextStatistics) -> Scores:
        repeated = statistics[s.LINE_CHARS] - statistics[s.UNIQUE_LINE_CHARS]
        whole = statistics[s.N_CHARS] - statistics[s.NEWLINES]
        return statistics.ratio(repeated, whole, nothing=0.0)


class _GivenMarksRule(Rule):
    """Lines that end with one of the given characters, as a share of all that are not blank."""

    def __init__(self, marks: tuple[str, ...], lower: float, *, spare_zero: bool) -> None:
        super().__init__("too_few_finished_lines", s.N_LINES, lower=lower, spare_zero=spare_zero)
        self._marks = marks

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.score_texts(self._share)

    def _share(self, text: str) -> float:
        lines = [line for line in text.split("\n") if line.strip()]
        return sum(line.endswith(self._marks) for line in lines) / len(lines) if lines else 0.0
