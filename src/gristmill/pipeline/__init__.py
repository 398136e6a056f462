"""`Pipeline` and the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.pipeline.pipeline import Pipeline
    from gristmill.pipeline.workflow import WorkflowBase, WorkflowRunResult

__all__ = ["Pipeline", "WorkflowBase", "WorkflowRunResult"]

_HOMES = {"Pipeline": "pipeline", "WorkflowBase": "workflow", "WorkflowRunResult": "workflow"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
