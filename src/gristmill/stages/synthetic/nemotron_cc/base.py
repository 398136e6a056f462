"""The base class of stages that rewrite documents, with the parameters of NeMo Curator."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from gristmill.errors import UsageError, did_you_mean
from gristmill.models.client.llm_client import (
    Answer,
    AsyncLLMClient,
    ConversationFormatter,
    GenerationConfig,
    LLMClient,
    Messages,
)
from gristmill.stages.text.annotate.stage import LLMStage

DOCUMENT = "document"
"""The placeholder of the document in a prompt."""


@dataclass(eq=False, repr=False)
class BaseSyntheticStage(LLMStage):
    """Lets a language model rewrite every document, and stores the answer in a separate column.

    Caching, retries, budgets and quarantine are those of `LLMStage`. A subclass may set other defaults, and may
    override `_process_llm_prompt` and `_process_llm_response`.

    Args:
        system_prompt: System message; None sends none.
        prompt: User message, with `{document}` in place of the document.
        input_field: Column that holds the document.
        output_field: Column for the answer.
        client: Client of the model: an `AsyncLLMClient`, or an `LLMClient`, which handles one request at a time.
            `"transformers"` and `"vllm"` run `model_name` in this process. None uses a server, with the options below.
        model_name: Model name on the server.
        generation_config: Sampling parameters: a `GenerationConfig` or its fields as a mapping.
        name: Name of the stage in reports.
        base_url: URL of the server, usually ending in `/v1`; defaults to the environment variable OPENAI_BASE_URL.
        api_key_env: Environment variable that holds the API key.
        max_chunk_chars: Rewrite longer documents in chunks of at most this many characters, joined by blank lines.
        truncated: What to do with an answer that was cut off at `max_tokens`: `quarantine` its document, or `keep` it.
        max_concurrent_requests: Maximum number of concurrent requests; a `client` has its own setting.
        budget_tokens: Maximum number of tokens to spend on an output; the run stops before exceeding it. None for no
            limit.
        cache_dir: Local folder for the cache, instead of the record of the output.

    Example:
        >>> stage = BaseSyntheticStage(
        ...     prompt="Translate to French: {document}", input_field="text", output_field="french", model_name="m"
        ... )
        >>> stage.inputs()[1], stage.outputs()[1]
        (['text'], ['french'])
    """

    system_prompt: str | None = None
    prompt: str | None = None  # type: ignore[assignment]
    input_field: str | None = None
    output_field: str | None = None  # type: ignore[assignment]
    client: AsyncLLMClient | LLMClient | Literal["transformers", "vllm"] | None = None
    model_name: str | None = None
    generation_config: GenerationConfig | Mapping[str, Any] | None = None  # type: ignore[assignment]
    name: str = "NemotronCCBaseStage"
    base_url: str | None = field(default=None, kw_only=True)
    api_key_env: str | None = field(default=None, kw_only=True)
    max_chunk_chars: int | None = field(default=None, kw_only=True)
    truncated: Literal["quarantine", "keep"] = field(default="quarantine", kw_only=True)
    max_concurrent_requests: int = field(default=64, kw_only=True)
    budget_tokens: int | None = field(default=None, kw_only=True)
    cache_dir: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for parameter in ("prompt", "input_field", "output_field", "model_name"):
            value = getattr(self, parameter)
            if not isinstance(value, str) or not value.strip():
                raise UsageError(f"{type(self).__name__}({parameter}={value!r}): must be a non-empty string.")
        check_prompt(str(self.prompt), owner=type(self).__name__)
        given = vars(self).pop("client", None)
        options = {name: vars(self).pop(name) for name in ("base_url", "api_key_env", "max_concurrent_requests")}
        super().__init__(
            str(self.prompt),
            model=str(self.model_name),
            client=as_async(given, str(self.model_name)),
            system_prompt=self.system_prompt,
            generation_config=self.generation_config,
            output_field=str(self.output_field),
            text_field=str(self.input_field),
            max_chunk_chars=self.max_chunk_chars,
            join="concat" if self.max_chunk_chars is not None else None,
            truncated=self.truncated,
            budget_tokens=vars(self).pop("budget_tokens"),
            cache_dir=self.cache_dir,
            **options,
        )

    @cached_property
    def _templates(self) -> tuple[Any, Any]:
        user = _Prompt([str(self.input_field)], self._process_llm_prompt)
        return user, None if self.system_prompt is None else _Prompt([], self._system_message)

    def _system_message(self, _sample: Mapping[str, Any]) -> str:
        return str(self.system_prompt)

    def _process_llm_prompt(self, sample: Mapping[str, Any]) -> str:
        """The user message for one document, given its columns."""
        column = str(self.input_field)
        if column not in sample:
            raise KeyError(f"Expected input field {column!r} in the document; it has {', '.join(map(repr, sample))}.")
        return filled(str(self.prompt), str(sample[column]))

    def _process_llm_response(self, response: Sequence[str]) -> str:
        """The text for the column, given the model's answers."""
        return response[0] if response else ""

    def _joined(self, column: str, values: list[Any]) -> Any:
        made = [None if value is None else self._process_llm_response([value]) for value in values]
        return super()._joined(column, made)


class _Prompt(NamedTuple):
    """A message in place of a Jinja template: nothing in a document or prompt is evaluated."""

    columns: list[str]
    render: Callable[[Mapping[str, Any]], str]


class BlockingClient(AsyncLLMClient):
    """Wraps an `LLMClient` in the interface of an asynchronous one: one request at a time, in a thread."""

    def __init__(self, client: LLMClient) -> None:
        super().__init__(max_concurrent_requests=1, max_retries=0)
        self._blocking = client

    def setup(self) -> None:
        """Prepare the client."""
        self._blocking.setup()

    async def _answer_impl(
        self,
        *,
        messages: Messages,
        model: str,
        conversation_formatter: ConversationFormatter | None,
        generation_config: GenerationConfig,
    ) -> Answer:
        texts = await asyncio.to_thread(
            self._blocking.query_model, messages=messages, model=model, generation_config=generation_config
        )
        return Answer(texts=tuple(texts), model=model)


def as_async(client: Any, model: str) -> AsyncLLMClient | None:
    """The client in the form that `LLMStage` accepts; `"transformers"` and `"vllm"` are created here.

    Raises:
        UsageError: It is not a client.
    """
    if client is None or isinstance(client, AsyncLLMClient):
        return client
    if isinstance(client, LLMClient):
        return BlockingClient(client)
    if client == "transformers":
        from gristmill.stages.text.models.generation import TransformersClient

        return TransformersClient(model)
    if client == "vllm":
        from gristmill.stages.text.models.vllm_engine import VLLMClient

        return VLLMClient(model)
    known = ("transformers", "vllm")
    raise UsageError(
        f"client={client!r}: must be an AsyncLLMClient such as AsyncOpenAIClient, an LLMClient, 'transformers' or "
        f"'vllm'.{did_you_mean(str(client), known)}"
    )


def check_prompt(prompt: str, *, owner: str, name: str = DOCUMENT) -> None:
    """Reject a prompt that lacks the placeholder, or has others.

    Raises:
        UsageError: The placeholder is missing, or there are others.
    """
    try:
        found = [(part, spec, how) for _, part, spec, how in string.Formatter().parse(prompt) if part is not None]
    except ValueError as error:
        raise UsageError(f"{owner}(prompt=…): {error}. Write {{{{ and }}}} for literal braces.") from error
    for part, spec, how in found:
        if part != name or spec or how:
            raise UsageError(
                f"{owner}(prompt=…) has the field {{{part}}}; the only one is {{{name}}}. Write {{{{ and }}}} for "
                "literal braces."
            )
    if not found:
        raise UsageError(f"{owner}(prompt=…) has no {{{name}}}: without it the model does not see the document.")


def filled(prompt: str, value: str) -> str:
    """The prompt with `value` in place of its placeholder; braces in the value are kept literally.

    Example:
        >>> filled("Shorten {{this}}: {document}", "{a}")
        'Shorten {this}: {a}'
    """
    return "".join(text + (value if part is not None else "") for text, part, _, _ in string.Formatter().parse(prompt))
