"""Modifiers that work on characters, lines and marks."""

from __future__ import annotations

from gristmill.stages.text.modifiers.string.boilerplate import BoilerPlateStringModifier
from gristmill.stages.text.modifiers.string.cutting import LineRemover, QuotationRemover, Slicer
from gristmill.stages.text.modifiers.string.gutenberg import GutenbergBoilerplate
from gristmill.stages.text.modifiers.string.marks import MarkdownRemover, NewlineNormalizer, UrlRemover

__all__ = [
    "BoilerPlateStringModifier",
    "GutenbergBoilerplate",
    "LineRemover",
    "MarkdownRemover",
    "NewlineNormalizer",
    "QuotationRemover",
    "Slicer",
    "UrlRemover",
]
