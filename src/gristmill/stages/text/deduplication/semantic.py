"""Deduplication of texts by meaning, under the module that scripts name."""

from __future__ import annotations

from gristmill.stages.deduplication.semantic.text_workflow import TextSemanticDeduplicationWorkflow

__all__ = ["TextSemanticDeduplicationWorkflow"]
