"""Deduplication: workflows that find documents which say the same, and remove all but one of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.deduplication.exact.workflow import ExactDeduplicationWorkflow
    from gristmill.stages.deduplication.fuzzy.workflow import FuzzyDeduplicationWorkflow
    from gristmill.stages.deduplication.removal_workflow import TextDuplicatesRemovalWorkflow
    from gristmill.stages.deduplication.semantic.text_workflow import TextSemanticDeduplicationWorkflow
    from gristmill.stages.deduplication.semantic.workflow import SemanticDeduplicationWorkflow

__all__ = [
    "ExactDeduplicationWorkflow",
    "FuzzyDeduplicationWorkflow",
    "SemanticDeduplicationWorkflow",
    "TextDuplicatesRemovalWorkflow",
    "TextSemanticDeduplicationWorkflow",
]

_HOMES = {
    "ExactDeduplicationWorkflow": "exact.workflow",
    "FuzzyDeduplicationWorkflow": "fuzzy.workflow",
    "SemanticDeduplicationWorkflow": "semantic.workflow",
    "TextDuplicatesRemovalWorkflow": "removal_workflow",
    "TextSemanticDeduplicationWorkflow": "semantic.text_workflow",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
