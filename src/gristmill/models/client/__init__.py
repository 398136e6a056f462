"""Clients of language models: the interface for stages, and access to servers that speak OpenAI's protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.models.client.llm_client import (
        Answer,
        AsyncLLMClient,
        ConversationFormatter,
        GenerationConfig,
        LLMClient,
    )
    from gristmill.models.client.openai_client import AsyncOpenAIClient, OpenAIClient

__all__ = [
    "Answer",
    "AsyncLLMClient",
    "AsyncOpenAIClient",
    "ConversationFormatter",
    "GenerationConfig",
    "LLMClient",
    "OpenAIClient",
]

_OPENAI = ["AsyncOpenAIClient", "OpenAIClient"]
__getattr__, __dir__ = lazy_names(
    __name__, {"llm_client": [name for name in __all__ if name not in _OPENAI], "openai_client": _OPENAI}
)
