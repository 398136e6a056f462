"""The interface of a client: requests, responses and retries."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.errors import LLMRequestError, UsageError, did_you_mean
from gristmill.models.client.adaptive_limit import AdaptiveLimit

Message = Mapping[str, Any]
Messages = Sequence[Message]
LONGEST_DELAY_S = 60.0
"""Maximum pause between two attempts, unless the server requests a longer one."""


@dataclass
class GenerationConfig:
    """The sampling parameters of a request.

    Args:
        max_tokens: Maximum number of tokens to generate.
        n: Number of answers to generate.
        seed: Makes sampling repeatable on servers that support it; None leaves it to the server.
        stop: Text, or a list of texts, at which generation stops.
        stream: Receive the answer piece by piece instead of at its end.
        temperature: Sampling temperature; 0 always selects the most probable token.
        top_k: Sample only from the most probable tokens; not every server supports it.
        top_p: Sample only from the most probable tokens that together have this probability.
        extra_kwargs: Additional fields of the request, passed on unchanged.

    Example:
        >>> GenerationConfig(max_tokens=16, temperature=0.7).top_p
        0.95
    """

    max_tokens: int | None = 2048
    n: int | None = 1
    seed: int | None = 0
    stop: str | list[str] | None = None
    stream: bool = False
    temperature: float | None = 0.0
    top_k: int | None = None
    top_p: float | None = 0.95
    extra_kwargs: dict[str, Any] | None = None

    @classmethod
    def of(cls, given: GenerationConfig | Mapping[str, Any] | None) -> GenerationConfig:
        """Convert an argument to a configuration: one, its fields as a mapping, or None for the defaults.

        Raises:
            UsageError: A key is unknown.
        """
        if given is None:
            return cls()
        if isinstance(given, GenerationConfig):
            return given
        known = [field.name for field in dataclasses.fields(cls)]
        for key in given:
            if key not in known:
                raise UsageError(
                    f"generation_config has the unknown key {key!r}.{did_you_mean(str(key), known)} Known keys: "
                    f"{', '.join(known)}. Pass other fields of the request in extra_kwargs.",
                    key=key,
                )
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model answered to one request.

    Attributes:
        texts: One text per requested answer; None if the model returned no text.
        model: Name of the model that answered, as reported by the server.
        prompt_tokens: Number of tokens in the request; None if unknown.
        completion_tokens: Number of generated tokens; None if unknown.
        finish_reasons: Why each text ended: `stop`, `length`, or another reason reported by the server.
    """

    texts: tuple[str | None, ...]
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()


class ConversationFormatter(ABC):
    """Turns a conversation into one text, for models that are prompted with plain text."""

    @abstractmethod
    def format_conversation(self, conv: list[dict[str, Any]]) -> str:
        """The text to send for these messages."""


class LLMClient(ABC):
    """A client that blocks until the answer arrives."""

    @abstractmethod
    def setup(self) -> None:
        """Prepare the client in the process that uses it; called before the first request."""

    @abstractmethod
    def query_model(
        self,
        *,
        messages: Iterable[Message],
        model: str,
        conversation_formatter: ConversationFormatter | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The answers to one conversation: `generation_config.n` texts."""


class AsyncLLMClient:
    """A client that handles many requests at once.

    A subclass implements `_answer_impl`, one attempt at one request. (Clients written for NeMo Curator implement
    `_query_model_impl`, which returns only the texts.) Everything else is done here: at most `max_concurrent_requests`
    at once, fewer while the server is overloaded, and retries after transient failures.

    Args:
        max_concurrent_requests: Maximum number of concurrent requests.
        max_retries: Maximum number of retries per request. While the server merely reports that it is busy (429 or
            503), attempts are not counted and `patience_s` applies.
        base_delay: Delay in seconds before the first retry; doubled for each further one, with random jitter.

    Attributes:
        patience_s: Maximum time in seconds that a single request waits for a busy server.

    Example:
        >>> class Echo(AsyncLLMClient):
        ...     async def _answer_impl(self, *, messages, **_):
        ...         return Answer(texts=(messages[-1]["content"],))
        >>> asyncio.run(Echo().query_model(messages=[{"role": "user", "content": "hi"}], model="echo"))
        ['hi']
    """

    patience_s: float = 600.0

    def __init__(self, max_concurrent_requests: int = 5, max_retries: int = 3, base_delay: float = 1.0) -> None:
        if max_concurrent_requests < 1:
            raise UsageError(f"max_concurrent_requests={max_concurrent_requests!r}: must be at least 1.")
        if max_retries < 0:
            raise UsageError(f"max_retries={max_retries!r}: must be 0 (no retries) or a positive number.")
        self.max_concurrent_requests = max_concurrent_requests
        self.max_retries = max_retries
        self.base_delay = base_delay
        self._limits: AdaptiveLimit | None = None

    # --- for subclasses ---

    def setup(self) -> None:
        """Prepare the client in the process that uses it, before the first request: load a model, read a key."""

    async def close(self) -> None:
        """Release connections; called after the last request, in the event loop of the requests."""

    def content_digest(self) -> str | None:
        """A digest of local files that affect the answers; None for a model on a server."""
        return None

    def check_environment(self) -> None:
        """Called before a run starts: raise if a package or key is missing. Loads nothing."""

    async def _answer_impl(
        self,
        *,
        messages: Messages,
        model: str,
        conversation_formatter: ConversationFormatter | None,
        generation_config: GenerationConfig,
    ) -> Answer:
        """One attempt at one request.

        Raises:
            LLMRequestError: The attempt failed; `can_be_retried` says whether another one may succeed.
        """
        texts = await self._query_model_impl(
            messages=messages,
            model=model,
            conversation_formatter=conversation_formatter,
            generation_config=generation_config,
        )
        return Answer(texts=tuple(texts), model=model)

    async def _query_model_impl(
        self,
        *,
        messages: Iterable[Message],
        model: str,
        conversation_formatter: ConversationFormatter | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
    ) -> list[str]:
        """Like `_answer_impl`, but returns only the texts."""
        raise NotImplementedError(f"{type(self).__name__} implements neither _answer_impl nor _query_model_impl.")

    # --- for callers ---

    @property
    def limit(self) -> AdaptiveLimit:
        """The current maximum number of concurrent requests."""
        if self._limits is None:
            self._limits = AdaptiveLimit(self.max_concurrent_requests)
        return self._limits

    async def query_model(
        self,
        *,
        messages: Iterable[Message],
        model: str,
        conversation_formatter: ConversationFormatter | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The answers to one conversation: `generation_config.n` texts.

        Raises:
            LLMRequestError: The server rejected the request, or every attempt failed.
        """
        answer = await self.answer(
            messages=list(messages),
            model=model,
            conversation_formatter=conversation_formatter,
            generation_config=generation_config,
        )
        return [text or "" for text in answer.texts]

    async def answer(
        self,
        *,
        messages: Messages,
        model: str,
        conversation_formatter: ConversationFormatter | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
    ) -> Answer:
        """Like `query_model`, with token counts and finish reasons.

        Raises:
            LLMRequestError: The server rejected the request, or every attempt failed.
        """
        config = GenerationConfig.of(generation_config)
        limit, attempt, busy_s = self.limit, 0, 0.0
        while True:
            await limit.enter()
            begun = time.monotonic()
            try:
                answer = await self._answer_impl(
                    messages=messages,
                    model=model,
                    conversation_formatter=conversation_formatter,
                    generation_config=config,
                )
            except (LLMRequestError, OSError) as error:
                problem = error if isinstance(error, LLMRequestError) else LLMRequestError(_told(error))
                if problem.is_overload:
                    limit.note_overload(begun, problem.retry_after_s)
            else:
                limit.note_answer(time.monotonic() - begun)
                return answer
            finally:
                limit.leave()
            if not problem.can_be_retried:
                raise problem
            delay = self._delay(attempt, problem.retry_after_s)
            if problem.is_busy:
                if busy_s + delay > self.patience_s:
                    raise problem
                busy_s += delay
            elif attempt >= self.max_retries:
                raise problem
            else:
                attempt += 1
            await asyncio.sleep(delay)

    def _delay(self, attempt: int, asked_s: float | None) -> float:
        """Seconds before the next attempt, with jitter: requests that failed together are not retried together."""
        delay = min(self.base_delay * 2.0**attempt, LONGEST_DELAY_S) * random.uniform(0.5, 1.0)  # noqa: S311
        return delay if asked_s is None else asked_s + delay * 0.1

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_limits": None}


def _told(error: BaseException) -> str:
    return f"No answer from the model: {type(error).__name__}: {error}"
