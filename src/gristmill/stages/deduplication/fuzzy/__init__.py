"""Fuzzy deduplication: documents that share most of their word sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.deduplication.fuzzy.workflow import FuzzyDeduplicationWorkflow

__all__ = ["FuzzyDeduplicationWorkflow"]

__getattr__, __dir__ = lazy_names(__name__, {"workflow": __all__})
