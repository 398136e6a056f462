"""Nemotron-CC's stages under the names in `nemo_curator.stages.synthetic.nemotron_cc.nemo_data_designer`.

There, NeMo Data Designer calls the model; here, the stages of the same names do. A script passes its model as objects
of that package (`ModelConfig`, `ModelProvider`), only their attributes are read. Configurations of Data Designer itself
are rejected.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, ClassVar

from gristmill.errors import NotSupportedError, UsageError
from gristmill.models.client.llm_client import GenerationConfig
from gristmill.models.client.openai_client import AsyncOpenAIClient
from gristmill.stages.synthetic.nemotron_cc import nemotron_cc
from gristmill.stages.synthetic.nemotron_cc.base import BaseSyntheticStage

_PROVIDERS = {
    "nvidia": ("https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    "openai": ("https://api.openai.com/v1", "OPENAI_API_KEY"),
}
"""Providers that scripts may name without describing them: the URL, and the variable with the key."""
_CONCURRENT = 64


class NDDBaseSyntheticStage(BaseSyntheticStage):
    """Asks a language model to rewrite every document, as `BaseSyntheticStage` does.

    Args:
        config_builder: Not supported.
        data_designer_config_file: Not supported.
        model_providers: Objects with `name`, `endpoint` and `api_key` (the key, or the variable that holds it).
        verbose: Has no effect.
        system_prompt: The system message; None sends none.
        prompt: The user's message, with `{document}` where the document goes.
        input_field: The column with the document.
        output_field: The column for the answer.
        model_alias: Which of `model_configs` to use; None for the only one.
        model_configs: Objects with `alias`, `model`, `provider` and `inference_parameters`.
    """

    like: ClassVar[type[BaseSyntheticStage]] = BaseSyntheticStage

    def __init__(
        self,
        config_builder: Any = None,
        data_designer_config_file: str | None = None,
        model_providers: Sequence[Any] | None = None,
        verbose: bool = False,
        system_prompt: str | None = None,
        prompt: str | None = None,
        input_field: str | None = None,
        output_field: str | None = None,
        model_alias: str | None = None,
        model_configs: Sequence[Any] | None = None,
    ) -> None:
        if config_builder is not None or data_designer_config_file is not None:
            raise NotSupportedError(
                f"{type(self).__name__}: configurations of NeMo Data Designer are not run. Pass system_prompt, prompt, "
                "input_field, output_field, model_configs and model_providers; use one stage per generated column."
            )
        chosen = _chosen(model_alias, model_configs, type(self).__name__)
        super().__init__(
            system_prompt=system_prompt if system_prompt is not None else self.like.system_prompt,
            prompt=prompt if prompt is not None else self.like.prompt,
            input_field=input_field if input_field is not None else self.like.input_field,
            output_field=output_field if output_field is not None else self.like.output_field,
            client=_client(chosen, model_providers or ()),
            model_name=str(chosen.model),
            generation_config=_generation(chosen),
            name=self.like.name,
        )


class WikipediaParaphrasingStage(NDDBaseSyntheticStage):
    """Rewrites documents in the style of Wikipedia."""

    like = nemotron_cc.WikipediaParaphrasingStage


class DiverseQAStage(NDDBaseSyntheticStage):
    """Generates various questions about a document, with answers."""

    like = nemotron_cc.DiverseQAStage


class DistillStage(NDDBaseSyntheticStage):
    """Condenses documents to their key information."""

    like = nemotron_cc.DistillStage


class ExtractKnowledgeStage(NDDBaseSyntheticStage):
    """Rewrites the knowledge in documents as textbook passages."""

    like = nemotron_cc.ExtractKnowledgeStage


class KnowledgeListStage(NDDBaseSyntheticStage):
    """Lists the key facts of documents."""

    like = nemotron_cc.KnowledgeListStage


def _chosen(alias: str | None, configs: Sequence[Any] | None, owner: str) -> Any:
    found = list(configs or ())
    if alias is not None:
        found = [config for config in found if getattr(config, "alias", None) == alias]
    if len(found) != 1:
        known = ", ".join(repr(getattr(config, "alias", config)) for config in configs or ()) or "none"
        raise UsageError(
            f"{owner}(model_alias={alias!r}) names {len(found)} of model_configs (their aliases: {known}): pass "
            "model_configs with one entry of that alias."
        )
    return found[0]


def _client(config: Any, providers: Sequence[Any]) -> AsyncOpenAIClient:
    wanted = getattr(config, "provider", None) or (getattr(providers[0], "name", None) if providers else "nvidia")
    provider = next((one for one in providers if getattr(one, "name", None) == wanted), None)
    parallel = getattr(getattr(config, "inference_parameters", None), "max_parallel_requests", None) or _CONCURRENT
    if provider is None:
        if wanted not in _PROVIDERS:
            raise UsageError(
                f"The model {config.model!r} has the provider {wanted!r}, which is not described: pass model_providers "
                "with its name, endpoint and api_key."
            )
        url, variable = _PROVIDERS[wanted]
        return AsyncOpenAIClient(parallel, base_url=url, api_key_env=variable)
    key = getattr(provider, "api_key", None)
    options = {"api_key_env": key} if key is None or key in os.environ else {"api_key": key}
    return AsyncOpenAIClient(parallel, base_url=str(provider.endpoint), **options)


def _generation(config: Any) -> GenerationConfig:
    given = getattr(config, "inference_parameters", None)
    names = ("temperature", "top_p", "max_tokens")
    found = {name: getattr(given, name, None) for name in names}
    return GenerationConfig.of({name: value for name, value in found.items() if isinstance(value, int | float)})
