"""The quality and repetition rules of Gopher (Rae et al. 2021, arXiv:2112.11446, appendix A.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gristmill.errors import UsageError
from gristmill.kernels import text_characters, text_layout, text_tokens
from gristmill.stages.text.filters import statistics as s
from gristmill.stages.text.filters.published.rules import FilterSet, Rule, check_splitter
from gristmill.stages.text.filters.rule import ColumnFilter, check_shares
from gristmill.stages.text.filters.statistics import UNICODE, Statistic

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")


class GopherQualityFilter(FilterSet):
    """Gopher's quality rules: words, their lengths, symbols, bullets, ellipses, letters, stop words.

    A limit of None is off. Words of punctuation alone count neither for the number nor for the length of words. A text
    without words fails the first rule that is on.

    Args:
        min_doc_words: Minimum number of words.
        max_doc_words: Maximum number of words.
        min_avg_word_length: Minimum mean word length.
        max_avg_word_length: Maximum mean word length.
        max_symbol_word_ratio: Maximum number of hash signs, and of ellipses, per word.
        max_bullet_lines_ratio: Maximum share of lines that begin with a bullet or a hyphen.
        max_ellipsis_lines_ratio: Maximum share of lines that end in an ellipsis.
        min_alpha_words_ratio: Minimum share of words with a letter.
        min_stop_words: Minimum number of different stop words.
        stop_words: The stop words; None for Gopher's own.
        word_splitter: `unicode`, `space`, or `spacy` for the tokens of spaCy's English tokenizer.

    Example:
        >>> GopherQualityFilter().reason_for("Too short.")
        'too_few_words'
    """

    def __init__(
        self,
        *,
        min_doc_words: int | None = 50,
        max_doc_words: int | None = 100_000,
        min_avg_word_length: float | None = 3,
        max_avg_word_length: float | None = 10,
        max_symbol_word_ratio: float | None = 0.1,
        max_bullet_lines_ratio: float | None = 0.9,
        max_ellipsis_lines_ratio: float | None = 0.3,
        min_alpha_words_ratio: float | None = 0.8,
        min_stop_words: int | None = 2,
        stop_words: Sequence[str] | None = None,
        word_splitter: str = UNICODE,
    ) -> None:
        splitter = check_splitter(word_splitter)
        check_shares(
            self,
            max_bullet_lines_ratio=max_bullet_lines_ratio,
            max_ellipsis_lines_ratio=max_ellipsis_lines_ratio,
            min_alpha_words_ratio=min_alpha_words_ratio,
        )
        listed = tuple(STOP_WORDS if stop_words is None else stop_words)
        for word in listed:
            if word.split() != [word]:
                raise UsageError(
                    f"{type(self).__name__}(stop_words=…): {word!r} is not a single word, so it never occurs."
                )

        def of(column: int) -> Statistic:
            return s.tokens(column, splitter, listed)

        words = of(text_tokens.N_TOKENS)
        proper = of(text_tokens.PROPER_WORDS)
        hashes = Statistic(s.CHARACTERS, text_characters.HASH_CHARS)
        lines = s.layout(text_layout.BROKEN_LINES)

        def rules() -> Iterable[ColumnFilter]:
            if min_doc_words is not None:
                yield Rule("too_few_words", proper, lower=min_doc_words)
            if max_doc_words is not None:
                yield Rule("too_many_words", proper, upper=max_doc_words)
            if min_avg_word_length is not None:
                yield Rule("words_too_short", of(text_tokens.PROPER_CHARS), proper, lower=min_avg_word_length)
            if max_avg_word_length is not None:
                yield Rule("words_too_long", of(text_tokens.PROPER_CHARS), proper, upper=max_avg_word_length)
            if max_symbol_word_ratio is not None:
                yield Rule("too_many_hashes", hashes, words, nothing=1.0, upper=max_symbol_word_ratio)
                ellipses = s.layout(text_layout.ELLIPSES)
                yield Rule("too_many_ellipses", ellipses, words, nothing=1.0, upper=max_symbol_word_ratio)
            if max_bullet_lines_ratio is not None:
                bullets = s.layout(text_layout.DASHED_LINES)
                yield Rule("too_many_bullets", bullets, lines, nothing=1.0, upper=max_bullet_lines_ratio)
            if max_ellipsis_lines_ratio is not None:
                trailing = s.layout(text_layout.TRAILING_LINES)
                yield Rule("too_many_trailing_ellipses", trailing, lines, nothing=1.0, upper=max_ellipsis_lines_ratio)
            if min_alpha_words_ratio is not None:
                alpha = of(text_tokens.ALPHA_WORDS)
                yield Rule("too_few_alphabetic_words", alpha, words, lower=min_alpha_words_ratio)
            if min_stop_words is not None:
                yield Rule("too_few_stop_words", of(text_tokens.STOP_WORDS), lower=min_stop_words)

        super().__init__(rules())


TOP_NGRAMS = ((2, 0.20), (3, 0.18), (4, 0.16))
DUPLICATE_NGRAMS = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.10))


class GopherRepetitionFilter(FilterSet):
    """Gopher's repetition rules: repeated paragraphs, lines and n-grams (its table A1).

    A limit of None is off, as is an empty sequence of n-grams. Shares of characters refer to the whole text.

    Args:
        max_paragraph_ratio: Maximum share of repeated paragraphs.
        max_paragraph_char_ratio: Maximum share of characters in repeated paragraphs.
        max_line_ratio: Maximum share of repeated lines.
        max_line_char_ratio: Maximum share of characters in repeated lines.
        top_ngrams: Lengths of n-grams, each with the maximum share of the most frequent one.
        duplicate_ngrams: Lengths of n-grams, each with the maximum share of repeated ones.
        word_splitter: `unicode`, `space`, or `spacy` for the tokens of spaCy's English tokenizer.

    Example:
        >>> GopherRepetitionFilter().reason_for("again and again " * 20)
        'top_2gram_repeats'
    """

    def __init__(
        self,
        *,
        max_line_ratio: float | None = 0.3,
        max_paragraph_ratio: float | None = 0.3,
        max_line_char_ratio: float | None = 0.2,
        max_paragraph_char_ratio: float | None = 0.2,
        top_ngrams: Sequence[tuple[int, float]] = TOP_NGRAMS,
        duplicate_ngrams: Sequence[tuple[int, float]] = DUPLICATE_NGRAMS,
        word_splitter: str = UNICODE,
    ) -> None:
        splitter = check_splitter(word_splitter)
        check_shares(
            self,
            max_line_ratio=max_line_ratio,
            max_paragraph_ratio=max_paragraph_ratio,
            max_line_char_ratio=max_line_char_ratio,
            max_paragraph_char_ratio=max_paragraph_char_ratio,
        )
        paragraphs = s.layout(text_layout.RUN_PARAGRAPHS)
        lines = s.layout(text_layout.RUN_LINES)

        def rules() -> Iterable[ColumnFilter]:
            yield Rule("empty", s.N_CHARS, lower=1)
            for reason, column, whole, limit in (
                ("repeated_paragraphs", text_layout.REPEATED_RUN_PARAGRAPHS, paragraphs, max_paragraph_ratio),
                (
                    "repeated_paragraph_chars",
                    text_layout.REPEATED_RUN_PARAGRAPH_CHARS,
                    s.N_CHARS,
                    max_paragraph_char_ratio,
                ),
                ("repeated_lines", text_layout.REPEATED_RUN_LINES, lines, max_line_ratio),
                ("repeated_line_chars", text_layout.REPEATED_RUN_LINE_CHARS, s.N_CHARS, max_line_char_ratio),
            ):
                if limit is not None:
                    yield Rule(reason, s.layout(column), whole, upper=limit)
            for n, share in top_ngrams:
                yield Rule(f"top_{n}gram_repeats", Statistic(s.WEIGHED_NGRAM, 0, n, splitter), s.N_CHARS, upper=share)
            for n, share in duplicate_ngrams:
                yield Rule(f"duplicate_{n}grams", Statistic(s.JOINED_NGRAM, 0, n, splitter), s.N_CHARS, upper=share)

        super().__init__(rules())
