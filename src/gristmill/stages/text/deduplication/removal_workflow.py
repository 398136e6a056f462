"""The removal of listed documents, under the module that scripts name."""

from __future__ import annotations

from gristmill.stages.deduplication.removal_workflow import TextDuplicatesRemovalWorkflow

__all__ = ["TextDuplicatesRemovalWorkflow"]
