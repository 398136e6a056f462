"""Extraction by Resiliparse: fast rules over names and places of elements."""

from __future__ import annotations

from gristmill.errors import optional_module
from gristmill.stages.text.download.html_extractors.base import HTMLExtractorAlgorithm, paragraphs_of, with_stop_words


class ResiliparseExtractor(HTMLExtractorAlgorithm):
    """Extracts text with Resiliparse, and keeps the paragraphs that read like text.

    Args:
        required_stopword_density: Minimum share of stop words in a paragraph.
        main_content: Remove menus, footers and similar elements.
        alt_texts: Keep the descriptions of images.

    Example:
        >>> page = "<main><p>This is the text of a page.</p></main>"
        >>> ResiliparseExtractor().extract_text(page, frozenset({"this", "is", "the", "of", "a"}), "ENGLISH")
        ['This is the text of a page.']
    """

    def __init__(
        self, required_stopword_density: float = 0.32, main_content: bool = True, alt_texts: bool = False
    ) -> None:
        self.required_stopword_density = required_stopword_density
        self.main_content = main_content
        self.alt_texts = alt_texts

    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        """The paragraphs of the main text."""
        extract = optional_module("resiliparse.extract.html2text", "ResiliparseExtractor").extract_plain_text
        paragraphs = paragraphs_of(extract(html, main_content=self.main_content, alt_texts=self.alt_texts))
        return with_stop_words(paragraphs, stop_words, language, required_density=self.required_stopword_density)
