"""Extraction by jusText: paragraphs are judged by length, links and stop words, and by their neighbours."""

from __future__ import annotations

from gristmill.errors import optional_module
from gristmill.stages.text.download.html_extractors.base import NON_SPACED_LANGUAGES, HTMLExtractorAlgorithm


class JusTextExtractor(HTMLExtractorAlgorithm):
    """Extracts text with jusText; the parameters are those of `justext.justext`.

    Args:
        length_low: Number of characters below which a paragraph is short.
        length_high: Number of characters above which it is long.
        stopwords_low: Share of stop words above which a paragraph may be good.
        stopwords_high: Share above which it is good.
        max_link_density: Maximum share of characters in links.
        max_heading_distance: Maximum characters between a heading and a good paragraph to keep the heading.
        no_headings: Treat headings like other paragraphs.
        is_boilerplate: Whether to remove paragraphs judged as boilerplate. None does so except in languages without
            spaces between words, which jusText cannot judge.

    Example:
        >>> JusTextExtractor(is_boilerplate=False).extract_text("<p>A line.</p>", frozenset({"a"}), "ENGLISH")
        ['A line.']
    """

    def __init__(
        self,
        length_low: int = 70,
        length_high: int = 200,
        stopwords_low: float = 0.30,
        stopwords_high: float = 0.32,
        max_link_density: float = 0.20,
        max_heading_distance: int = 200,
        no_headings: bool = False,
        is_boilerplate: bool | None = None,
    ) -> None:
        self.length_low = length_low
        self.length_high = length_high
        self.stopwords_low = stopwords_low
        self.stopwords_high = stopwords_high
        self.max_link_density = max_link_density
        self.max_heading_distance = max_heading_distance
        self.no_headings = no_headings
        self.is_boilerplate = is_boilerplate

    def extract_text(self, html: str, stop_words: frozenset[str], language: str) -> list[str] | None:
        """The paragraphs of the main text; None for a page that jusText cannot parse."""
        judged = optional_module("justext", "JusTextExtractor")
        core = optional_module("justext.core", "JusTextExtractor")
        broken = optional_module("lxml.etree", "JusTextExtractor").LxmlError
        try:
            paragraphs = judged.justext(
                html.encode("utf-8", "replace"),
                stop_words,
                length_low=self.length_low,
                length_high=self.length_high,
                stopwords_low=self.stopwords_low,
                stopwords_high=self.stopwords_high,
                max_link_density=self.max_link_density,
                max_heading_distance=self.max_heading_distance,
                no_headings=self.no_headings,
                encoding="utf-8",
            )
        except (core.JustextError, broken, ValueError):
            return None
        leave_out = language not in NON_SPACED_LANGUAGES if self.is_boilerplate is None else self.is_boilerplate
        return [paragraph.text for paragraph in paragraphs if not (leave_out and paragraph.is_boilerplate)]
