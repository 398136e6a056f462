"""Fuzzy deduplication: documents that share most of their word sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.deduplication.fuzzy.workflow import FuzzyDeduplicationWorkflow

__all__ = ["FuzzyDeduplicationWorkflow"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gristmill.stages.deduplication.fuzzy import workflow

    return getattr(workflow, name)
