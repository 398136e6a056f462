"""The cleaning of C4 (Raffel et al. 2020, "Exploring the Limits of Transfer Learning", section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from gristmill.errors import optional_module
from gristmill.kernels import text_clean
from gristmill.kernels.text_column import Integers, Mask, TextColumn, text_column
from gristmill.stages.text.filters.published.rules import check_splitter
from gristmill.stages.text.filters.statistics import POLICY_PHRASES, SPACY, UNICODE

REASONS = {
    text_clean.PLACEHOLDER_TEXT: "placeholder_text",
    text_clean.CURLY_BRACKET: "curly_bracket",
    text_clean.TOO_FEW_SENTENCES: "too_few_sentences",
}
LINE_REASONS = {
    "word_too_long": text_clean.LONG_WORD_LINES,
    "no_end_mark": text_clean.OPEN_LINES,
    "too_few_words": text_clean.SHORT_LINES,
    "javascript": text_clean.SCRIPT_LINES,
    "policy": text_clean.POLICY_LINES,
}


@dataclass
class CleanedTexts:
    """The result of cleaning a column.

    Attributes:
        texts: The cleaned texts; empty for documents that were dropped.
        kept: Which documents are kept.
        outcome: For each document, the key of its reason in `REASONS`; 0 if it is kept.
        sentences: Number of sentences, counted until there are enough; the score of `too_few_sentences`.
        removed_lines: Number of removed lines over all documents, by reason of `LINE_REASONS`.
    """

    texts: pa.Array
    kept: Mask
    outcome: Integers
    sentences: Integers
    removed_lines: dict[str, int]

    def reason(self, row: int) -> str | None:
        """Why a document was dropped; None if it is kept."""
        return REASONS.get(int(self.outcome[row]))


class C4QualityFilter:
    r"""C4's rules, which remove lines from texts and then drop texts with too little left.

    A line is kept if it ends with . ? ! or a quote, has enough words and none too long, and mentions neither JavaScript
    nor phrases of legal notices; citation marks are removed from it. A text with filler ("lorem ipsum") or a curly
    bracket in a line that would be kept is dropped, as is one with too few sentences. A limit of None is off.

    Args:
        remove_citations: Remove [1], [edit] and [citation needed].
        filter_no_terminal_punct: Remove lines without terminal punctuation.
        min_num_sentences: Minimum number of sentences in the remaining text.
        min_words_per_line: Minimum number of words per line, split at whitespace.
        max_word_length: Maximum number of characters per word.
        filter_lorem_ipsum: Drop texts with filler.
        filter_javascript: Remove lines that mention JavaScript.
        filter_curly_bracket: Drop texts with a curly bracket.
        filter_policy: Remove lines with phrases of legal notices.
        word_splitter: How to find sentences: `unicode`, or `spacy` for its rule-based sentences, which is far slower.

    Example:
        >>> C4QualityFilter(min_num_sentences=1).clean(pa.array(["A line that stays.\nA menu"])).texts.to_pylist()
        ['A line that stays.']
    """

    def __init__(
        self,
        *,
        remove_citations: bool = True,
        filter_no_terminal_punct: bool = True,
        min_num_sentences: int | None = 5,
        min_words_per_line: int | None = 3,
        max_word_length: int | None = 1000,
        filter_lorem_ipsum: bool = True,
        filter_javascript: bool = True,
        filter_curly_bracket: bool = True,
        filter_policy: bool = True,
        word_splitter: str = UNICODE,
    ) -> None:
        self.min_num_sentences = min_num_sentences
        self.word_splitter = check_splitter(word_splitter)
        self._options: dict[str, Any] = {
            "remove_citations": remove_citations,
            "needs_end_mark": filter_no_terminal_punct,
            "min_words": min_words_per_line,
            "max_word_chars": max_word_length,
            "drop_placeholder": filter_lorem_ipsum,
            "drop_script": filter_javascript,
            "drop_curly": filter_curly_bracket,
            "drop_policy": filter_policy,
        }

    def clean(self, column: pa.Array | pa.ChunkedArray | TextColumn, *, alive: Mask | None = None) -> CleanedTexts:
        """Clean and decide on every document of a column; null counts as empty."""
        texts = column if isinstance(column, TextColumn) else text_column(column)
        rows = np.ones(len(texts), dtype=np.bool_) if alive is None else alive
        by_spacy = self.word_splitter == SPACY and self.min_num_sentences is not None
        cleaned = text_clean.clean_lines(
            texts,
            rows,
            policy_phrases=POLICY_PHRASES,
            min_sentences=None if by_spacy else self.min_num_sentences,
            **self._options,
        )
        offsets, data = pa.py_buffer(cleaned.offsets), pa.py_buffer(cleaned.data)
        made = pa.Array.from_buffers(pa.large_string(), len(texts), [None, offsets, data])
        outcome, sentences = cleaned.outcome, cleaned.sentences
        if by_spacy:
            self._count_with_spacy(made, rows, outcome, sentences)
        return CleanedTexts(
            texts=made,
            kept=rows & (outcome == text_clean.KEPT),
            outcome=outcome,
            sentences=sentences,
            removed_lines={reason: int(cleaned.lines[:, place].sum()) for reason, place in LINE_REASONS.items()},
        )

    def _count_with_spacy(self, texts: pa.Array, rows: Mask, outcome: Integers, sentences: Integers) -> None:
        least = self.min_num_sentences or 0
        language = _sentencizer()
        for row in np.flatnonzero(rows & (outcome == text_clean.KEPT)):
            text = texts[int(row)].as_py()
            for line in text.split("\n") if text else ():
                language.max_length = max(language.max_length, len(line) + 10)
                sentences[row] += max(1, sum(1 for _ in language(line).sents))
                if sentences[row] >= least:
                    break
            if sentences[row] < least:
                outcome[row] = text_clean.TOO_FEW_SENTENCES


@lru_cache(maxsize=1)
def _sentencizer() -> Any:
    language = optional_module("spacy", "word_splitter='spacy'").blank("en")
    language.add_pipe("sentencizer")
    return language
