"""vLLM under the names in `nemo_curator.utils.vllm_utils` and `nemo_curator.models`, with our own engine start-up."""

from __future__ import annotations

import socket
import warnings
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gristmill.stages.text.models.sources import fetch_model, model_folder
from gristmill.stages.text.models.vllm_engine import check_engine_options, engine_arguments, start_engine


class ModelInterface(ABC):
    """A model that a script defines: the ids of its weights, and how it is loaded.

    Example:
        >>> class Echo(ModelInterface):
        ...     model_id_names = ["echo"]
        ...
        ...     def setup(self): ...
    """

    @property
    @abstractmethod
    def model_id_names(self) -> list[str]:
        """The ids of the models that it needs."""

    @abstractmethod
    def setup(self) -> None:
        """Load the model."""


class VLLMModel(ModelInterface):
    """A model in vLLM that completes plain prompts.

    Args:
        model: A hub id or a local folder.
        max_model_len: Maximum number of tokens of prompt and answer; None for the model's own limit.
        tensor_parallel_size: The number of GPUs; None for one.
        max_num_batched_tokens: Maximum number of tokens per engine step.
        temperature: 0 always chooses the most probable token.
        top_p: Sample only from the most probable tokens that together have this probability.
        top_k: Sample only from the most probable tokens.
        min_p: Minimum probability of a token, relative to the most probable one.
        max_tokens: Maximum number of tokens of an answer; None for the model's limit.
        cache_dir: Where downloads are kept.
    """

    def __init__(
        self,
        model: str,
        max_model_len: int | None = None,
        tensor_parallel_size: int | None = None,
        max_num_batched_tokens: int = 4096,
        temperature: float = 0.7,
        top_p: float = 0.8,
        top_k: int = 20,
        min_p: float = 0.0,
        max_tokens: int | None = None,
        cache_dir: str | None = None,
    ) -> None:
        self.model = model
        self.cache_dir = cache_dir
        self.engine_options = {
            "max_model_len": max_model_len,
            "tensor_parallel_size": tensor_parallel_size or 1,
            "max_num_batched_tokens": max_num_batched_tokens,
        }
        self.sampling = {
            "temperature": temperature,
            "top_p": top_p,
            "top_k": top_k,
            "min_p": min_p,
            "max_tokens": max_tokens,
        }
        self._engine: Any = None

    @property
    def model_id_names(self) -> list[str]:
        """The model."""
        return [self.model]

    def setup(self) -> None:
        """Download the model if needed, and start the engine."""
        folder = fetch_model(self.model, cache_dir=self.cache_dir)
        self._engine = start_engine(engine_arguments(folder, self.engine_options, runner="generate"))

    def generate(self, prompts: Sequence[Any]) -> list[str]:
        """The completion of each prompt."""
        if self._engine is None:
            self.setup()
        from vllm import SamplingParams

        results = self._engine.generate(list(prompts), SamplingParams(**self.sampling), use_tqdm=False)
        return [result.outputs[0].text for result in results]

    def get_tokenizer(self) -> Any:
        """The tokenizer of the model."""
        if self._engine is None:
            self.setup()
        return self._engine.get_tokenizer()


def validate_vllm_kwargs(
    vllm_kwargs: Mapping[str, Any] | None, reserved_keys: Collection[str], *, owner_description: str
) -> None:
    """Reject engine options that their owner sets itself."""
    check_engine_options(vllm_kwargs, option=owner_description, owned=reserved_keys)


def merge_vllm_kwargs(
    vllm_kwargs: Mapping[str, Any] | None, owned_kwargs: Mapping[str, Any], *, owner_description: str
) -> dict[str, Any]:
    """The user's options for the engine and those of their owner, which must not overlap."""
    return {**check_engine_options(vllm_kwargs, option=owner_description, owned=owned_kwargs), **owned_kwargs}


def pick_free_port() -> int:
    """A currently free port."""
    with socket.socket() as server:
        server.bind(("", 0))
        return int(server.getsockname()[1])


def resolve_local_model_path(model_path: str) -> str:
    """The local folder of a model; nothing is downloaded."""
    return str(model_folder(model_path))


def create_vllm_llm(
    model_path: str,
    *,
    max_num_seqs: int = 64,
    enforce_eager: bool = False,
    dtype: str = "bfloat16",
    trust_remote_code: bool | None = None,
    limit_mm_per_prompt: Mapping[str, int] | None = None,
    max_port_retries: int = 3,
    **extra_engine_kwargs: Any,
) -> Any:
    """A running `vllm.LLM` for a model folder. Code that comes with the model is not run."""
    options = {"max_num_seqs": max_num_seqs, "enforce_eager": enforce_eager, "dtype": dtype, **extra_engine_kwargs}
    if limit_mm_per_prompt:
        options["limit_mm_per_prompt"] = dict(limit_mm_per_prompt)
    return create_vllm_llm_with_retry(
        max_port_retries=max_port_retries, model=model_path, trust_remote_code=trust_remote_code, **options
    )


def create_vllm_llm_with_retry(*, max_port_retries: int = 3, **engine_kwargs: Any) -> Any:
    """A running `vllm.LLM`; retries if the chosen port was taken meanwhile."""
    options = dict(engine_kwargs)
    model = options.pop("model")
    if options.pop("trust_remote_code", None):
        warnings.warn("trust_remote_code has no effect: code that comes with a model is never run.", stacklevel=2)
    arguments = engine_arguments(model, check_engine_options(options, option="engine_kwargs", owned=()))
    return start_engine(arguments, attempts=max_port_retries)
