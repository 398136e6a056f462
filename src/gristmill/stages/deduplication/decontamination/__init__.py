"""Decontamination: finds documents that contain benchmark items, and drops, cuts or marks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.deduplication.decontamination.workflow import DecontaminationWorkflow

__all__ = ["DecontaminationWorkflow"]

__getattr__, __dir__ = lazy_names(__name__, {"workflow": __all__})
