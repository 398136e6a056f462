"""Rules for source code (StarCoder, Li et al. 2023, arXiv:2305.06161), its comments and the visible text of pages."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.text_column import text_column
from gristmill.kernels.text_search import contains
from gristmill.stages.text.filters import statistics as s
from gristmill.stages.text.filters.heuristic.python_source import (
    UnreadableSourceError,
    python_comments,
    python_docstrings,
)
from gristmill.stages.text.filters.heuristic.visible_text import visible_text_length
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, TextStatistics


class _CommentShareFilter(ColumnFilter):
    """Drops source files with too few or too many comments."""

    lower_reason = "too_few_comments"
    upper_reason = "too_many_comments"


class PythonCommentToCodeFilter(_CommentShareFilter):
    r"""Drops Python files with too small or too large a share of comments and docstrings.

    Source that does not parse scores 0, like an empty file. At worst 3 s per MB, for files of only the shortest
    statements: Python's own parser creates several objects for each.

    Example:
        >>> PythonCommentToCodeFilter().score_document("#a\nx=1")
        0.3333333333333333
    """

    score_kind = "share"
    lower_parameter = "min_comment_to_code_ratio"
    upper_parameter = "max_comment_to_code_ratio"

    def __init__(self, min_comment_to_code_ratio: float = 0.01, max_comment_to_code_ratio: float = 0.85) -> None:
        super().__init__(lower=min_comment_to_code_ratio, upper=max_comment_to_code_ratio)

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.score_texts(_python_comment_share)


def _python_comment_share(source: str) -> float:
    try:
        docstrings = python_docstrings(source)
        comments = python_comments(source)
    except UnreadableSourceError:
        return 0.0
    if not source:
        return 0.0
    # Docstrings are joined by newlines, comments by nothing.
    return (sum(map(len, docstrings)) + max(len(docstrings) - 1, 0) + sum(map(len, comments))) / len(source)


class GeneralCommentToCodeFilter(_CommentShareFilter):
    r"""Drops source files with too small or too large a share of comments, not counting comment delimiters.

    An unterminated comment scores 9999, an empty file 0. At worst 1 s per MB, for Python with an unterminated quote
    on every line; other languages are many times faster.

    Args:
        language: The MIME type of the language, such as `text/x-java`.
        min_comment_to_code_ratio: Minimum share of comments.
        max_comment_to_code_ratio: Maximum share of comments.

    Example:
        >>> GeneralCommentToCodeFilter("text/x-c").score_document("//ab\n")
        0.4
    """

    unreadable = 9999.0
    lower_parameter = "min_comment_to_code_ratio"
    upper_parameter = "max_comment_to_code_ratio"

    def __init__(
        self,
        language: str,
        min_comment_to_code_ratio: float = 0.01,
        max_comment_to_code_ratio: float = 0.85,
    ) -> None:
        super().__init__(lower=min_comment_to_code_ratio, upper=max_comment_to_code_ratio)
        if language not in COMMENTS:
            raise UsageError(
                f"Comments of {language!r} are not supported; choose one of "
                f"{', '.join(sorted(COMMENTS))}.{did_you_mean(language, COMMENTS)}",
                language=language,
            )
        self._language = language

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.score_texts(self._share)

    def _share(self, source: str) -> float:
        try:
            comments = COMMENTS[self._language](source)
        except UnreadableSourceError:
            return self.unreadable
        # Joined by spaces.
        return (sum(map(len, comments)) + max(len(comments) - 1, 0)) / len(source) if source else 0.0


class NumberOfLinesOfCodeFilter(ColumnFilter):
    r"""Drops source files with too few or too many lines.

    Example:
        >>> NumberOfLinesOfCodeFilter().score_document("a\nb")
        2
    """

    statistic = s.NEWLINES
    score_kind = "count"
    lower_reason = "too_few_lines"
    upper_reason = "too_many_lines"
    lower_parameter = "min_lines"
    upper_parameter = "max_lines"

    def __init__(self, min_lines: int = 10, max_lines: int = 20000) -> None:
        super().__init__(lower=min_lines, upper=max_lines)

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.scores(s.NEWLINES) + 1.0


class XMLHeaderFilter(ColumnFilter):
    """Drops XML files with another extension: those with an XML declaration in their first characters.

    Example:
        >>> XMLHeaderFilter().score_document('<?xml version="1.0"?>')
        1
    """

    score_kind = "count"
    upper_reason = "xml_header"

    def __init__(self, char_prefix_search_length: int = 100) -> None:
        super().__init__(upper=0)
        self._first_chars = char_prefix_search_length

    def warm_up(self) -> None:
        contains(text_column([""]), np.ones(1, np.bool_), "<", first_chars=1)

    def score_column(self, statistics: TextStatistics) -> Scores:
        found = contains(statistics.column, statistics.alive, "<?xml version=", first_chars=self._first_chars)
        return found.astype("float64")


class AlphaFilter(ColumnFilter):
    """Drops files with too few alphabetic characters, such as tables of numbers; an empty one scores 0.

    Example:
        >>> AlphaFilter().score_document("ab12")
        0.5
    """

    statistic, denominator = s.ALPHABETIC_CHARS, s.N_CHARS
    score_kind = "share"
    empty_score = 0.0
    lower_reason = "too_few_letters"
    lower_parameter = "min_alpha_ratio"

    def __init__(self, min_alpha_ratio: float = 0.25) -> None:
        super().__init__(lower=min_alpha_ratio)


class HTMLBoilerplateFilter(ColumnFilter):
    """Drops HTML pages with too little visible text; a page with fewer characters than the minimum scores 0.

    At worst 1.5 s per MB, for pages of only the shortest tags: the standard library's parser calls several functions
    for each.

    Args:
        min_lang_content_ratio: Minimum share of visible text.
        min_lang_content_num_chars: Minimum number of characters of visible text; a page with fewer scores 0.

    Example:
        >>> HTMLBoilerplateFilter(min_lang_content_num_chars=1).score_document("<b>four</b>")
        0.36363636363636365
    """

    score_kind = "share"
    lower_reason = "too_little_content"
    lower_parameter = "min_lang_content_ratio"

    def __init__(self, min_lang_content_ratio: float = 0.2, min_lang_content_num_chars: int = 100) -> None:
        super().__init__(lower=min_lang_content_ratio)
        self._least_chars = min_lang_content_num_chars

    def score_column(self, statistics: TextStatistics) -> Scores:
        return statistics.score_texts(self._share)

    def _share(self, source: str) -> float:
        length = visible_text_length(source)
        return length / len(source) if source and length >= self._least_chars else 0.0


_C_FAMILY = re.compile(r'"[^"\n]*"|//(?P<text>.*)|/\*(?P<block>[\s\S]*?)\*/|(?P<open>/\*)')
_MARKUP = re.compile(r'"[^"\n]*"|<!--(?P<text>[\s\S]*?)-->|(?P<open><!--)')
_RUBY = re.compile(r"""(?P<quote>["'])(?:\\(?P=quote)|(?!(?P=quote)).)*(?P=quote)|\#(?P<text>.*)""")
_SHELL = re.compile(r"""(?P<quote>["'])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)|\\[\s\S]|\#(?P<text>.*)""")
# A slash takes the character after it along, whatever it is, unless both begin a comment.
_SLASHES = r"""|//(?P<text>.*)|/\*(?P<block>[\s\S]*?)\*/|(?P<open>/\*)|/[\s\S]"""
_SCRIPT = re.compile(r"""(?P<quote>["'])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)""" + _SLASHES)
_GO = re.compile(r"""(?P<quote>["'`])(?:(?!(?P=quote))[^\\]|\\[\s\S])*(?:(?P=quote)|\\?\Z)""" + _SLASHES)


def _matched(pattern: re.Pattern[str]) -> Callable[[str], list[str]]:
    """Comments matched by the groups of a pattern, with strings and escapes skipped."""

    def comments(source: str) -> list[str]:
        found: list[str] = []
        for match in pattern.finditer(source):
            groups = match.groupdict()
            if groups.get("open") is not None:
                raise UnreadableSourceError("a comment is not terminated")
            for name in ("text", "block"):
                text = groups.get(name)
                if text is not None:
                    found.append(text)
        return found

    return comments


def _python_comment_texts(source: str) -> list[str]:
    return [comment[1:] for comment in python_comments(source)]


COMMENTS: dict[str, Callable[[str], list[str]]] = {
    "application/javascript": _matched(_SCRIPT),
    "text/html": _matched(_MARKUP),
    "text/x-c": _matched(_C_FAMILY),
    "text/x-c++": _matched(_C_FAMILY),
    "text/x-go": _matched(_GO),
    "text/x-java": _matched(_C_FAMILY),
    "text/x-java-source": _matched(_C_FAMILY),
    "text/x-javascript": _matched(_SCRIPT),
    "text/x-python": _python_comment_texts,
    "text/x-ruby": _matched(_RUBY),
    "text/x-script.python": _python_comment_texts,
    "text/x-shellscript": _matched(_SHELL),
    "text/xml": _matched(_MARKUP),
}
