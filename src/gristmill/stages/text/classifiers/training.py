"""Trains small classifiers on a CPU in minutes: linear, a head on an encoder, or a small DeBERTa from scratch."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from gristmill.errors import UsageError
from gristmill.stages.text.classifiers.labelled_data import Evaluation, LabelledTexts
from gristmill.stages.text.classifiers.linear import LinearModel
from gristmill.stages.text.models.sources import fetch_model, read_config

Progress = Callable[[str, float], None]
"""Told what is being done and which share of it is done."""


# What is tried for the head on an encoder, from strong regularisation to weak.
_STRENGTHS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_FOLDS = 3


def _silent(what: str, done: float) -> None:
    return None


def train_linear(
    data: LabelledTexts, *, bits: int = 18, strength: float = 20.0, steps: int = 60, progress: Progress = _silent
) -> LinearModel:
    """A linear classifier, fitted by L-BFGS to the regularised logistic loss.

    Args:
        data: What to learn from.
        bits: The number of hashed features is 2 to this power.
        strength: How much the data count against the regularisation (the C of logistic regression).
        steps: The most steps of the optimiser.
        progress: Told about every step.
    """
    from gristmill.kernels.linear_features import linear_features
    from gristmill.kernels.text_column import text_column

    column = text_column(data.texts)
    ends, buckets, values = linear_features(column.data, column.offsets, bits)
    size, rows, classes = 1 << bits, len(data), len(data.labels)
    # Smoothed rarity (Spärck Jones, 1972), as usual for TF-IDF.
    rarity = (np.log((1 + rows) / (1 + np.bincount(buckets, minlength=size))) + 1).astype(np.float32)
    values = values * rarity[buckets]
    row_of = np.repeat(np.arange(rows), np.diff(ends))
    norms = np.sqrt(np.bincount(row_of, values.astype(np.float64) ** 2, minlength=rows))
    values = (values / np.maximum(norms, 1e-12)[row_of]).astype(np.float32)
    # Only the buckets that occur are fitted; the others stay zero.
    present, compact = np.unique(buckets, return_inverse=True)
    matrix = _sparse(ends, compact, values, (rows, len(present)))
    order = np.argsort(compact, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(compact, minlength=len(present)))])
    transposed = _sparse(starts, row_of[order], values[order], (len(present), rows))
    truth = torch.from_numpy(data.classes)
    weights = torch.zeros(len(present), classes, requires_grad=True)
    bias = torch.zeros(classes, requires_grad=True)
    penalty = 1.0 / (strength * rows)
    optimiser = torch.optim.LBFGS([weights, bias], max_iter=steps, history_size=10, line_search_fn="strong_wolfe")
    calls = 0

    def loss() -> torch.Tensor:
        nonlocal calls
        calls += 1
        progress("fitting", min(calls / (1.25 * steps), 1.0))
        with torch.no_grad():
            logits = matrix @ weights + bias
            wrong = torch.softmax(logits, dim=1)
            value = nn.functional.cross_entropy(logits, truth) + 0.5 * penalty * (weights**2).sum()
            wrong[torch.arange(rows), truth] -= 1
            wrong /= rows
            weights.grad = transposed @ wrong + penalty * weights
            bias.grad = wrong.sum(0)
        return value

    optimiser.step(loss)
    full = np.zeros((size, classes), np.float32)
    full[present] = weights.detach().numpy()
    return LinearModel(data.labels, bits, full, rarity, bias.detach().numpy().astype(np.float32))


def train_head(
    data: LabelledTexts,
    encoder: str,
    out: Path,
    *,
    cache_dir: str | None = None,
    max_seq_length: int = 256,
    strength: float | None = None,
    minutes: float = 0.0,
    learning_rate: float = 5e-5,
    seed: int = 0,
    progress: Progress = _silent,
) -> None:
    """Fit a classification head on the mean of an encoder's tokens, and save both as one classifier.

    Args:
        data: What to learn from.
        encoder: A hub id, a folder or `package:NAME`.
        out: The folder to write.
        cache_dir: Where downloads are kept.
        max_seq_length: The most tokens of a text that are looked at.
        strength: How much the data count against the regularisation; None chooses it by trying on parts of the data.
        minutes: How long the encoder is trained together with the fitted head; 0 leaves it as it is.
        learning_rate: The highest rate of that training.
        seed: Fixes the order of the texts in that training.
        progress: Told about every batch and step.
    """
    from transformers import AutoModel, AutoTokenizer

    from gristmill.stages.text.classifiers.deberta import Deberta, base_config_of
    from gristmill.stages.text.models.devices import quiet_loading

    folder = fetch_model(encoder, cache_dir=cache_dir)
    read_config(folder)
    with quiet_loading():
        backbone = AutoModel.from_pretrained(
            str(folder), local_files_only=True, use_safetensors=True, dtype=torch.float32
        ).eval()
    tokenizer = AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    vectors = _mean_vectors(backbone, tokenizer, data.texts, max_seq_length, progress)
    scale = vectors.std(0).clamp(min=1e-6)
    centre = vectors.mean(0)
    even, truth = (vectors - centre) / scale, torch.from_numpy(data.classes)
    if strength is None:
        strength = _best_strength(even, truth, len(data.labels), seed, progress)
    head = _fit_head(even, truth, len(data.labels), strength)
    progress("fitting", 1.0)
    config = {**_config(data, base_config_of(backbone)), "base_model": encoder, "pooling": "mean"}
    network = Deberta(config)
    with torch.no_grad():
        network.model.load_state_dict(backbone.state_dict())
        # The standardisation of the vectors goes into the head, so that the saved network needs none.
        network.fc.weight.copy_(head.weight / scale)
        network.fc.bias.copy_(head.bias - (head.weight / scale) @ centre)
    if minutes > 0:
        torch.manual_seed(seed)
        ids = tokenizer(data.texts, truncation=True, max_length=max_seq_length)["input_ids"]
        _train_network(network, ids, data.classes, tokenizer, minutes, learning_rate, seed, progress)
    _save(network.eval(), config, tokenizer, out, max_seq_length)


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
    progress: Progress = _silent,
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
    tokenizer = _new_tokenizer(data.texts, vocabulary, max_seq_length)
    base = DebertaV2Config(
        vocab_size=len(tokenizer), hidden_size=width, num_hidden_layers=layers, num_attention_heads=max(1, width // 32),
        intermediate_size=4 * width, max_position_embeddings=max_seq_length, relative_attention=True,
        position_buckets=32, norm_rel_ebd="layer_norm", share_att_key=True, pos_att_type=["p2c", "c2p"],
        position_biased_input=False, type_vocab_size=0, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    config = {**_config(data, base.to_dict()), "base_model": "scratch"}
    network = Deberta(config)
    ids = tokenizer(data.texts, truncation=True, max_length=max_seq_length)["input_ids"]
    _train_network(network, ids, data.classes, tokenizer, minutes, learning_rate, seed, progress)
    _save(network.eval(), config, tokenizer, out, max_seq_length)


def _train_network(
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


def _sparse(ends: Any, columns: Any, values: Any, shape: tuple[int, int]) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its sparse tensors a beta; products of them are all we use
        return torch.sparse_csr_tensor(
            torch.from_numpy(ends), torch.from_numpy(columns), torch.from_numpy(values), shape, check_invariants=False
        )


def _config(data: LabelledTexts, base: dict[str, Any]) -> dict[str, Any]:
    named = {str(number): label for number, label in enumerate(data.labels)}
    return {
        "base_config": base,
        "fc_dropout": 0.1,
        "id2label": named,
        "label2id": {v: int(k) for k, v in named.items()},
    }


def _save(network: nn.Module, config: dict[str, Any], tokenizer: Any, out: Path, max_seq_length: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    state = {name: tensor.detach().contiguous().clone() for name, tensor in network.state_dict().items()}
    save_file(state, str(out / "model.safetensors"))
    (out / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n", encoding="utf-8")
    tokenizer.model_max_length = max_seq_length
    tokenizer.save_pretrained(str(out))


def _mean_vectors(
    backbone: nn.Module, tokenizer: Any, texts: list[str], max_seq_length: int, progress: Progress
) -> torch.Tensor:
    ids = tokenizer(texts, truncation=True, max_length=max_seq_length)["input_ids"]
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    vectors = torch.empty(len(ids), backbone.config.hidden_size)
    for start in range(0, len(order), 32):
        rows = order[start : start + 32]
        batch = tokenizer.pad({"input_ids": [ids[row] for row in rows]}, return_tensors="pt")
        with torch.no_grad():
            hidden = backbone(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
            weights = batch["attention_mask"].unsqueeze(-1)
            vectors[rows] = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
        progress("encoding", (start + len(rows)) / len(order))
    return vectors


def _best_strength(vectors: torch.Tensor, truth: torch.Tensor, classes: int, seed: int, progress: Progress) -> float:
    """The strength whose heads, fitted to two thirds, find the other third least surprising."""
    folds = torch.from_numpy(np.random.default_rng(seed).permutation(len(vectors)) % _FOLDS)
    losses = dict.fromkeys(_STRENGTHS, 0.0)
    for fold in range(_FOLDS):
        inside, outside = folds != fold, folds == fold
        head = None
        for strength in _STRENGTHS:
            # From weak to strong, each starting where the one before ended, which saves most of the steps.
            head = _fit_head(vectors[inside], truth[inside], classes, strength, steps=60, start=head)
            with torch.no_grad():
                losses[strength] += float(nn.functional.cross_entropy(head(vectors[outside]), truth[outside]))
        progress("fitting", (fold + 1) / (_FOLDS + 1))
    return min(losses, key=losses.__getitem__)


def _fit_head(
    vectors: torch.Tensor,
    truth: torch.Tensor,
    classes: int,
    strength: float,
    *,
    steps: int = 200,
    start: nn.Linear | None = None,
) -> nn.Linear:
    head = nn.Linear(vectors.shape[1], classes)
    if start is not None:
        head.load_state_dict(start.state_dict())
    else:
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    optimiser = torch.optim.LBFGS(head.parameters(), max_iter=steps, history_size=10, line_search_fn="strong_wolfe")
    penalty = 1.0 / (strength * len(vectors))

    def loss() -> torch.Tensor:
        optimiser.zero_grad()
        value = nn.functional.cross_entropy(head(vectors), truth) + 0.5 * penalty * (head.weight**2).sum()
        value.backward()
        return value

    optimiser.step(loss)
    return head


def _new_tokenizer(texts: list[str], vocabulary: int, max_seq_length: int) -> Any:
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
