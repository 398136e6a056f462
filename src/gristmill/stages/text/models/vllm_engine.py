"""vLLM in this process: the arguments of its engine, and how it is started.

Written for the interface that vLLM 0.11 and 0.33 share (`LLM`, `LLM.chat`, `LLM.encode`, `SamplingParams`). vLLM needs
a GPU and is not among the packages that the tests install: they check the arguments and how results are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.errors import LLMRequestError, ModelLoadError, NotSupportedError, UsageError, require_module
from gristmill.models.client.llm_client import Answer
from gristmill.stages.text.models.generation import InProcessClient, Question, answer_in_parts
from gristmill.stages.text.models.sources import Secret

_PORT_TAKEN = ("address already in use", "eaddrinuse")
_OWNED = ("model", "runner")


def require_vllm(purpose: str) -> None:
    """Raise if vLLM is missing; nothing is imported.

    Raises:
        MissingExtraError: It is not installed.
    """
    require_module("vllm", purpose, instead="It runs on GPUs only.")


def check_engine_options(given: Mapping[str, Any] | None, *, option: str, owned: Collection[str]) -> dict[str, Any]:
    """The user's options for the engine, without those that the caller sets itself.

    Args:
        given: The options.
        option: Name of the parameter that holds them.
        owned: Options that the caller sets.

    Raises:
        UsageError: One of them is set by the caller.
        NotSupportedError: They request to run the model's own code.

    Example:
        >>> check_engine_options({"max_model_len": 2048}, option="vllm_init_kwargs", owned=["model"])
        {'max_model_len': 2048}
    """
    options = dict(given or {})
    taken = sorted(set(options) & set(owned))
    if taken:
        raise UsageError(f"{option} has {taken[0]!r}, which is set by other parameters: remove it.")
    if options.get("trust_remote_code"):
        raise NotSupportedError(
            f"{option}={{'trust_remote_code': True}}: code that comes with a model is never run. Use a model with an "
            "architecture that vLLM supports."
        )
    return options


def engine_arguments(folder: Path | str, options: Mapping[str, Any], **owned: Any) -> dict[str, Any]:
    """The arguments of `vllm.LLM` for the model in `folder`.

    Example:
        >>> engine_arguments("my-model", {"max_model_len": 512}, runner="pooling")
        {'max_model_len': 512, 'model': 'my-model', 'trust_remote_code': False, 'runner': 'pooling'}
    """
    return {**options, "model": str(folder), "trust_remote_code": False, **owned}


def start_engine(arguments: Mapping[str, Any], *, attempts: int = 3) -> Any:
    """A running engine; retries if a port that it chose was taken meanwhile.

    Raises:
        MissingExtraError: vLLM is not installed.
        ModelLoadError: vLLM cannot run the model here.
    """
    require_vllm("A model in vLLM")
    from vllm import LLM

    for attempt in range(1, attempts + 1):
        try:
            return LLM(**arguments)
        except (RuntimeError, ValueError, OSError) as error:
            said = " ".join(str(error).split())
            if attempt < attempts and any(words in said.lower() for words in _PORT_TAKEN):
                continue
            raise ModelLoadError(
                f"vLLM cannot run {arguments['model']!r} here ({type(error).__name__}: {said[:300]}). Its options were "
                f"{ {key: value for key, value in arguments.items() if key != 'hf_token'} }.",
                identifier=str(arguments["model"]),
            ) from error
    raise AssertionError("unreachable: the last attempt returns or raises")


def longest_prompt(engine: Any) -> int:
    """Maximum number of tokens that the engine accepts for one document."""
    return int(engine.llm_engine.model_config.max_model_len)


def sampling_arguments(config: Any, *, schema: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The arguments of `vllm.SamplingParams` for a `GenerationConfig`.

    Args:
        config: Settings of a request.
        schema: JSON schema that answers must match; None for plain text.
    """
    found: dict[str, Any] = {
        "n": config.n,
        "max_tokens": config.max_tokens,
        "temperature": config.temperature,
        "top_p": config.top_p,
        "top_k": config.top_k or 0,
        "seed": config.seed,
    }
    if config.stop:
        found["stop"] = [config.stop] if isinstance(config.stop, str) else list(config.stop)
    if schema is not None:
        found["structured_outputs"] = schema
    return {**found, **(config.extra_kwargs or {})}


def sampling_params(arguments: Mapping[str, Any]) -> Any:
    """The `vllm.SamplingParams` for `sampling_arguments`."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    given = dict(arguments)
    if "structured_outputs" in given:
        given["structured_outputs"] = StructuredOutputsParams(json=given["structured_outputs"])
    return SamplingParams(**given)


class VLLMClient(InProcessClient):
    """Runs a model with vLLM in this process, on a GPU. For a server that several processes share, run `vllm serve`.

    Args:
        model_identifier: A hub id, a local folder, or `package:NAME`. Requests must use the same name.
        batch_size: Maximum number of requests passed to the engine at once; it forms its own batches.
        vllm_init_kwargs: More options for `vllm.LLM`, such as `max_model_len` or `gpu_memory_utilization`.
        cache_dir: Cache folder for downloads; None for the hub's default.
        hf_token: Access token for gated models; it is never shown.

    Example:
        >>> VLLMClient("Qwen/Qwen2.5-7B-Instruct", vllm_init_kwargs={"max_model_len": 8192})
        VLLMClient('Qwen/Qwen2.5-7B-Instruct', batch_size=256)
    """

    def __init__(
        self,
        model_identifier: str,
        *,
        batch_size: int = 256,
        vllm_init_kwargs: Mapping[str, Any] | None = None,
        cache_dir: str | None = None,
        hf_token: str | Secret | None = None,
    ) -> None:
        super().__init__(model_identifier, batch_size=batch_size, cache_dir=cache_dir, hf_token=hf_token)
        self.vllm_init_kwargs = check_engine_options(vllm_init_kwargs, option="vllm_init_kwargs", owned=_OWNED)
        self._engine: Any = None

    def check_environment(self) -> None:
        """Reject a missing package or model."""
        require_vllm("VLLMClient")
        super().check_environment()

    def setup(self) -> None:
        """Start the engine."""
        if self._engine is None:
            self._engine = start_engine(engine_arguments(self.fetched(), self.vllm_init_kwargs, runner="generate"))

    async def close(self) -> None:
        """Stop the thread and release the engine."""
        await super().close()
        self._engine = None

    def answer_batch(self, questions: Sequence[Question]) -> list[Answer | LLMRequestError]:
        """The answers to a batch; requests with other chat template options are passed to the engine separately."""
        self.setup()
        answers: dict[int, Answer | LLMRequestError] = {}
        groups: dict[str, list[int]] = {}
        for place, question in enumerate(questions):
            groups.setdefault(repr(sorted(question.template.items())), []).append(place)
        for places in groups.values():
            found = answer_in_parts([questions[place] for place in places], self._chat, is_of_questions)
            answers.update(zip(places, found, strict=True))
        return [answers[place] for place in range(len(questions))]

    def _chat(self, questions: Sequence[Question]) -> list[Answer | LLMRequestError]:
        results = self._engine.chat(
            [question.messages for question in questions],
            [sampling_params(sampling_arguments(one.config, schema=one.schema)) for one in questions],
            use_tqdm=False,
            chat_template_kwargs=questions[0].template or None,
        )
        return [read_answer(result, self.model_identifier) for result in results]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_engine": None}


def is_of_questions(error: Exception) -> bool:
    """Whether vLLM rejected a request: one that is too long, for example, fails the call for the whole batch."""
    return isinstance(error, ValueError)


def read_answer(result: Any, model: str) -> Answer:
    """The answer in the output of `LLM.chat` for one conversation."""
    return Answer(
        texts=tuple(output.text for output in result.outputs),
        model=model,
        prompt_tokens=len(result.prompt_token_ids or ()),
        completion_tokens=sum(len(output.token_ids) for output in result.outputs),
        finish_reasons=tuple(str(output.finish_reason or "") for output in result.outputs),
    )
