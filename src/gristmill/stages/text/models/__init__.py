"""Tokenization and model inference on documents: on a GPU where there is one, on a CPU everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.text.models.model import ModelStage
    from gristmill.stages.text.models.tokenizer import TokenizerStage

__all__ = ["ModelStage", "TokenizerStage"]


def __getattr__(name: str) -> Any:
    if name == "ModelStage":
        from gristmill.stages.text.models.model import ModelStage

        return ModelStage
    if name == "TokenizerStage":
        from gristmill.stages.text.models.tokenizer import TokenizerStage

        return TokenizerStage
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
