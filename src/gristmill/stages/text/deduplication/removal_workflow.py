"""The removal of listed documents, under its published module name."""

from __future__ import annotations

from gristmill.stages.deduplication.removal_workflow import TextDuplicatesRemovalWorkflow

__all__ = ["TextDuplicatesRemovalWorkflow"]
