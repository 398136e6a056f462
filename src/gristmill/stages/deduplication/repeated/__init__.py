"""Deduplication inside documents: repeated lines, paragraphs, sentences and passages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.deduplication.repeated.line_workflow import LineDeduplicationWorkflow
    from gristmill.stages.deduplication.repeated.substring_workflow import SubstringDeduplicationWorkflow

__all__ = ["LineDeduplicationWorkflow", "SubstringDeduplicationWorkflow"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "line_workflow": ["LineDeduplicationWorkflow"],
        "substring_workflow": ["SubstringDeduplicationWorkflow"],
    },
)
