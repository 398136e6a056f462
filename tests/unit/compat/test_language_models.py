"""Language models by the names that scripts of NeMo Curator use."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from gristmill import compat
from gristmill.compat.config_run import create_pipeline_from_yaml
from gristmill.compat.merge_tokens import merge_file_prefixes
from gristmill.compat.vllm_names import VLLMModel, create_vllm_llm, merge_vllm_kwargs, pick_free_port
from gristmill.errors import InputError, InputNotFoundError, NotSupportedError, RecipeError, UsageError
from gristmill.storage.token_formats.megatron import MegatronShard
from gristmill.storage.token_formats.reading import ShardTokens
from gristmill.tasks import DocumentBatch
from tests.llm_server import model_server


@pytest.fixture(autouse=True)
def curator() -> Iterator[None]:
    compat.install(force=True)
    yield
    compat.uninstall()


def test_the_stages_on_data_designer_ask_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    from nemo_curator.stages.synthetic.nemotron_cc.nemo_data_designer.nemotron_cc import (  # type: ignore[import-not-found]
        DistillStage,
    )

    monkeypatch.setenv("THEIR_KEY", "k-123")
    with model_server(reply=lambda body: "Paraphrased Text: short") as server:
        stage = DistillStage(
            model_alias="small",
            model_configs=[
                SimpleNamespace(alias="large", model="l", provider="here"),
                SimpleNamespace(
                    alias="small", model="s", provider="here", inference_parameters=SimpleNamespace(temperature=0.5)
                ),
            ],
            model_providers=[SimpleNamespace(name="here", endpoint=server.url, api_key="THEIR_KEY")],
        )
        result = stage.process(DocumentBatch(data=pa.table({"text": ["a long text"]})))
        stage.teardown()
        (body,) = server.requests
    assert result.data["distill"].tolist() == ["Paraphrased Text: short"]
    assert (body["model"], body["temperature"], server.authorization) == ("s", 0.5, "Bearer k-123")


def test_what_data_designer_alone_can_do_is_refused() -> None:
    from nemo_curator.stages.synthetic.nemotron_cc.nemo_data_designer.base import NDDBaseSyntheticStage

    with pytest.raises(NotSupportedError, match="configurations of NeMo Data Designer are not run"):
        NDDBaseSyntheticStage(data_designer_config_file="c.yaml")
    with pytest.raises(UsageError, match=r"names 0 of model_configs \(their aliases: 'a'\)"):
        NDDBaseSyntheticStage(model_alias="b", model_configs=[SimpleNamespace(alias="a")])
    with pytest.raises(UsageError, match="provider 'elsewhere', which is not described"):
        NDDBaseSyntheticStage(model_configs=[SimpleNamespace(alias="a", model="m", provider="elsewhere")])


def test_a_user_writes_a_filter_on_made_up_documents() -> None:
    from nemo_curator.models.client.llm_client import GenerationConfig  # type: ignore[import-not-found]
    from nemo_curator.models.client.openai_client import AsyncOpenAIClient  # type: ignore[import-not-found]
    from nemo_curator.pipeline import Pipeline  # type: ignore[import-not-found]
    from nemo_curator.stages.synthetic.qa_multilingual_synthetic import (  # type: ignore[import-not-found]
        QAMultilingualSyntheticStage,
    )
    from nemo_curator.stages.text.filters import DocumentFilter, ScoreFilter  # type: ignore[import-not-found]

    class BeginsWith(DocumentFilter):  # type: ignore[misc]
        def __init__(self, language: str) -> None:
            self.language = language

        def score_document(self, text: str) -> float:
            return float(text.startswith(self.language))

        def keep_document(self, score: float) -> bool:
            return score == 1.0

    def reply(body: dict[str, Any]) -> str:
        return f"*[{body['messages'][0]['content'][-2:]}]* answer"

    with model_server(reply=reply) as server:
        client = AsyncOpenAIClient(api_key="x", base_url=server.url, max_concurrent_requests=3)
        stage = QAMultilingualSyntheticStage(
            prompt="Write {language}", languages=["EN", "FR"], client=client, model_name="m", num_samples=12,
            generation_config=GenerationConfig(temperature=0.9, seed=None),
        )  # fmt: skip
        pipeline = Pipeline(name="made-up", stages=[stage, ScoreFilter(BeginsWith("[EN]"), text_field="text")])
        (task,) = pipeline.run()
        assert len(server.requests) == 12
    assert 0 < len(task.data) < 12
    assert set(task.data["text"]) == {"[EN] answer"}


def _shard(folder: Path, name: str, lengths: list[int], dtype: str = "uint16") -> np.ndarray[Any, Any]:
    tokens = np.arange(sum(lengths), dtype=dtype)
    shard = MegatronShard(str(folder / f"{name}.bin"), dtype)
    shard.append(tokens, np.array(lengths, np.int64), None)
    shard.close(len(lengths), (np.zeros(0, np.int64), np.zeros(0, np.int64)))
    return tokens


def test_token_files_are_merged_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = tmp_path / "tokens"
    folder.mkdir()
    second, first = _shard(folder, "b", [4, 1]), _shard(folder, "a", [3])
    merge_file_prefixes(str(folder), str(tmp_path / "all"))
    merged = ShardTokens(str(tmp_path / "all.bin"))
    assert merged.lengths.tolist() == [3, 4, 1]
    assert merged.read(0, 99).tolist() == [*first.tolist(), *second.tolist()]
    _shard(folder, "c", [2], "int32")
    with pytest.raises(InputError, match="different types cannot be merged"):
        merge_file_prefixes(str(folder), str(tmp_path / "all"))
    with pytest.raises(InputNotFoundError, match=r"no \.bin files"):
        merge_file_prefixes(str(tmp_path / "nothing"), "x")
    with pytest.raises(UsageError, match="one of the files to merge"):
        merge_file_prefixes(str(folder), str(folder / "a"))


def test_vllm_by_its_old_names() -> None:
    assert merge_vllm_kwargs({"seed": 1}, {"model": "m"}, owner_description="it") == {"seed": 1, "model": "m"}
    with pytest.raises(UsageError, match="it has 'model'"):
        merge_vllm_kwargs({"model": "x"}, {"model": "m"}, owner_description="it")
    assert 0 < pick_free_port() < 65536
    assert VLLMModel("m").model_id_names == ["m"]
    with pytest.raises(ImportError, match=r"gristmill\[vllm\]"), pytest.warns(UserWarning, match="trust_remote_code"):
        create_vllm_llm("m", trust_remote_code=True)


def test_a_pipeline_from_a_configuration() -> None:
    reader = {"_target_": "nemo_curator.stages.text.io.reader.JsonlReader", "file_paths": "${input_path}"}
    pipeline = create_pipeline_from_yaml({"input_path": "in/", "stages": [reader]})
    assert [type(stage).__name__ for stage in pipeline.stages] == ["JsonlReader"]
    with pytest.raises(RecipeError):
        create_pipeline_from_yaml({"stages": [{"_target_": "os.system"}]})


def test_a_translation_takes_the_options_it_has_there_and_refuses_what_cannot_be_done(curator: None) -> None:
    from nemo_curator.stages.text.experimental.translation.pipeline import (  # type: ignore[import-not-found]
        TranslationStage,
    )

    experimental = importlib.import_module("nemo_curator.stages.text.experimental.translation")
    assert experimental.TranslationStage is TranslationStage
    assert importlib.import_module("nemo_curator.stages.text.translation").TranslationPipeline is TranslationStage
    modifiers = importlib.import_module("nemo_curator.stages.text.modifiers.heuristic")
    assert modifiers.UrlRemover.__name__ == "UrlRemover"
    TranslationStage("German", "English", "model", backend_type="llm", enable_faith_eval=False, dry_run=False)
    with pytest.raises(
        NotSupportedError, match=r"TranslationStage\(backend_type='google'\) is not supported; pass 'llm'"
    ):
        TranslationStage("German", "English", "model", backend_type="google")
