"""Tokenization and model inference on documents: on a GPU if there is one, otherwise on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.models.model import ModelStage
    from gristmill.stages.text.models.token_counter import TokenCounter
    from gristmill.stages.text.models.tokenizer import TokenizerStage

__all__ = ["ModelStage", "TokenCounter", "TokenizerStage"]

__getattr__, __dir__ = lazy_names(
    __name__, {"model": ["ModelStage"], "token_counter": ["TokenCounter"], "tokenizer": ["TokenizerStage"]}
)
