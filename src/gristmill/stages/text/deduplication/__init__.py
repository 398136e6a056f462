"""Deduplication of texts, under the names that scripts know; the workflows live in `gristmill.stages.deduplication`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.text.deduplication.removal_workflow import TextDuplicatesRemovalWorkflow
    from gristmill.stages.text.deduplication.semantic import TextSemanticDeduplicationWorkflow

_HOMES = {"TextDuplicatesRemovalWorkflow": "removal_workflow", "TextSemanticDeduplicationWorkflow": "semantic"}

__all__ = ["TextDuplicatesRemovalWorkflow", "TextSemanticDeduplicationWorkflow"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
