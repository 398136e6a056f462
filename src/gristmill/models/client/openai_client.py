"""Clients of servers that speak OpenAI's protocol: vLLM, TGI, SGLang, llama.cpp, `transformers serve` and others."""

from __future__ import annotations

import asyncio
import email.utils
import os
import time
import warnings
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from gristmill.errors import LLMRequestError, LLMServerError, UsageError, did_you_mean
from gristmill.models.client.event_loop import BackgroundLoop
from gristmill.models.client.http_pool import ConnectFailedError, HttpPool, TooLargeError
from gristmill.models.client.llm_client import (
    Answer,
    AsyncLLMClient,
    ConversationFormatter,
    GenerationConfig,
    LLMClient,
    Message,
    Messages,
)

_DEFAULT_URL = "https://api.openai.com/v1"
_KEY_VARIABLE, _URL_VARIABLE = "OPENAI_API_KEY", "OPENAI_BASE_URL"
_OPTIONS = ("api_key", "api_key_env", "base_url", "timeout", "default_headers", "organization", "project")
_RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 507, 508, 520, 521, 522, 523, 524, 529})
_BUSY = frozenset({429, 503, 529})
_HOPELESS = {
    401: "The server does not accept the API key.",
    403: "The API key does not permit this request.",
    404: "Check the URL (it usually ends in /v1) and the name of the model.",
}
_SHOWN = 500
MAX_ANSWER_BYTES = 32 * 2**20
"""Larger responses are rejected, so that a faulty server cannot exhaust memory."""


class _Connection:
    """The address of a server and its credentials; shows neither the key nor headers."""

    def __init__(self, who: str, options: Mapping[str, Any]) -> None:
        for key in options:
            if key not in _OPTIONS:
                raise UsageError(
                    f"{who}({key}=…): unknown option.{did_you_mean(key, _OPTIONS)} Known options: "
                    f"{', '.join(_OPTIONS)}.",
                    key=key,
                )
        timeout = options.get("timeout", 600.0)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
            raise UsageError(f"{who}(timeout={timeout!r}): must be a positive number of seconds.")
        self.timeout = float(timeout)
        self.base_url = str(options.get("base_url") or os.environ.get(_URL_VARIABLE) or _DEFAULT_URL).rstrip("/")
        if not self.base_url.startswith(("http://", "https://")):
            raise UsageError(f"{who}(base_url={self.base_url!r}): must be a URL that begins with http:// or https://.")
        parts = urlsplit(self.base_url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise UsageError(
                f"{who}(base_url=…) contains a user name or a password, or a query ('?…'). Remove them from the URL "
                "and pass the credentials in an environment variable with api_key_env."
            )
        self.api_key_env: str | None = options.get("api_key_env")
        self._given_key: str | None = options.get("api_key")
        self._headers = {str(key): str(value) for key, value in (options.get("default_headers") or {}).items()}
        for option, header in (("organization", "OpenAI-Organization"), ("project", "OpenAI-Project")):
            if options.get(option):
                self._headers[header] = str(options[option])

    def key(self) -> str | None:
        """The key: as passed, from the named environment variable, or from OPENAI_API_KEY if set.

        Raises:
            UsageError: The named variable is not set.
        """
        if self._given_key is not None:
            return self._given_key
        if self.api_key_env is None:
            return os.environ.get(_KEY_VARIABLE)
        found = os.environ.get(self.api_key_env)
        if not found:
            raise UsageError(
                f"The environment variable {self.api_key_env!r}, which holds the API key for {self.base_url}, is not "
                "set. Set it where the pipeline runs (on a cluster: on every node, or in runtime_env).",
                variable=self.api_key_env,
            )
        return found

    def headers(self) -> dict[str, str]:
        """The headers of every request."""
        key = self.key()
        made = {"Content-Type": "application/json", "Accept": "application/json", "User-Agent": "gristmill"}
        if key:
            made["Authorization"] = f"Bearer {key}"
        return made | self._headers

    def without_secrets(self, text: str) -> str:
        """`text` with the key and the values of extra headers masked."""
        for secret in (self.key(), *self._headers.values()):
            if secret and len(secret) > 3:
                text = text.replace(secret, "***")
        return text

    def __repr__(self) -> str:
        return f"<{self.base_url}>"


class AsyncOpenAIClient(AsyncLLMClient):
    """Client of a server that speaks OpenAI's chat protocol; sends concurrent requests over a pool of connections.

    Args:
        max_concurrent_requests: Maximum number of concurrent requests.
        max_retries: Maximum number of retries per request.
        base_delay: Delay in seconds before the first retry; doubled for each further one.
        **kwargs: `base_url` (defaults to the environment variable OPENAI_BASE_URL, otherwise OpenAI's own server),
            `api_key_env` (the environment variable that holds the key), `api_key` (the key itself; prefer
            `api_key_env`), `timeout` of one attempt in seconds, `default_headers`, `organization`, `project`.

    Example:
        >>> client = AsyncOpenAIClient(64, base_url="http://localhost:8000/v1", api_key_env="MY_KEY")
        >>> client
        AsyncOpenAIClient('http://localhost:8000/v1', max_concurrent_requests=64)
    """

    def __init__(
        self, max_concurrent_requests: int = 5, max_retries: int = 3, base_delay: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(max_concurrent_requests, max_retries, base_delay)
        self._connection = _Connection(type(self).__name__, kwargs)
        self._pool: HttpPool | None = None
        self._pool_loop: asyncio.AbstractEventLoop | None = None

    def check_environment(self) -> None:
        """Raise if the key is missing."""
        self._connection.key()

    def setup(self) -> None:
        """Check the key; connections are opened on demand."""
        self.check_environment()

    async def close(self) -> None:
        """Close the connections."""
        pool, self._pool, self._pool_loop = self._pool, None, None
        if pool is not None:
            await pool.close()

    def _opened(self) -> HttpPool:
        loop = asyncio.get_running_loop()
        if self._pool is None or self._pool_loop is not loop:
            connection = self._connection
            try:
                self._pool = HttpPool(connection.base_url, connection.headers(), timeout_s=connection.timeout)
            except ValueError as error:  # its text never contains a header
                raise LLMServerError(
                    f"No request can be sent to {connection.base_url}: {error}. Correct the URL, the API key, the "
                    "headers or the proxy.",
                    can_be_retried=False,
                    url=connection.base_url,
                ) from None
            self._pool_loop = loop
        return self._pool

    async def _answer_impl(
        self,
        *,
        messages: Messages,
        model: str,
        conversation_formatter: ConversationFormatter | None,
        generation_config: GenerationConfig,
    ) -> Answer:
        if conversation_formatter is not None:
            warnings.warn("The server formats conversations itself: conversation_formatter is ignored.", stacklevel=4)
        pool = self._opened()
        body = orjson.dumps(request_body(messages, model, generation_config))
        try:
            # Redirects are not followed: one would take the key to another server.
            response = await pool.post("/chat/completions", body, max_bytes=MAX_ANSWER_BYTES)
        except TooLargeError as error:
            raise LLMRequestError(
                f"The answer is larger than {MAX_ANSWER_BYTES:,} bytes.", can_be_retried=False
            ) from error
        except ConnectFailedError as error:
            raise LLMServerError(
                f"Cannot reach the model server at {self._connection.base_url}: {error}. Start it, or correct the "
                "URL; then run the same command again to resume.",
                can_be_retried=True,
                url=self._connection.base_url,
            ) from error
        except TimeoutError as error:
            raise LLMRequestError(
                f"No complete answer within {self._connection.timeout:g} s.", is_overload=True
            ) from error
        except OSError as error:
            told = self._connection.without_secrets(f"{type(error).__name__}: {error}")
            raise LLMRequestError(f"The connection broke before the answer was complete ({told}).") from error
        if response.status != 200:
            raise self._refused(response.status, response.body, response.headers)
        try:
            return _streamed(response.body) if generation_config.stream else _parsed(response.body)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            told = self._connection.without_secrets(str(error))[:_SHOWN]
            raise LLMRequestError(
                f"The response is not a chat completion ({told}): {self._shown(response.body)}"
            ) from None

    def _shown(self, body: bytes) -> str:
        said = self._connection.without_secrets(body.decode("utf-8", "replace")).strip()
        return said if len(said) <= _SHOWN else f"{said[:_SHOWN]}…"

    def _refused(self, status: int, body: bytes, headers: Mapping[str, str]) -> LLMRequestError:
        message = f"The model server answered with status {status}: {self._shown(body) or '(no text)'}"
        if status in _HOPELESS:
            return LLMServerError(
                f"{message}\n{_HOPELESS[status]} Server: {self._connection.base_url}.",
                can_be_retried=False,
                status=status,
                url=self._connection.base_url,
            )
        asked = retry_after_s(headers.get("retry-after"))
        return LLMRequestError(
            message,
            status=status,
            can_be_retried=status in _RETRIED,
            is_busy=status in _BUSY,
            is_overload=status in _BUSY or status == 504,
            retry_after_s=asked if status in _RETRIED else None,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_pool": None, "_pool_loop": None}

    def __repr__(self) -> str:
        url = self._connection.base_url
        return f"{type(self).__name__}({url!r}, max_concurrent_requests={self.max_concurrent_requests})"


class OpenAIClient(LLMClient):
    """Client of a server that speaks OpenAI's chat protocol; sends one request at a time.

    Args:
        **kwargs: The options of `AsyncOpenAIClient`, and `max_retries`.

    Example:
        >>> client = OpenAIClient(base_url="http://localhost:8000/v1", api_key_env="MY_KEY")
        >>> client
        OpenAIClient('http://localhost:8000/v1')
    """

    def __init__(self, **kwargs: Any) -> None:
        self._client = AsyncOpenAIClient(1, kwargs.pop("max_retries", 3), **kwargs)
        self._loop: BackgroundLoop | None = None

    def setup(self) -> None:
        """Check the key and the package."""
        self._client.setup()

    def query_model(
        self,
        *,
        messages: Iterable[Message],
        model: str,
        conversation_formatter: ConversationFormatter | None = None,
        generation_config: GenerationConfig | Mapping[str, Any] | None = None,
    ) -> list[str]:
        """The answers to one conversation.

        Raises:
            LLMRequestError: The server refused the request, or every attempt failed.
        """
        if self._loop is None:
            self._loop = BackgroundLoop()
        return self._loop.run(
            self._client.query_model(
                messages=messages,
                model=model,
                conversation_formatter=conversation_formatter,
                generation_config=generation_config,
            )
        )

    def close(self) -> None:
        """Close the connection."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.run(self._client.close())
            loop.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_loop": None}

    def __repr__(self) -> str:
        return f"OpenAIClient({self._client._connection.base_url!r})"


def request_body(messages: Messages, model: str, config: GenerationConfig) -> dict[str, Any]:
    """The fields of a request; None and defaults of the protocol are omitted.

    None in `extra_kwargs` removes a field, such as `stream_options` for a server that does not support it.
    """
    body: dict[str, Any] = {"model": model, "messages": list(messages)}
    for name in ("max_tokens", "seed", "stop", "temperature", "top_k", "top_p"):
        if getattr(config, name) is not None:
            body[name] = getattr(config, name)
    if config.n not in (None, 1):
        body["n"] = config.n
    if config.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    body |= config.extra_kwargs or {}
    return {name: value for name, value in body.items() if value is not None}


def retry_after_s(value: str | None, *, now: float | None = None) -> float | None:
    """The delay in seconds of a `Retry-After` header, which is a number or a date; None if it cannot be parsed.

    Example:
        >>> retry_after_s("2.5")
        2.5
    """
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            at = email.utils.parsedate_to_datetime(value).timestamp()
        except (ValueError, OverflowError):
            return None
        seconds = at - (time.time() if now is None else now)
    return max(0.0, seconds) if seconds == seconds else None


def _parsed(body: bytes) -> Answer:
    found = orjson.loads(body)
    choices = found["choices"]
    texts = tuple(choice["message"].get("content") for choice in choices)
    reasons = tuple(str(choice.get("finish_reason") or "") for choice in choices)
    if not all(text is None or isinstance(text, str) for text in texts) or not texts:
        raise TypeError("no text in it")
    return Answer(texts, str(found.get("model") or ""), *_usage(found), reasons)


def _usage(found: Mapping[str, Any]) -> tuple[int | None, int | None]:
    usage = found.get("usage") or {}
    counts = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    prompt, completion = (count if type(count) is int and count >= 0 else None for count in counts)
    return prompt, completion


def _streamed(body: bytes) -> Answer:
    """The answers in a complete stream of server-sent events."""
    texts: dict[int, list[str]] = {}
    reasons: dict[int, str] = {}
    model, ended = "", False
    usage: tuple[int | None, int | None] = (None, None)
    for line in body.split(b"\n"):
        data = line.strip().removeprefix(b"data:").strip()
        if not line.startswith(b"data:") or not data:
            continue
        if data == b"[DONE]":
            ended = True
            continue
        event = orjson.loads(data)
        model = str(event.get("model") or model)
        usage = _usage(event) if event.get("usage") else usage
        for choice in event.get("choices") or ():
            index = int(choice.get("index", 0))
            texts.setdefault(index, []).append((choice.get("delta") or {}).get("content") or "")
            if choice.get("finish_reason"):
                reasons[index] = str(choice["finish_reason"])
    if not texts or (not ended and len(reasons) < len(texts)):
        raise LLMRequestError("The stream ended before the answer was complete.")
    order = sorted(texts)
    return Answer(
        tuple("".join(texts[index]) for index in order), model, *usage, tuple(reasons.get(index, "") for index in order)
    )
