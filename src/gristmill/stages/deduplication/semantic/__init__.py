"""Semantic deduplication: documents whose embeddings point in nearly the same direction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.deduplication.semantic.workflow import SemanticDeduplicationWorkflow

__all__ = ["SemanticDeduplicationWorkflow"]

__getattr__, __dir__ = lazy_names(__name__, {"workflow": __all__})
