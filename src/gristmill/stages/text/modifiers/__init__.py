"""Modifiers: changes to the text of documents, applied by `Modify`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier, DocumentModifier, ModifiedColumn
    from gristmill.stages.text.modifiers.fasttext import FastTextLabelModifier
    from gristmill.stages.text.modifiers.modifier import Modify
    from gristmill.stages.text.modifiers.pii import PiiRedactor
    from gristmill.stages.text.modifiers.string.boilerplate import BoilerPlateStringModifier
    from gristmill.stages.text.modifiers.string.cutting import LineRemover, QuotationRemover, Slicer
    from gristmill.stages.text.modifiers.string.gutenberg import GutenbergBoilerplate
    from gristmill.stages.text.modifiers.string.marks import MarkdownRemover, NewlineNormalizer, UrlRemover
    from gristmill.stages.text.modifiers.unicode import UnicodeReformatter

__all__ = [
    "BoilerPlateStringModifier",
    "ColumnModifier",
    "DocumentModifier",
    "FastTextLabelModifier",
    "GutenbergBoilerplate",
    "LineRemover",
    "MarkdownRemover",
    "ModifiedColumn",
    "Modify",
    "NewlineNormalizer",
    "PiiRedactor",
    "QuotationRemover",
    "Slicer",
    "UnicodeReformatter",
    "UrlRemover",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "doc_modifier": ["ColumnModifier", "DocumentModifier", "ModifiedColumn"],
        "fasttext": ["FastTextLabelModifier"],
        "modifier": ["Modify"],
        "pii": ["PiiRedactor"],
        "string.boilerplate": ["BoilerPlateStringModifier"],
        "string.cutting": ["LineRemover", "QuotationRemover", "Slicer"],
        "string.gutenberg": ["GutenbergBoilerplate"],
        "string.marks": ["MarkdownRemover", "NewlineNormalizer", "UrlRemover"],
        "unicode": ["UnicodeReformatter"],
        "url": ["UrlNormalizer"],
    },
)
