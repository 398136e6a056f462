"""Embeddings: a vector for every document."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.embedders.base import EmbeddingCreatorStage, EmbeddingModelStage

__all__ = ["EmbeddingCreatorStage", "EmbeddingModelStage"]

__getattr__, __dir__ = lazy_names(__name__, {"base": __all__})
