"""Rules for the characters, words and lines of a text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

import numpy as np

from gristmill.errors import UsageError, did_you_mean
from gristmill.kernels.text_column import text_column
from gristmill.kernels.text_search import ANYWHERE, PREFIX, SUFFIX, contains
from gristmill.stages.text.filters import statistics as s
from gristmill.stages.text.filters.rule import ColumnFilter
from gristmill.stages.text.filters.statistics import Scores, Statistic, TextStatistics


class NonAlphaNumericFilter(ColumnFilter):
    """Drops texts in which too many characters are neither ASCII letters or digits nor newline ? ! , or full stop.

    Adapted from Gopher (Rae et al. 2021). An empty text scores 1.

    Example:
        >>> NonAlphaNumericFilter().score_document("a-b-")
        0.5
    """

    statistic, denominator = s.PLAIN_CHARS, s.N_CHARS
    score_kind = "share"
    upper_reason = "too_many_symbols"
    upper_parameter = "max_non_alpha_numeric_to_text_ratio"

    def __init__(self, max_non_alpha_numeric_to_text_ratio: float = 0.25) -> None:
        super().__init__(upper=max_non_alpha_numeric_to_text_ratio)

    def score_column(self, statistics: TextStatistics) -> Scores:
        others = statistics[s.N_CHARS] - statistics[s.PLAIN_CHARS]
        return statistics.ratio(others, s.N_CHARS, nothing=1.0)


class NumbersFilter(ColumnFilter):
    """Drops texts with too many digits (0 to 9); an empty text scores 1.

    Example:
        >>> NumbersFilter().score_document("a1")
        0.5
    """

    statistic, denominator = s.DIGIT_CHARS, s.N_CHARS
    score_kind = "share"
    upper_reason = "too_many_digits"
    upper_parameter = "max_number_to_text_ratio"

    def __init__(self, max_number_to_text_ratio: float = 0.15) -> None:
        super().__init__(upper=max_number_to_text_ratio)


class WhiteSpaceFilter(ColumnFilter):
    """Drops texts with too much whitespace (space, tab, newline, carriage return, backspace); an empty text scores 1.

    Example:
        >>> WhiteSpaceFilter().score_document("a b ")
        0.5
    """

    statistic, denominator = s.WHITE_CHARS, s.N_CHARS
    score_kind = "share"
    upper_reason = "too_much_white_space"
    upper_parameter = "max_white_space_ratio"

    def __init__(self, max_white_space_ratio: float = 0.25) -> None:
        super().__init__(upper=max_white_space_ratio)


class ParenthesesFilter(ColumnFilter):
    """Drops texts with too many round, square, curly or mathematical angle brackets; an empty text scores 1.

    Example:
        >>> ParenthesesFilter().score_document("(a)b")
        0.5
    """

    statistic, denominator = s.BRACKET_CHARS, s.N_CHARS
    score_kind = "share"
    upper_reason = "too_many_brackets"
    upper_parameter = "max_parentheses_ratio"

    def __init__(self, max_parentheses_ratio: float = 0.1) -> None:
        super().__init__(upper=max_parentheses_ratio)


class UrlsFilter(ColumnFilter):
    """Drops texts with too large a share of URLs; an empty text scores 1.

    Args:
        max_url_to_text_ratio: Maximum share of characters in URLs.
        url_regex: Pattern of a URL; by default a compiled scan for http and https URLs is used. With a pattern, every
            text goes through Python's `re`, which is far slower.

    Example:
        >>> UrlsFilter().score_document("see http://a.b")
        0.7142857142857143
    """

    statistic, denominator = s.URL_CHARS, s.N_CHARS
    score_kind = "share"
    upper_reason = "too_many_urls"
    upper_parameter = "max_url_to_text_ratio"

    def __init__(self, max_url_to_text_ratio: float = 0.2, url_regex: re.Pattern[str] | str | None = None) -> None:
        super().__init__(upper=max_url_to_text_ratio)
        self._url_regex = re.compile(url_regex) if isinstance(url_regex, str) else url_regex

    def score_column(self, statistics: TextStatistics) -> Scores:
        pattern = self._url_regex
        if pattern is None:
            return super().score_column(statistics)
        return statistics.score_texts(
            lambda text: sum(map(len, pattern.findall(text))) / len(text) if text else 1.0,
        )


class PornographicUrlsFilter(ColumnFilter):
    """Drops texts that link to pornographic URLs.

    Args:
        url_regex: Pattern of a URL; see `UrlsFilter`.

    Example:
        >>> PornographicUrlsFilter().score_document("http://porn.example")
        1
    """

    statistic = s.ADULT_URLS
    score_kind = "count"
    upper_reason = "adult_url"

    def __init__(self, url_regex: re.Pattern[str] | str | None = None) -> None:
        super().__init__(upper=0)
        self._url_regex = re.compile(url_regex) if isinstance(url_regex, str) else url_regex

    def score_column(self, statistics: TextStatistics) -> Scores:
        pattern = self._url_regex
        if pattern is None:
            return super().score_column(statistics)
        return statistics.score_texts(lambda text: float(any("porn" in url for url in pattern.findall(text))))


class _WordFilter(ColumnFilter):
    """A rule for words; they are split at whitespace, for Chinese and Japanese by a library."""

    def __init__(self, lang: str, *, lower: float | None = None, upper: float | None = None) -> None:
        super().__init__(lower=lower, upper=upper)
        self._splitter = s.splitter_of(lang)

    def needs(self) -> Iterable[Statistic]:
        if self._splitter == s.SPACE:
            return super().needs()
        return [one._replace(splitter=self._splitter) for one in super().needs()]


class SymbolsToWordsFilter(_WordFilter):
    """Drops texts with too many words that are ellipses or hash signs (Gopher, Rae et al. 2021); no words score 1.

    Example:
        >>> SymbolsToWordsFilter().score_document("# heading ... more")
        0.5
    """

    statistic, denominator = s.SYMBOL_WORDS, s.N_WORDS
    score_kind = "share"
    upper_reason = "too_many_symbol_words"
    upper_parameter = "max_symbol_to_word_ratio"

    def __init__(self, max_symbol_to_word_ratio: float = 0.1, lang: str = "en") -> None:
        super().__init__(lang, upper=max_symbol_to_word_ratio)


class LongWordFilter(_WordFilter):
    """Drops texts with an overlong word, such as minified code (C4, Raffel et al. 2020); no words score 0 and are kept.

    Example:
        >>> LongWordFilter().score_document("a bcd")
        3
    """

    statistic = s.LONGEST_WORD
    score_kind = "count"
    upper_reason = "word_too_long"
    upper_parameter = "max_word_length"

    def __init__(self, max_word_length: int = 1000, lang: str = "en") -> None:
        super().__init__(lang, upper=max_word_length)


class WordCountFilter(_WordFilter):
    """Drops texts with too few or too many words.

    Example:
        >>> WordCountFilter().score_document("a b c")
        3
    """

    statistic = s.N_WORDS
    score_kind = "count"
    lower_reason = "too_few_words"
    upper_reason = "too_many_words"
    lower_parameter = "min_words"
    upper_parameter = "max_words"

    def __init__(self, min_words: int = 50, max_words: int = 100000, lang: str = "en") -> None:
        super().__init__(lang, lower=min_words, upper=max_words)


class MeanWordLengthFilter(_WordFilter):
    """Drops texts whose mean word length is too small or too large (Gopher, Rae et al. 2021); no words score 0.

    Example:
        >>> MeanWordLengthFilter().score_document("ab abcd")
        3.0
    """

    statistic, denominator = s.WORD_CHARS, s.N_WORDS
    empty_score = 0.0
    lower_reason = "words_too_short"
    upper_reason = "words_too_long"
    lower_parameter = "min_mean_word_length"
    upper_parameter = "max_mean_word_length"

    def __init__(self, min_mean_word_length: int = 3, max_mean_word_length: int = 10, lang: str = "en") -> None:
        super().__init__(lang, lower=min_mean_word_length, upper=max_mean_word_length)


class WordsWithoutAlphabetsFilter(_WordFilter):
    """Drops texts with too few words that contain a letter (Gopher, Rae et al. 2021); no words score 0.

    Example:
        >>> WordsWithoutAlphabetsFilter().score_document("a 1 2 b3")
        0.5
    """

    statistic, denominator = s.ALPHABETIC_WORDS, s.N_WORDS
    score_kind = "share"
    empty_score = 0.0
    lower_reason = "too_few_alphabetic_words"
    lower_parameter = "min_words_with_alphabets"

    def __init__(self, min_words_with_alphabets: float = 0.8, lang: str = "en") -> None:
        super().__init__(lang, lower=min_words_with_alphabets)


class CommonEnglishWordsFilter(ColumnFilter):
    """Drops texts with too few of the words the, be, to, of, and, that, have, with, in lower case (Rae et al. 2021).

    Args:
        min_num_common_words: Minimum number of such words.
        stop_at_false: Stop counting at that number.

    Example:
        >>> CommonEnglishWordsFilter().score_document("the cat and the dog")
        2
    """

    statistic = s.COMMON_WORDS
    score_kind = "count"
    lower_reason = "too_few_common_words"
    lower_parameter = "min_num_common_words"

    def __init__(self, min_num_common_words: int = 2, stop_at_false: bool = True) -> None:
        super().__init__(lower=min_num_common_words)
        self._cutoff = min_num_common_words
        self._stop_at_false = stop_at_false

    def score_column(self, statistics: TextStatistics) -> Scores:
        if self._stop_at_false and self._cutoff <= 0:
            # Counting stops after the first word, whatever it is.
            return statistics.scores(s.FIRST_WORD_COMMON)
        scores = super().score_column(statistics)
        return scores.clip(max=np.ceil(self._cutoff)) if self._stop_at_false else scores


class BulletsFilter(ColumnFilter):
    r"""Drops texts in which nearly all lines begin with a bullet (Gopher, Rae et al. 2021); no line scores 1.

    Example:
        >>> BulletsFilter().score_document("• one\ntwo")
        0.5
    """

    statistic, denominator = s.BULLET_LINES, s.N_LINES
    score_kind = "share"
    upper_reason = "too_many_bullets"
    upper_parameter = "max_bullet_lines_ratio"

    def __init__(self, max_bullet_lines_ratio: float = 0.9) -> None:
        super().__init__(upper=max_bullet_lines_ratio)


class PunctuationFilter(ColumnFilter):
    r"""Drops texts with too many lines that do not end with a full stop, question or exclamation mark or quote (C4).

    A text with only blank lines scores 1.

    Example:
        >>> PunctuationFilter().score_document("Yes.\nno")
        0.5
    """

    statistic, denominator = s.OPEN_LINES, s.N_LINES
    score_kind = "share"
    upper_reason = "too_few_sentence_ends"
    upper_parameter = "max_num_sentences_without_endmark_ratio"

    def __init__(self, max_num_sentences_without_endmark_ratio: float = 0.85) -> None:
        super().__init__(upper=max_num_sentences_without_endmark_ratio)


class EllipsisFilter(ColumnFilter):
    r"""Drops texts with too many lines that end in an ellipsis or "read more" (Gopher, Rae et al. 2021; C4).

    A text with only blank lines scores 1.

    Example:
        >>> EllipsisFilter().score_document("And so...\nEnd.")
        0.5
    """

    statistic, denominator = s.ELLIPSIS_LINES, s.N_LINES
    score_kind = "share"
    upper_reason = "too_many_ellipses"
    upper_parameter = "max_num_lines_ending_with_ellipsis_ratio"

    def __init__(self, max_num_lines_ending_with_ellipsis_ratio: float = 0.3) -> None:
        super().__init__(upper=max_num_lines_ending_with_ellipsis_ratio)


class BoilerPlateStringFilter(ColumnFilter):
    r"""Drops texts with too many paragraphs that contain phrases of legal notices and cookie banners (after C4).

    Filler text ("lorem ipsum") anywhere scores 1; an empty text scores 0 and is kept.

    Args:
        remove_if_at_top_or_bottom: Accepted for compatibility; the score does not depend on it.
        max_boilerplate_string_ratio: Maximum share of such paragraphs.

    Example:
        >>> BoilerPlateStringFilter().score_document("Our Privacy Policy\n\nA story.")
        0.5
    """

    statistic, denominator = s.BOILERPLATE_PARAGRAPHS, s.ALL_PARAGRAPHS
    score_kind = "share"
    empty_score = 0.0
    upper_reason = "too_much_boilerplate"
    upper_parameter = "max_boilerplate_string_ratio"

    def __init__(
        self,
        remove_if_at_top_or_bottom: bool = True,
        max_boilerplate_string_ratio: float = 0.4,
    ) -> None:
        super().__init__(upper=max_boilerplate_string_ratio)
        self.remove_if_at_top_or_bottom = remove_if_at_top_or_bottom

    def score_column(self, statistics: TextStatistics) -> Scores:
        scores = super().score_column(statistics)
        scores[statistics[s.PLACEHOLDER_TEXT] > 0] = 1.0
        return scores


class SubstringFilter(ColumnFilter):
    """Keeps texts that begin with, end with or contain a given string.

    Args:
        substring: String to look for.
        position: `prefix`, `suffix` or `any`.

    Example:
        >>> SubstringFilter("x", "any").score_document("axb")
        1
    """

    score_kind = "count"
    lower_reason = "substring_missing"

    def __init__(self, substring: str, position: Literal["prefix", "suffix", "any"]) -> None:
        valid = ("prefix", "suffix", "any")
        if position not in valid:
            raise UsageError(
                f"position={position!r} is not one of {', '.join(valid)}.{did_you_mean(str(position), valid)}",
                position=position,
            )
        super().__init__(lower=1)
        self._substring = substring
        self._place = {"prefix": PREFIX, "suffix": SUFFIX, "any": ANYWHERE}[position]

    def warm_up(self) -> None:
        contains(text_column([""]), np.ones(1, np.bool_), self._substring, place=self._place)

    def score_column(self, statistics: TextStatistics) -> Scores:
        return contains(statistics.column, statistics.alive, self._substring, place=self._place).astype("float64")
