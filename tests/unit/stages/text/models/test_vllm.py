"""vLLM, which is not installed here: what its engine would be given, and how its results are read."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from gristmill.errors import LLMRequestError, MissingExtraError, NotSupportedError, UsageError
from gristmill.models.client import GenerationConfig
from gristmill.stages.text.embedders.vllm import VLLMEmbeddingModelStage
from gristmill.stages.text.models import vllm_engine
from gristmill.stages.text.models.generation import Question
from gristmill.stages.text.models.vllm_engine import VLLMClient, engine_arguments, sampling_arguments
from gristmill.tasks import DocumentBatch


class Engine:
    """Records calls, and answers in the shape that vLLM's outputs have."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.llm_engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=4))

    def encode(self, prompts: list[Any], **options: Any) -> list[Any]:
        self.calls.append({"prompts": prompts, **options})
        sizes = [len(prompt) if isinstance(prompt, str) else len(prompt["prompt_token_ids"]) for prompt in prompts]
        return [SimpleNamespace(outputs=SimpleNamespace(data=torch.tensor([size, 0.5]).bfloat16())) for size in sizes]

    def chat(self, messages: list[Any], params: list[Any], **options: Any) -> list[Any]:
        if any(conversation[0]["content"] == "too long" for conversation in messages):
            raise ValueError("the prompt is longer than the maximum model length of 4")
        self.calls.append({"messages": messages, "params": params, **options})
        output = SimpleNamespace(text="yes", token_ids=[5, 6], finish_reason="stop")
        return [SimpleNamespace(outputs=[output], prompt_token_ids=[1, 2, 3]) for _ in messages]


def _texts(*texts: str | None) -> DocumentBatch:
    return DocumentBatch(data=pa.table({"id": list(range(len(texts))), "text": pa.array(texts, pa.large_string())}))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_the_error_says_what_to_install() -> None:
    for check in (VLLMEmbeddingModelStage("m/n").check_environment, VLLMClient("m/n").check_environment):
        with pytest.raises(MissingExtraError, match=r"pip install 'gristmill\[vllm\]'"):
            check()
    with pytest.raises(MissingExtraError, match="vllm"):
        vllm_engine.start_engine({"model": "m"})


def test_embeddings_are_asked_for_in_parts_and_in_order() -> None:
    stage = VLLMEmbeddingModelStage("m/n", pretokenize=False, model_inference_batch_size=2, max_chars=3)
    stage.model = engine = Engine()
    result = stage.process(_texts("a", "bb", "dddd", None)).to_pyarrow()
    assert [call["prompts"] for call in engine.calls] == [["a", "bb"], ["ddd"]]
    assert engine.calls[0]["pooling_task"] == "embed"
    assert engine.calls[0]["tokenization_kwargs"] == {"truncation": True, "max_length": 4}
    assert result.column_names == ["id", "text", "embeddings"]
    assert result["embeddings"].to_pylist() == [[1.0, 0.5], [2.0, 0.5], [3.0, 0.5], None]
    assert result.schema.field("embeddings").type.value_type == pa.float32()


def test_tokens_and_kept_columns() -> None:
    stage = VLLMEmbeddingModelStage("m/n", metadata_fields=["id"], embedding_output_dtype="float16")
    stage.model = engine = Engine()

    def tokenizer(texts: list[str], **options: Any) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(range(len(text)))[: options["max_length"]] for text in texts]}

    stage.tokenizer = tokenizer
    result = stage.process(_texts("abcdefgh", "ab")).to_pyarrow()
    assert engine.calls[0]["prompts"] == [{"prompt_token_ids": [0, 1, 2, 3]}, {"prompt_token_ids": [0, 1]}]
    assert result.column_names == ["id", "embeddings"]
    assert result["embeddings"].to_pylist() == [[4.0, 0.5], [2.0, 0.5]]
    assert result.schema.field("embeddings").type.value_type == pa.float16()
    assert np.isfinite(np.array(result["embeddings"].to_pylist())).all()


def test_what_the_engine_is_started_with() -> None:
    stage = VLLMEmbeddingModelStage("m/n", {"max_model_len": 512, "gpu_memory_utilization": 0.5}, hf_token="secret")
    arguments = stage.engine_arguments("folder")  # type: ignore[arg-type]
    assert arguments == {
        "model": "folder", "runner": "pooling", "trust_remote_code": False,
        "max_model_len": 512, "gpu_memory_utilization": 0.5,
    }  # fmt: skip
    assert stage.resources.gpus == 1
    assert engine_arguments("f", {}, runner="generate")["runner"] == "generate"
    with pytest.raises(UsageError, match="'model', which is set by other parameters"):
        VLLMEmbeddingModelStage("m/n", {"model": "other"})
    with pytest.raises(NotSupportedError, match="never run"):
        VLLMClient("m/n", vllm_init_kwargs={"trust_remote_code": True})
    with pytest.raises(UsageError, match="embedding_output_dtype='int8'"):
        VLLMEmbeddingModelStage("m/n", embedding_output_dtype="int8")  # type: ignore[arg-type]


def test_what_a_question_becomes() -> None:
    config = GenerationConfig(max_tokens=10, temperature=0.5, top_k=None, stop="END", seed=None)
    assert sampling_arguments(config, schema={"type": "object"}) == {
        "n": 1, "max_tokens": 10, "temperature": 0.5, "top_p": 0.95, "top_k": 0, "seed": None,
        "stop": ["END"], "structured_outputs": {"type": "object"},
    }  # fmt: skip


def test_answers_are_read_and_a_refused_question_stays_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "sampling_params", lambda arguments: arguments)
    client = VLLMClient("m/n")
    client._engine = engine = Engine()
    questions = [
        Question([{"role": "user", "content": text}], GenerationConfig(), {"thinking": False} if text == "c" else {})
        for text in ("a", "too long", "b", "c")
    ]
    found = client.answer_batch(questions)
    assert [type(one) for one in found].count(LLMRequestError) == 1
    assert isinstance(found[1], LLMRequestError)
    answer: Any = found[0]
    assert (answer.texts, answer.prompt_tokens, answer.completion_tokens) == (("yes",), 3, 2)
    assert {str(call["chat_template_kwargs"]) for call in engine.calls} == {"None", "{'thinking': False}"}
