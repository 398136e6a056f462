"""Annotation against `transformers serve`, a server that others wrote, with a tiny model made here."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.models.client import OpenAIClient
from gristmill.pipeline import Pipeline
from gristmill.stages.text.annotate import LLMStage
from gristmill.stages.text.io import JsonlReader, JsonlWriter

pytestmark = [pytest.mark.slow, pytest.mark.models]
TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


def _make_model(folder: Path) -> Path:
    """A Llama of two small layers with random weights, over bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate([*letters, "<eos>"])}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<eos>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=257, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=512, eos_token_id=256, pad_token_id=256, bos_token_id=None,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The URL of a running server, and the name of its model."""
    for package in ("accelerate", "fastapi", "openai", "transformers", "uvicorn"):
        pytest.importorskip(package)
    folder = _make_model(tmp_path_factory.mktemp("model"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--dtype", "float32"]
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", str(folder), *options]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            ends = time.monotonic() + 240
            while True:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5):
                        break
                except (OSError, urllib.error.URLError):
                    if process.poll() is not None or time.monotonic() > ends:
                        process.kill()
                        pytest.fail(process.stdout.read().decode()[-3000:] if process.stdout else "no server")
                    time.sleep(0.2)
            yield f"http://127.0.0.1:{port}/v1", str(folder)
        finally:
            process.kill()


def _answers(source: Path, output: Path, url: str, model: str) -> dict[str, str]:
    stage = LLMStage(
        "Rephrase: {{ text }}", model=model, base_url=url, max_concurrent_requests=2, truncated="keep",
        generation_config={"max_tokens": 8, "top_p": None, "temperature": None},
    )  # fmt: skip
    job = Pipeline(name="serve", stages=[JsonlReader(str(source)), stage, JsonlWriter(str(output))])
    job.run(LocalExecutor(config={"num_cpus": 1}), progress=False, fresh=True, error_budget=None)
    lines = [line for path in output.glob("*.jsonl") for line in path.read_text(encoding="utf-8").splitlines()]
    return {row["id"]: row["answer"] for row in map(json.loads, lines)}


def test_a_run_on_a_real_server(served: tuple[str, str], tmp_path: Path) -> None:
    url, model = served
    source = tmp_path / "in.jsonl"
    rows = [{"id": f"d{number}", "text": f"document number {number} ä"} for number in range(6)]
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    first = _answers(source, tmp_path / "out", url, model)
    assert first
    record = json.loads((tmp_path / "out.gristmill" / "run.json").read_text(encoding="utf-8"))
    figures = next(stage["custom"] for stage in record["stages"] if stage["stage"] == "llm")
    assert figures["llm_requests"] == 6
    assert figures["llm_prompt_tokens"] > 6 * 20
    # A second run needs no server at all.
    assert _answers(source, tmp_path / "out", "http://127.0.0.1:9/v1", model) == first


@pytest.mark.parametrize("stream", [False, True])
def test_a_question_to_a_real_server(served: tuple[str, str], stream: bool) -> None:
    url, model = served
    client = OpenAIClient(base_url=url)
    texts = client.query_model(
        messages=[{"role": "user", "content": "hello"}],
        model=model,
        generation_config={"max_tokens": 5, "stream": stream, "extra_kwargs": {"stream_options": None}},
    )
    client.close()
    assert len(texts) == 1
    assert isinstance(texts[0], str)
