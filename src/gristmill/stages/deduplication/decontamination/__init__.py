"""Decontamination: documents that hold items of benchmarks are found and dropped, cut or marked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.deduplication.decontamination.workflow import DecontaminationWorkflow

__all__ = ["DecontaminationWorkflow"]

__getattr__, __dir__ = lazy_names(__name__, {"workflow": __all__})
