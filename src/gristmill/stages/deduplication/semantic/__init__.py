"""Semantic deduplication: documents whose embeddings point in nearly the same direction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.deduplication.semantic.workflow import SemanticDeduplicationWorkflow

__all__ = ["SemanticDeduplicationWorkflow"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gristmill.stages.deduplication.semantic import workflow

    return getattr(workflow, name)
