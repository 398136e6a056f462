"""Embeddings: a vector for every document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.text.embedders.base import EmbeddingCreatorStage, EmbeddingModelStage

__all__ = ["EmbeddingCreatorStage", "EmbeddingModelStage"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gristmill.stages.text.embedders import base

        return getattr(base, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
