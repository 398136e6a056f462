"""Alias of `gristmill.stages.base`."""

from __future__ import annotations

from gristmill.stages.base import CompositeStage, ProcessingStage, get_stage_class

__all__ = ["CompositeStage", "ProcessingStage", "get_stage_class"]
