"""Reads the pages of a Wikipedia dump, as wikitext."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from typing import Any

from gristmill.stages.text.download.base.iterator import DocumentIterator
from gristmill.storage.mediawiki_dump import Problem, read_pages, site_of
from gristmill.storage.row_formats import Broken
from gristmill.wikitext import page_kind

_LOGGER = logging.getLogger(__name__)


class WikipediaIterator(DocumentIterator):
    """The pages of a dump's main namespace without redirects; a damaged page or stream affects only itself.

    Args:
        language: Language code, for the pages' URLs.
        log_frequency: Log progress after this many pages.

    Example:
        >>> pages = WikipediaIterator("de").iterate("dewiki-latest-pages-articles-multistream.xml.bz2")
    """

    def __init__(self, language: str = "en", log_frequency: int = 1000) -> None:
        self.language = language
        self.log_frequency = log_frequency

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | Broken]:
        """Records with the page's wikitext in `raw_content`, and with `kind`: `article`, `list` or `disambiguation`."""
        site = site_of(file_path, language=self.language)
        if isinstance(site, Problem):
            yield Broken(*site)
            return
        source, count = os.path.basename(file_path), 0
        for page in read_pages(file_path):
            if isinstance(page, Problem):
                yield Broken(*page)
                continue
            kind = page_kind(page.title, page.wikitext, redirect=page.redirect)
            if page.namespace != 0 or kind == "redirect":
                continue
            count += 1
            if self.log_frequency and count % self.log_frequency == 0:
                _LOGGER.info("%s: %d pages", source, count)
            yield {
                "id": page.id,
                "title": page.title,
                "url": site.url(page.title),
                "language": self.language,
                "source_id": source,
                "kind": kind,
                "raw_content": page.wikitext,
            }

    def output_columns(self) -> list[str]:
        """The keys of the records."""
        return ["id", "title", "url", "language", "source_id", "kind", "raw_content"]
