"""Trains small classifiers on a CPU in minutes, a linear one or a DeBERTa from scratch; saves and tests them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from gristmill.errors import UsageError
from gristmill.stages.text.classifiers.linear import LinearModel
from gristmill.training.labelled_data import Evaluation, LabelledTexts
from gristmill.training.logistic import Features, fit_logistic, telling_reach

Progress = Callable[[str, float], None]
"""Told what is being done and which share of it is done."""


def silent(what: str, done: float) -> None:
    """Tell nobody."""


def train_linear(
    data: LabelledTexts,
    *,
    bits: int = 32,
    min_texts: int = 2,
    strength: float = 10.0,
    steps: int = 60,
    progress: Progress = silent,
) -> LinearModel:
    """A linear classifier, fitted by L-BFGS to the regularised logistic loss.

    Args:
        data: What to learn from.
        bits: Words and pairs are hashed into 2 to this power buckets: 32 keep them apart, fewer make a smaller model.
        min_texts: Words and pairs that fewer texts have do not count, unless none is in as many.
        strength: How much the data count against the regularisation (the C of logistic regression).
        steps: The most steps of the optimiser.
        progress: Told about every step.
    """
    from gristmill.kernels.linear_features import linear_features
    from gristmill.kernels.text_column import text_column

    column = text_column(data.texts)
    ends, hashed, values = linear_features(column.data, column.offsets, bits)
    rows, classes = len(data), len(data.labels)
    buckets, places, texts = np.unique(hashed, return_inverse=True, return_counts=True)
    counts = texts >= min(min_texts, texts.max(initial=1))
    # Smoothed rarity (Spärck Jones, 1972), as usual for TF-IDF.
    rarity = (np.log((1 + rows) / (1 + texts)) + 1).astype(np.float32)
    kept = counts[places]
    row_of = np.repeat(np.arange(rows), np.diff(ends))[kept]
    values = values[kept] * rarity[places[kept]]
    norms = np.sqrt(np.bincount(row_of, values.astype(np.float64) ** 2, minlength=rows))
    values = (values / np.maximum(norms, 1e-12)[row_of]).astype(np.float32)
    ends = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=rows))])
    features = Features.of(ends, places[kept], values)
    fitted = fit_logistic(
        features, data.classes, classes, strength=strength, steps=steps,
        reach=telling_reach(features, data.classes, classes),
        on_step=lambda calls: progress("fitting", min(calls / (1.25 * steps), 1.0)),
    )  # fmt: skip
    return LinearModel(data.labels, bits, buckets[counts], fitted.sparse.numpy(), rarity[counts], fitted.bias.numpy())


def train_deberta(
    data: LabelledTexts,
    out: Path,
    *,
    minutes: float = 5.0,
    vocabulary: int = 8000,
    width: int = 128,
    layers: int = 2,
    max_seq_length: int = 128,
    learning_rate: float = 1e-3,
    seed: int = 0,
    progress: Progress = silent,
) -> None:
    """Train a small DeBERTa and its tokenizer from scratch for a given time, and save them as a classifier.

    Args:
        data: What to learn from.
        out: The folder to write.
        minutes: How long to train.
        vocabulary: The tokens of the tokenizer.
        width: The width of the network.
        layers: Its layers.
        max_seq_length: The most tokens of a text that are looked at.
        learning_rate: The highest rate; it rises at first and falls to zero at the end of the time.
        seed: Fixes the first weights and the order of the texts.
        progress: Told about every step.
    """
    from transformers import DebertaV2Config

    from gristmill.stages.text.classifiers.deberta import Deberta

    torch.manual_seed(seed)
    progress("making the tokenizer", 0.0)
    tokenizer = new_tokenizer(data.texts, vocabulary, max_seq_length)
    base = DebertaV2Config(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 32),
        intermediate_size=4 * width, max_position_embeddings=max_seq_length, relative_attention=True,
        position_buckets=32, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
        position_biased_input=False, type_vocab_size=0, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    config = {**classifier_config(data, base.to_dict()), "base_model": "scratch"}
    network = Deberta(config)
    ids = tokenizer(data.texts, truncation=True, max_length=max_seq_length)["input_ids"]
    train_network(network, ids, data.classes, tokenizer, minutes, learning_rate, seed, progress)
    save_classifier(network.eval(), config, tokenizer, out, max_seq_length)


def train_network(
    network: nn.Module,
    ids: list[list[int]],
    classes: Any,
    tokenizer: Any,
    minutes: float,
    learning_rate: float,
    seed: int,
    progress: Progress,
) -> None:
    """Train all weights of a network for a given time; the rate rises at first and falls to zero at the end."""
    order = np.random.default_rng(seed)
    network.train()
    optimiser = torch.optim.AdamW(network.parameters(), lr=learning_rate, weight_decay=0.01)
    start, limit = time.monotonic(), minutes * 60
    while (spent := (time.monotonic() - start) / limit) < 1:
        for rows in _similar(ids, order):
            spent = (time.monotonic() - start) / limit
            if spent >= 1:
                break
            for group in optimiser.param_groups:
                group["lr"] = learning_rate * min(1.0, spent / 0.05) * (1 - spent)
            batch = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
            inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
            loss = nn.functional.cross_entropy(network.logits(inputs), torch.from_numpy(classes[rows]))
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            progress(f"training (loss {loss.item():.2f})", spent)


def evaluate(model: Path, data: LabelledTexts) -> Evaluation:
    """How a saved classifier does on labelled texts, run as a pipeline would run it."""
    import pyarrow as pa

    from gristmill.stages.text.classifiers.base import DistributedDataClassifier
    from gristmill.stages.text.classifiers.linear import CONFIG_NAME, LinearClassifier
    from gristmill.tasks.document import DocumentBatch

    batch: Any = DocumentBatch(data=pa.table({"text": pa.array(data.texts, pa.large_string())}))
    linear = (model / CONFIG_NAME).is_file()
    classifier: Any = (
        LinearClassifier(model_path=str(model)) if linear else DistributedDataClassifier(model_identifier=str(model))
    )
    for stage in classifier.decompose():
        stage.setup()
        batch = stage.process(batch)
        stage.teardown()
    numbers = {label: number for number, label in enumerate(data.labels)}
    predicted = np.array([numbers[label] for label in batch.column("preds").to_pylist()], np.int64)
    return Evaluation.of(data.classes, predicted, data.labels)


def classifier_config(data: LabelledTexts, base: dict[str, Any]) -> dict[str, Any]:
    """The configuration of a classifier with these labels on a backbone."""
    named = {str(number): label for number, label in enumerate(data.labels)}
    return {
        "base_config": base,
        "fc_dropout": 0.1,
        "id2label": named,
        "label2id": {v: int(k) for k, v in named.items()},
    }


def save_classifier(network: nn.Module, config: dict[str, Any], tokenizer: Any, out: Path, max_seq_length: int) -> None:
    """Write a classifier in the form that `DistributedDataClassifier(model_identifier=out)` loads."""
    out.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().contiguous().clone() for name, tensor in network.state_dict().items()}
    save_file(state, str(out / "model.safetensors"))
    (out / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n", encoding="utf-8")
    tokenizer.model_max_length = max_seq_length
    tokenizer.save_pretrained(str(out))


def new_tokenizer(texts: list[str], vocabulary: int, max_seq_length: int) -> Any:
    """A tokenizer of byte pairs made from the texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if vocabulary < 300:
        raise UsageError(f"vocabulary={vocabulary}: give at least 300, as every byte is a token.")
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )  # fmt: skip
    made.train_from_iterator((text[:4000] for text in texts), trainer)
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
        model_max_length=max_seq_length,
    )  # fmt: skip


def _similar(ids: list[list[int]], rng: np.random.Generator, size: int = 32) -> list[Any]:
    """Batches of texts of similar length, in random order."""
    lengths = np.array([len(row) for row in ids]) + rng.uniform(0, 8, len(ids))
    order = np.argsort(lengths)
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return [batches[place] for place in rng.permutation(len(batches))]
