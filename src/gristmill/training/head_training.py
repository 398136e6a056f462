"""Trains a classification head on an encoder, from one pass of the encoder over the texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gristmill.stages.text.classifiers.token_bag import token_features, token_rarity
from gristmill.stages.text.models.loading import load_network, load_tokenizer
from gristmill.stages.text.models.sources import fetch_model, read_config
from gristmill.training.labelled_data import LabelledTexts
from gristmill.training.logistic import Features, Integers, fit_logistic, logits_of
from gristmill.training.training import (
    Progress,
    classifier_config,
    save_classifier,
    silent,
    train_network,
)

# What is tried for the encoder's vectors, from strong regularisation to weak. Tokens always count as much as the linear
# classifier lets them.
DENSE_STRENGTHS = (1e-5, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
TOKEN_STRENGTH = 20.0
_FOLDS = 3


def train_head(
    data: LabelledTexts,
    encoder: str,
    out: Path,
    *,
    cache_dir: str | None = None,
    max_seq_length: int = 2048,
    window: int = 256,
    strength: float | None = None,
    minutes: float = 0.0,
    learning_rate: float = 5e-5,
    seed: int = 0,
    progress: Progress = silent,
) -> None:
    """Fit a head on an encoder, and save both as one classifier.

    The head sees the mean of the encoder's tokens, which tells topics, and which tokens occur (TF-IDF), which tells
    what the encoder was not made for, such as opinions.

    Args:
        data: What to learn from.
        encoder: A hub id, a folder or `package:NAME`.
        out: The folder to write.
        cache_dir: Where downloads are kept.
        max_seq_length: The most tokens of a text that count.
        window: The most tokens of a text that the encoder reads.
        strength: How much the encoder's vectors count against the regularisation; None chooses it by trying on parts of
            the data.
        minutes: How long the encoder is trained together with the fitted head; 0 leaves it as it is.
        learning_rate: The highest rate of that training.
        seed: Fixes the parts, and the order of the texts in that training.
        progress: Told about every batch and step.
    """
    from gristmill.stages.text.classifiers.deberta import Deberta, base_config_of
    from gristmill.stages.text.models.devices import keep_freed_memory

    keep_freed_memory()
    folder = fetch_model(encoder, cache_dir=cache_dir)
    read_config(folder)
    backbone = load_network("AutoModel", folder, dtype=torch.float32)
    tokenizer = load_tokenizer(folder)
    window = min(window, max_seq_length)
    ids = tokenizer(data.texts, truncation=True, max_length=max_seq_length)["input_ids"]
    vectors = mean_vectors(backbone, tokenizer, [row[:window] for row in ids], progress)
    centre, scale = vectors.mean(0), vectors.std(0).clamp(min=1e-6)
    rarity = token_rarity(ids, backbone.config.vocab_size, without=tokenizer.all_special_ids)
    features = Features.of(*token_features(ids, rarity), dense=(vectors - centre) / scale)
    number = len(data.labels)
    if strength is None:
        strength = best_dense_strength(
            features, data.classes, number, first_rows=data.first_rows(), seed=seed, progress=progress
        )
    factor = (strength / TOKEN_STRENGTH) ** 0.5
    fitted = fit_logistic(features.with_dense_times(factor), data.classes, number, strength=TOKEN_STRENGTH, steps=100)
    progress("fitting", 1.0)
    own = {"base_model": encoder, "pooling": "mean", "window": window, "token_bag": True}
    config = {**classifier_config(data, base_config_of(backbone)), **own}
    network = Deberta(config)
    head = fitted.dense.T * factor / scale
    with torch.no_grad():
        network.model.load_state_dict(backbone.state_dict())
        # The standardisation of the vectors goes into the head, so that the saved network needs none.
        network.fc.weight.copy_(head)
        network.fc.bias.copy_(fitted.bias - head @ centre)
        bag: Any = network.bag
        bag.rarity.copy_(torch.from_numpy(rarity))
        bag.weights.weight[torch.from_numpy(features.present)] = fitted.sparse
    if minutes > 0:
        torch.manual_seed(seed)
        train_network(network, ids, data.classes, tokenizer, minutes, learning_rate, seed, progress)
    save_classifier(network.eval(), config, tokenizer, out, max_seq_length)


def mean_vectors(
    backbone: nn.Module, tokenizer: Any, ids: list[list[int]], progress: Progress = silent
) -> torch.Tensor:
    """The mean of the encoder's last states for each list of tokens."""
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    vectors = torch.empty(len(ids), backbone.config.hidden_size)
    for start in range(0, len(order), 16):
        rows = order[start : start + 16]
        batch = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
        with torch.no_grad():
            hidden = backbone(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
            weights = batch["attention_mask"].unsqueeze(-1)
            vectors[rows] = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
        progress("encoding", (start + len(rows)) / len(order))
    return vectors


def best_dense_strength(
    features: Features,
    classes: Integers,
    number: int,
    *,
    first_rows: Integers | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> float:
    """The strength whose heads, fitted to two thirds, find the other third least surprising.

    Args:
        features: What is known of each text.
        classes: The true class of each text.
        number: How many classes there are.
        first_rows: For each text the first one that is equal, since equal texts must be in the same third; None where
            all differ.
        seed: Fixes the thirds.
        progress: Told about every third.
    """
    different, text_of = np.unique(np.arange(len(features)) if first_rows is None else first_rows, return_inverse=True)
    folds = (np.random.default_rng(seed).permutation(len(different)) % _FOLDS)[text_of]
    losses = dict.fromkeys(DENSE_STRENGTHS, 0.0)
    for fold in range(_FOLDS):
        inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if not len(inside) or not len(outside):  # with fewer than three different texts
            continue
        learn, test = features.part(inside), features.part(outside)
        for strength in DENSE_STRENGTHS:
            factor = (strength / TOKEN_STRENGTH) ** 0.5
            fitted = fit_logistic(
                learn.with_dense_times(factor), classes[inside], number, strength=TOKEN_STRENGTH, steps=40
            )
            values = logits_of(test.with_dense_times(factor), fitted)
            losses[strength] += float(nn.functional.cross_entropy(values, torch.from_numpy(classes[outside])))
        progress("fitting", (fold + 1) / (_FOLDS + 1))
    return min(losses, key=losses.__getitem__)
