"""Exact deduplication: documents whose texts are equal byte for byte."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.deduplication.exact.workflow import ExactDeduplicationWorkflow

__all__ = ["ExactDeduplicationWorkflow"]

__getattr__, __dir__ = lazy_names(__name__, {"workflow": __all__})
