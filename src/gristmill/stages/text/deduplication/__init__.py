"""Deduplication of texts, under its published names; the workflows are in `gristmill.stages.deduplication`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.deduplication.removal_workflow import TextDuplicatesRemovalWorkflow
    from gristmill.stages.text.deduplication.semantic import TextSemanticDeduplicationWorkflow

__all__ = ["TextDuplicatesRemovalWorkflow", "TextSemanticDeduplicationWorkflow"]

__getattr__, __dir__ = lazy_names(
    __name__, {"removal_workflow": ["TextDuplicatesRemovalWorkflow"], "semantic": ["TextSemanticDeduplicationWorkflow"]}
)
