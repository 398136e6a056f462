"""Extraction by Trafilatura: careful rules, with fallback to jusText and readability."""

from __future__ import annotations

from typing import Any

from gristmill.errors import optional_module
from gristmill.stages.text.download.html_extractors.base import HTMLExtractorAlgorithm, paragraphs_of, with_stop_words


class TrafilaturaExtractor(HTMLExtractorAlgorithm):
    """Extracts text with Trafilatura, and keeps the paragraphs that read like text.

    Args:
        required_stopword_density: Minimum share of stop words in a paragraph.
        min_extracted_size: Number of characters below which Trafilatura tries other methods.
        min_extracted_comm_size: The same for comments.
        min_output_size: Minimum number of characters of a page's text.
        min_output_comm_size: The same for comments.
        max_tree_size: Maximum number of elements of a page; None for no limit.
        min_duplcheck_size: Minimum number of characters of a segment to check for repetition.
        max_repetitions: Maximum number of earlier occurrences of a segment.
        **extract_kwargs: Passed to `trafilatura.extract`; the last two parameters apply with `deduplicate=True`.

    Example:
        >>> page = (
        ...     "<html><body><article><p>This is the text of a page, which says something.</p></article></body></html>"
        ... )
        >>> TrafilaturaExtractor().extract_text(page, frozenset({"this", "is", "the", "of", "a"}), "ENGLISH")
        ['This is the text of a page, which says something.']
    """

    def __init__(
        self,
        required_stopword_density: float = 0.32,
        min_extracted_size: int = 250,
        min_extracted_comm_size: int = 1,
        min_output_size: int = 1,
        min_output_comm_size: int = 1,
        max_tree_size: int | None = None,
        min_duplcheck_size: int = 100,
        max_repetitions: int = 2,
        **extract_kwargs: Any,
    ) -> None:
        self.required_stopword_density = required_stopword_density
        self.min_extracted_size = min_extracted_size
        self.min_extracted_comm_size = min_extracted_comm_size
        self.min_output_size = min_output_size
        self.min_output_comm_size = min_output_comm_size
        self.max_tree_size = max_tree_size
        self.min_duplcheck_size = min_duplcheck_size
        self.max_repetitions = max_repetitions
        self.extract_kwargs = extract_kwargs

    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        """The paragraphs of the main text; None if Trafilatura finds none."""
        trafilatura = optional_module("trafilatura", "TrafilaturaExtractor")
        text = trafilatura.extract(html, config=self._config(), **self.extract_kwargs)
        if text is None:
            return None
        return with_stop_words(
            paragraphs_of(text), stop_words, language, required_density=self.required_stopword_density
        )

    def _config(self) -> Any:
        from copy import deepcopy

        config = deepcopy(optional_module("trafilatura.settings", "TrafilaturaExtractor").DEFAULT_CONFIG)
        values = {
            "MIN_EXTRACTED_SIZE": self.min_extracted_size,
            "MIN_EXTRACTED_COMM_SIZE": self.min_extracted_comm_size,
            "MIN_OUTPUT_SIZE": self.min_output_size,
            "MIN_OUTPUT_COMM_SIZE": self.min_output_comm_size,
            "MIN_DUPLCHECK_SIZE": self.min_duplcheck_size,
            "MAX_REPETITIONS": self.max_repetitions,
            "MAX_TREE_SIZE": "" if self.max_tree_size is None else self.max_tree_size,
        }
        for name, value in values.items():
            config["DEFAULT"][name] = str(value)
        return config
