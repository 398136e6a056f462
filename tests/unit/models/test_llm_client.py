"""What every client does: retries, delays, configuration."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest

from gristmill.errors import LLMRequestError, LLMServerError, UsageError
from gristmill.models.client import Answer, AsyncLLMClient, AsyncOpenAIClient, GenerationConfig, OpenAIClient
from gristmill.models.client.openai_client import request_body, retry_after_s

MESSAGES = [{"role": "user", "content": "hello"}]


class Scripted(AsyncLLMClient):
    """Fails as told, then answers."""

    def __init__(self, *problems: Exception, **options: Any) -> None:
        super().__init__(base_delay=0.0, **options)
        self.problems = list(problems)
        self.attempts = 0

    async def _answer_impl(self, **_: Any) -> Answer:
        self.attempts += 1
        if self.problems:
            raise self.problems.pop(0)
        return Answer(("fine",))


def _ask(client: AsyncLLMClient) -> list[str]:
    return asyncio.run(client.query_model(messages=MESSAGES, model="m"))


def test_a_failure_that_may_pass_is_tried_again() -> None:
    client = Scripted(LLMRequestError("500"), ConnectionResetError("gone"), TimeoutError())
    assert _ask(client) == ["fine"]
    assert client.attempts == 4


def test_attempts_end() -> None:
    client = Scripted(*[LLMRequestError("500")] * 9, max_retries=2)
    with pytest.raises(LLMRequestError, match="500"):
        _ask(client)
    assert client.attempts == 3


def test_what_cannot_pass_is_not_tried_again() -> None:
    client = Scripted(LLMRequestError("400", can_be_retried=False))
    with pytest.raises(LLMRequestError):
        _ask(client)
    assert client.attempts == 1


def test_a_busy_server_does_not_use_up_attempts() -> None:
    busy = LLMRequestError("429", is_busy=True, is_overload=True, retry_after_s=0.0)
    client = Scripted(*[busy] * 20, max_retries=1)
    assert _ask(client) == ["fine"]
    assert client.limit.current < client.max_concurrent_requests


def test_patience_with_a_busy_server_ends() -> None:
    client = Scripted(*[LLMRequestError("429", is_busy=True, retry_after_s=300.0)] * 9)
    client.patience_s = 299.0
    with pytest.raises(LLMRequestError, match="429"):
        _ask(client)


def test_a_client_that_returns_only_texts() -> None:
    """As clients for NeMo Curator are written."""

    class Texts(AsyncLLMClient):
        async def _query_model_impl(self, **_: Any) -> list[str]:
            return ["one", "two"]

    assert _ask(Texts()) == ["one", "two"]


def test_generation_config_refuses_unknown_keys() -> None:
    with pytest.raises(UsageError, match="Did you mean 'temperature'"):
        GenerationConfig.of({"temprature": 1})
    assert GenerationConfig.of({"top_k": 3}) == GenerationConfig(top_k=3)


def test_request_leaves_defaults_to_the_server() -> None:
    body = request_body(MESSAGES, "m", GenerationConfig(seed=None, top_p=None, extra_kwargs={"min_p": 0.1}))
    assert body == {"model": "m", "messages": MESSAGES, "max_tokens": 2048, "temperature": 0.0, "min_p": 0.1}


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("-1", 0.0), ("Wed, 21 Oct 2015 07:28:10 GMT", 10.0), ("soon", None), ("nan", None), (None, None)],
)
def test_retry_after(value: str | None, seconds: float | None) -> None:
    assert retry_after_s(value, now=1445412480.0) == seconds


def test_options_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="base_url"):
        AsyncOpenAIClient(base_ulr="http://x")
    with pytest.raises(UsageError, match="http"):
        AsyncOpenAIClient(base_url="localhost:8000")
    for url in ("http://x/v1?key=sk-hidden", "http://me:sk-hidden@x/v1"):
        with pytest.raises(UsageError, match="api_key_env") as caught:
            AsyncOpenAIClient(base_url=url)
        assert "hidden" not in str(caught.value)
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    client = AsyncOpenAIClient(base_url="http://x/v1/", api_key_env="NO_SUCH_KEY")
    with pytest.raises(UsageError, match="NO_SUCH_KEY"):
        client.check_environment()


def test_no_secret_is_shown_and_the_variable_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    for client in (AsyncOpenAIClient(api_key_env="MY_KEY"), OpenAIClient(api_key_env="MY_KEY")):
        sent = pickle.dumps(client)
        assert b"sk-very-secret" not in sent
        assert "secret" not in repr(pickle.loads(sent))
    error = AsyncOpenAIClient(api_key_env="MY_KEY")._refused(401, b"bad key sk-very-secret", {})
    assert isinstance(error, LLMServerError)
    assert "secret" not in str(error)
    assert "***" in str(error)
