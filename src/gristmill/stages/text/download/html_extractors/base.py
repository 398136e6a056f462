"""The interface of extraction algorithms, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection

NON_SPACED_LANGUAGES = frozenset({"BURMESE", "CHINESE", "JAPANESE", "KHMER", "KOREAN", "THAI", "TIBETAN"})
"""Languages without spaces between words, whose paragraphs are not judged by stop words."""


class HTMLExtractorAlgorithm(ABC):
    """Extracts the text of a page. Subclass it for your own algorithm."""

    @abstractmethod
    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        """The paragraphs of the page's main text; None if it cannot be parsed.

        Args:
            html: The page.
            stop_words: Frequent words of its language, in lower case.
            language: The English name of the language in capital letters.
        """


def with_stop_words(
    paragraphs: list[str], stop_words: Collection[str], language: str, *, required_density: float
) -> list[str]:
    """Paragraphs with at least this share of stop words; all, for languages without spaces."""
    if language in NON_SPACED_LANGUAGES:
        return paragraphs
    kept = []
    for paragraph in paragraphs:
        words = paragraph.lower().split()
        if words and sum(word in stop_words for word in words) >= required_density * len(words):
            kept.append(paragraph)
    return kept


def paragraphs_of(text: str | None) -> list[str]:
    """The lines of a text that are not empty."""
    return [line for line in map(str.strip, (text or "").split("\n")) if line]
