"""Wikipedia: its dumps and their pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.download.wikipedia.download import WikipediaDownloader
    from gristmill.stages.text.download.wikipedia.extract import WikipediaExtractor
    from gristmill.stages.text.download.wikipedia.iterator import WikipediaIterator
    from gristmill.stages.text.download.wikipedia.stage import WikipediaDownloadExtractStage
    from gristmill.stages.text.download.wikipedia.url_generation import WikipediaUrlGenerator

__all__ = [
    "WikipediaDownloadExtractStage",
    "WikipediaDownloader",
    "WikipediaExtractor",
    "WikipediaIterator",
    "WikipediaUrlGenerator",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "download": ["WikipediaDownloader"],
        "extract": ["WikipediaExtractor"],
        "iterator": ["WikipediaIterator"],
        "stage": ["WikipediaDownloadExtractStage"],
        "url_generation": ["WikipediaUrlGenerator"],
    },
)
