"""Another name for `gristmill.stages.function_decorators`."""

from __future__ import annotations

from gristmill.stages.function_decorators import processing_stage

__all__ = ["processing_stage"]
