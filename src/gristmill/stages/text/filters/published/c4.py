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
    """What cleaning made of a column.

    Attributes:
        texts: The cleaned texts; empty for documents that were dropped.
        kept: Which documents stay.
        outcome: Per document the key of its reason in `REASONS`, 0 for those that stay.
        sentences: Sentences found, counted until there are enough; the score of `too_few_sentences`.
        removed_lines: Per reason of `LINE_REASONS`, how many lines went, over all documents.
    """

    texts: pa.Array
    kept: Mask
    outcome: Integers
    sentences: Integers
    removed_lines: dict[str, int]

    def reason(self, row: int) -> str | None:
        """Why a document went; None where it stays."""
        return REASONS.get(int(self.outcome[row]))


class C4QualityFilter:
    r"""C4's rules, which take lines out of texts and then drop texts with too little left.

    A line stays if it ends with . ? ! or a quote, has enough words and none too long, and names neither JavaScript nor
    the phrases of legal notices; marks of citations go from it. A text with filler ("lorem ipsum") or a curly bracket
    in a line that would stay is dropped, and so is one with too few sentences. A limit of None is off.

    Args:
        remove_citations: Take out [1], [edit] and [citation needed].
        filter_no_terminal_punct: Take out lines without a mark at their end.
        min_num_sentences: The least number of sentences in what stays.
        min_words_per_line: The least number of words of a line, split at white space.
        max_word_length: The most characters of a word.
        filter_lorem_ipsum: Drop texts with filler.
        filter_javascript: Take out lines that name JavaScript.
        filter_curly_bracket: Drop texts with a curly bracket.
        filter_policy: Take out lines with phrases of legal notices.
        word_splitter: How sentences are told: `unicode`, or `spacy` for its rule-based sentences, which is far slower.

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
        """Clean and decide on every document of a column; a null counts as empty."""
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
