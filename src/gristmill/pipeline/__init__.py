"""`Pipeline` and the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.pipeline.pipeline import Pipeline
    from gristmill.pipeline.workflow import WorkflowBase, WorkflowRunResult

__all__ = ["Pipeline", "WorkflowBase", "WorkflowRunResult"]

__getattr__, __dir__ = lazy_names(
    __name__, {"pipeline": ["Pipeline"], "workflow": ["WorkflowBase", "WorkflowRunResult"]}
)
