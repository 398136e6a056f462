"""Exact deduplication: documents whose texts are equal byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.deduplication.exact.workflow import ExactDeduplicationWorkflow

__all__ = ["ExactDeduplicationWorkflow"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gristmill.stages.deduplication.exact import workflow

    return getattr(workflow, name)
