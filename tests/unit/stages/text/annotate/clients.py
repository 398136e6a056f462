"""A client in this process whose model is a Python function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gristmill.models.client import Answer, AsyncLLMClient


class FunctionModel(AsyncLLMClient):
    """Answers with what a function makes of the messages; counts tokens as words."""

    def __init__(self, model: Callable[[list[dict[str, str]]], Any], **options: Any) -> None:
        super().__init__(**{"base_delay": 0.0, **options})
        self.model = model
        self.asked: list[list[dict[str, str]]] = []

    async def _answer_impl(self, *, messages: Any, **_: Any) -> Answer:
        self.asked.append(messages)
        made = self.model(messages)
        if isinstance(made, Exception):
            raise made
        if isinstance(made, Answer):
            return made
        prompt = sum(len(message["content"].split()) for message in messages)
        return Answer((made,), "served", prompt, len(str(made).split()), ("stop",))

    def last_words(self) -> list[str]:
        """The last message of every question."""
        return [messages[-1]["content"] for messages in self.asked]
