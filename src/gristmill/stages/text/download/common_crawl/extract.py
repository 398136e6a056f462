"""Turns a Common Crawl page into a document."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from gristmill.errors import UnknownNameError, UsageError, did_you_mean, optional_module
from gristmill.stages.text.download.base.extract import DocumentExtractor
from gristmill.stages.text.download.html_extractors import (
    HTMLExtractorAlgorithm,
    JusTextExtractor,
    ResiliparseExtractor,
    TrafilaturaExtractor,
)
from gristmill.stages.text.download.html_extractors.base import NON_SPACED_LANGUAGES
from gristmill.stages.text.download.utils import decode_html, lang_detect

_ALGORITHMS: Mapping[str, type[HTMLExtractorAlgorithm]] = {
    "justext": JusTextExtractor,
    "resiliparse": ResiliparseExtractor,
    "trafilatura": TrafilaturaExtractor,
}


class CommonCrawlHTMLExtractor(DocumentExtractor):
    """Detects the language of a page and extracts its text; drops pages in languages without stop words.

    Args:
        algorithm: `"justext"` (the default), `"resiliparse"`, `"trafilatura"`, or your own algorithm.
        algorithm_kwargs: Parameters of an algorithm that is passed by name.
        stop_lists: Stop words by the English name of the language in capital letters; only these languages are kept.
            None uses those of jusText, and keeps languages without spaces between words.

    Example:
        >>> extractor = CommonCrawlHTMLExtractor("resiliparse", {"required_stopword_density": 0.2})
        >>> extractor.output_columns()
        ['url', 'warc_id', 'source_id', 'language', 'text']
    """

    def __init__(
        self,
        algorithm: HTMLExtractorAlgorithm | str | None = None,
        algorithm_kwargs: Mapping[str, Any] | None = None,
        stop_lists: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        if isinstance(algorithm, HTMLExtractorAlgorithm):
            if algorithm_kwargs:
                raise UsageError(
                    "algorithm_kwargs applies to an algorithm passed by name; set them on the object itself."
                )
            self.algorithm = algorithm
        else:
            name = "justext" if algorithm is None else algorithm
            if not isinstance(name, str) or name not in _ALGORITHMS:
                known = ", ".join(map(repr, _ALGORITHMS))
                raise UnknownNameError(
                    f"There is no extraction algorithm {name!r}; choose one of "
                    f"{known}.{did_you_mean(str(name), _ALGORITHMS)} An object with extract_text() also works.",
                    name=str(name),
                )
            self.algorithm = _ALGORITHMS[name](**(algorithm_kwargs or {}))
        self.stop_lists = None if stop_lists is None else {key.upper(): words for key, words in stop_lists.items()}

    def extract(self, record: dict[str, Any]) -> dict[str, Any] | None:
        """The document of a page; None if its language is not in `stop_lists` or it has no text."""
        html = decode_html(record["content"])
        if html is None:
            return None
        language = lang_detect(html)
        words = _stop_words(language) if self.stop_lists is None else self.stop_lists.get(language)
        paragraphs = None if words is None else self.algorithm.extract_text(html, words, language)
        if not paragraphs:
            return None
        kept = {name: record[name] for name in ("url", "warc_id", "source_id")}
        return {**kept, "language": language, "text": "\n\n".join(paragraphs)}

    def input_columns(self) -> list[str]:
        """The page and its origin."""
        return ["url", "warc_id", "source_id", "content"]

    def output_columns(self) -> list[str]:
        """The document and its origin."""
        return ["url", "warc_id", "source_id", "language", "text"]


@cache
def _stop_words(language: str) -> frozenset[str] | None:
    """The stop words of jusText for a language; none are needed for languages without spaces."""
    if language in NON_SPACED_LANGUAGES:
        return frozenset()
    justext = optional_module("justext", "CommonCrawlHTMLExtractor")
    names = {name.upper(): name for name in justext.get_stoplists()}
    words: frozenset[str] | None = justext.get_stoplist(names[language]) if language in names else None
    return words
