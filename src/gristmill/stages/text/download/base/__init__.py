"""The building blocks of a download; subclass these for your own source."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.download.base.download import DocumentDownloader, DocumentDownloadStage
    from gristmill.stages.text.download.base.extract import DocumentExtractor, DocumentExtractStage
    from gristmill.stages.text.download.base.iterator import DocumentIterateExtractStage, DocumentIterator
    from gristmill.stages.text.download.base.stage import DocumentDownloadExtractStage
    from gristmill.stages.text.download.base.url_generation import URLGenerationStage, URLGenerator

__all__ = [
    "DocumentDownloadExtractStage",
    "DocumentDownloadStage",
    "DocumentDownloader",
    "DocumentExtractStage",
    "DocumentExtractor",
    "DocumentIterateExtractStage",
    "DocumentIterator",
    "URLGenerationStage",
    "URLGenerator",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "download": ["DocumentDownloadStage", "DocumentDownloader"],
        "extract": ["DocumentExtractStage", "DocumentExtractor"],
        "iterator": ["DocumentIterateExtractStage", "DocumentIterator"],
        "stage": ["DocumentDownloadExtractStage"],
        "url_generation": ["URLGenerationStage", "URLGenerator"],
    },
)
