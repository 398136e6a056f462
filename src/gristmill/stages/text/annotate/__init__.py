"""Annotating and rewriting documents with a language model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.annotate.stage import LLMStage

__all__ = ["LLMStage"]

__getattr__, __dir__ = lazy_names(__name__, {"stage": __all__})
