"""Modifiers: changes to the text of documents, applied by `Modify`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.text.modifiers.doc_modifier import ColumnModifier, DocumentModifier, ModifiedColumn
    from gristmill.stages.text.modifiers.fasttext import FastTextLabelModifier
    from gristmill.stages.text.modifiers.modifier import Modify
    from gristmill.stages.text.modifiers.pii import PiiRedactor
    from gristmill.stages.text.modifiers.string.boilerplate import BoilerPlateStringModifier
    from gristmill.stages.text.modifiers.string.cutting import LineRemover, QuotationRemover, Slicer
    from gristmill.stages.text.modifiers.string.marks import MarkdownRemover, NewlineNormalizer, UrlRemover
    from gristmill.stages.text.modifiers.unicode import UnicodeReformatter

_HOMES = {
    "BoilerPlateStringModifier": "string.boilerplate",
    "ColumnModifier": "doc_modifier",
    "DocumentModifier": "doc_modifier",
    "FastTextLabelModifier": "fasttext",
    "LineRemover": "string.cutting",
    "MarkdownRemover": "string.marks",
    "ModifiedColumn": "doc_modifier",
    "Modify": "modifier",
    "NewlineNormalizer": "string.marks",
    "PiiRedactor": "pii",
    "QuotationRemover": "string.cutting",
    "Slicer": "string.cutting",
    "UnicodeReformatter": "unicode",
    "UrlRemover": "string.marks",
}

__all__ = [
    "BoilerPlateStringModifier",
    "ColumnModifier",
    "DocumentModifier",
    "FastTextLabelModifier",
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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
