"""Text and facts from web pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.extraction.stage import HtmlExtractor

__all__ = ["HtmlExtractor"]

__getattr__, __dir__ = lazy_names(__name__, {"stage": ["HtmlExtractor"]})
