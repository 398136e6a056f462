"""Padding on the left and on the right lead to the same results, for every kind of network and back end."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    GPT2Config,
    MPNetConfig,
    Qwen2Config,
    RobertaConfig,
)

from gristmill.stages.text.classifiers import FineWebEduClassifier
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.stages.text.embedders import EmbeddingCreatorStage
from gristmill.stages.text.models.padding import from_first_token, moved, padding_before
from tests.unit.stages.text.models.tiny import batch_of, deberta_config, make_classifier, make_tokenizer, run, texts

SIZE = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 80, "pad_token_id": 0, "initializer_range": 0.5,
}  # fmt: skip
CONFIGS: dict[str, Callable[[], Any]] = {
    "deberta": deberta_config,
    "deberta with places": lambda: deberta_config(position_biased_input=True),
    "bert": lambda: BertConfig(**SIZE),
    "roberta": lambda: RobertaConfig(**SIZE),
    "mpnet": lambda: MPNetConfig(**SIZE),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=64, dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=80, initializer_range=0.5
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=80, pad_token_id=0, initializer_range=0.5
    ),
    "qwen2": lambda: Qwen2Config(**SIZE, num_key_value_heads=2),
}
VALUES = ["", *texts(60, seed=3)]


def made(kind: str, folder: Path, *, num_labels: int | None) -> str:
    torch.manual_seed(0)
    config = CONFIGS[kind]()
    if num_labels is None:
        network = AutoModel.from_config(config)
    else:
        config.num_labels = num_labels
        network = AutoModelForSequenceClassification.from_config(config)
    network.eval().save_pretrained(str(folder))
    make_tokenizer(folder)
    return str(folder)


def column(make: Any, name: str, **options: Any) -> np.ndarray[Any, Any]:
    return np.array(run(make(**options).decompose(), batch_of(VALUES)).column(name).to_pylist())


@pytest.mark.parametrize("backend", ["torch", "torch-int8"])
@pytest.mark.parametrize("more", [{}, {"pooling": "mean"}, {"token_bag": True}], ids=str)
def test_classifiers_on_a_base_model(more: dict[str, Any], backend: Any, tmp_path: Path) -> None:
    folder = make_classifier(tmp_path / "model", self_contained=True)
    if more:
        from safetensors.torch import load_file, save_file

        from gristmill.stages.text.classifiers.deberta import Deberta

        config = {**json.loads((folder / "config.json").read_text()), **more}
        (folder / "config.json").write_text(json.dumps(config))
        weights = load_file(str(folder / "model.safetensors"))
        random = {name: torch.randn_like(tensor) for name, tensor in Deberta(config).state_dict().items()}
        save_file({**random, **weights}, str(folder / "model.safetensors"))
    right, left = (
        column(
            DistributedDataClassifier, "p", model_identifier=str(folder), padding_side=side, score_field="p",
            cpu_backend=backend,
        )
        for side in ("right", "left")
    )  # fmt: skip
    assert np.abs(right - left).max() < 1e-5
    assert len(set(right.argmax(1))) > 1


@pytest.mark.parametrize("kind", CONFIGS)
def test_sequence_classifiers(kind: str, tmp_path: Path) -> None:
    folder = made(kind, tmp_path / "model", num_labels=3)
    options = {"model_identifier": folder, "score_field": "p"}
    right = column(DistributedDataClassifier, "p", **options)
    assert np.abs(right - column(DistributedDataClassifier, "p", **options, padding_side="left")).max() < 1e-5
    assert len(set(right.argmax(1))) > 1


@pytest.mark.parametrize("kind", ["deberta", "bert"])
def test_scores(kind: str, tmp_path: Path) -> None:
    options = {"model_identifier": made(kind, tmp_path / "model", num_labels=1), "max_seq_length": 64}
    right = column(FineWebEduClassifier, "fineweb-edu-score-float", **options)
    left = column(FineWebEduClassifier, "fineweb-edu-score-float", **options, padding_side="left")
    assert np.abs(right - left).max() < 1e-5
    assert right.std() > 0.1


@pytest.mark.parametrize("pooling", ["mean_pooling", "last_token"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_embeddings(kind: str, pooling: str, tmp_path: Path) -> None:
    options = {
        "model_identifier": made(kind, tmp_path / "model", num_labels=None),
        "use_sentence_transformer": False,
        "embedding_pooling": pooling,
    }
    right = column(EmbeddingCreatorStage, "embeddings", **options)
    assert np.abs(right - column(EmbeddingCreatorStage, "embeddings", **options, padding_side="left")).max() < 1e-5
    assert right.std(0).max() > 0.01


def test_embeddings_in_eight_bits(tmp_path: Path) -> None:
    folder = made("bert", tmp_path / "model", num_labels=None)
    options = {"model_identifier": folder, "use_sentence_transformer": False, "cpu_backend": "torch-int8"}
    right = column(EmbeddingCreatorStage, "embeddings", **options)
    assert np.abs(right - column(EmbeddingCreatorStage, "embeddings", **options, padding_side="left")).max() < 1e-5


def test_vectors_of_tokens_come_back_where_the_tokens_were() -> None:
    torch.manual_seed(0)
    plain = AutoModel.from_config(CONFIGS["bert"]()).eval()
    ids, mask = torch.tensor([[0, 0, 1, 7, 2], [1, 8, 9, 5, 2]]), torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    with torch.no_grad():
        alone = plain(input_ids=ids[:1, 2:], attention_mask=mask[:1, 2:]).last_hidden_state
        shifted = plain(input_ids=ids, attention_mask=mask).last_hidden_state
        network = from_first_token(plain)
        found = network(input_ids=ids, attention_mask=mask)
        pair = network(input_ids=ids, attention_mask=mask, return_dict=False)
    assert (found.last_hidden_state[0, 2:] - alone[0]).abs().max() < 1e-5
    assert (shifted[0, 2:] - alone[0]).abs().max() > 0.1  # what the network gives by itself
    assert torch.equal(found[0], pair[0])


def test_rows_without_any_token_and_holes_stay_as_they_are() -> None:
    mask = torch.tensor([[0, 0, 0], [0, 1, 0], [1, 0, 1]])
    before = padding_before(mask)
    assert before is not None
    assert before.tolist() == [0, 1, 0]
    assert moved(torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]]), before).tolist() == [[1, 2, 3], [5, 6, 4], [7, 8, 9]]
    assert padding_before(mask[2:]) is None
