"""Documents from the web: URL lists, downloads, and reading and extraction of downloaded files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.download.arxiv.stage import ArxivDownloadExtractStage
    from gristmill.stages.text.download.base import (
        DocumentDownloader,
        DocumentDownloadExtractStage,
        DocumentExtractor,
        DocumentIterator,
        URLGenerator,
    )
    from gristmill.stages.text.download.common_crawl.download import CommonCrawlWARCReader
    from gristmill.stages.text.download.common_crawl.stage import CommonCrawlDownloadExtractStage
    from gristmill.stages.text.download.wikipedia.stage import WikipediaDownloadExtractStage

__all__ = [
    "ArxivDownloadExtractStage",
    "CommonCrawlDownloadExtractStage",
    "CommonCrawlWARCReader",
    "DocumentDownloadExtractStage",
    "DocumentDownloader",
    "DocumentExtractor",
    "DocumentIterator",
    "URLGenerator",
    "WikipediaDownloadExtractStage",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "arxiv.stage": ["ArxivDownloadExtractStage"],
        "base": [
            "DocumentDownloadExtractStage",
            "DocumentDownloader",
            "DocumentExtractor",
            "DocumentIterator",
            "URLGenerator",
        ],
        "common_crawl.download": ["CommonCrawlWARCReader"],
        "common_crawl.stage": ["CommonCrawlDownloadExtractStage"],
        "wikipedia.stage": ["WikipediaDownloadExtractStage"],
    },
)
