"""Deduplication of texts by meaning, under its published module name."""

from __future__ import annotations

from gristmill.stages.deduplication.semantic.text_workflow import TextSemanticDeduplicationWorkflow

__all__ = ["TextSemanticDeduplicationWorkflow"]
