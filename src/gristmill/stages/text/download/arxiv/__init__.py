"""arXiv: the sources of its papers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.download.arxiv.download import ArxivDownloader
    from gristmill.stages.text.download.arxiv.extract import ArxivExtractor
    from gristmill.stages.text.download.arxiv.iterator import ArxivIterator
    from gristmill.stages.text.download.arxiv.stage import ArxivDownloadExtractStage
    from gristmill.stages.text.download.arxiv.url_generation import ArxivUrlGenerator

__all__ = ["ArxivDownloadExtractStage", "ArxivDownloader", "ArxivExtractor", "ArxivIterator", "ArxivUrlGenerator"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "download": ["ArxivDownloader"],
        "extract": ["ArxivExtractor"],
        "iterator": ["ArxivIterator"],
        "stage": ["ArxivDownloadExtractStage"],
        "url_generation": ["ArxivUrlGenerator"],
    },
)
