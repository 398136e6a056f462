"""Algorithms that find the text of a page, behind one interface."""

from __future__ import annotations

from gristmill.stages.text.download.html_extractors.base import HTMLExtractorAlgorithm
from gristmill.stages.text.download.html_extractors.justext import JusTextExtractor
from gristmill.stages.text.download.html_extractors.resiliparse import ResiliparseExtractor
from gristmill.stages.text.download.html_extractors.trafilatura import TrafilaturaExtractor

__all__ = ["HTMLExtractorAlgorithm", "JusTextExtractor", "ResiliparseExtractor", "TrafilaturaExtractor"]
