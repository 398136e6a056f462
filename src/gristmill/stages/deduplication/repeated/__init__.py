"""Deduplication inside documents: repeated lines, paragraphs and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.deduplication.repeated.line_workflow import LineDeduplicationWorkflow

__all__ = ["LineDeduplicationWorkflow"]

__getattr__, __dir__ = lazy_names(__name__, {"line_workflow": ["LineDeduplicationWorkflow"]})
