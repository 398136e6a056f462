"""Trains networks on a CPU in minutes: a small DeBERTa from scratch, or a classification head on an encoder."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from gristmill.errors import UsageError
from gristmill.stages.text.classifiers.deberta import Deberta
from gristmill.stages.text.models.devices import keep_freed_memory
from gristmill.stages.text.models.loading import load_network, load_tokenizer
from gristmill.stages.text.models.padding import mean_of_tokens
from gristmill.stages.text.models.sources import fetch_model, read_config
from gristmill.training.labelled_data import LabelledTexts, Progress, silent
from gristmill.training.linear import Floats, Integers, check_scikit_learn, fit_logistic

# Candidates for the encoder's vectors, from strong regularisation to weak. Tokens are always weighted as in the linear
# classifier.
DENSE_STRENGTHS = (1e-5, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)
TOKEN_STRENGTH = 20.0
_FOLDS = 3


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
        minutes: Training time in minutes.
        vocabulary: Vocabulary size of the tokenizer.
        width: The width of the network.
        layers: Number of layers.
        max_seq_length: Maximum number of tokens per text.
        learning_rate: The peak learning rate; it warms up and decays to zero at the end of the time.
        seed: Random seed of the initial weights and the order of the texts.
        progress: Notified of every step.
    """
    from transformers import DebertaV2Config

    torch.manual_seed(seed)
    progress("training the tokenizer", 0.0)
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

    The head sees the mean of the encoder's tokens, which captures topics, and which tokens occur (TF-IDF), which
    captures what the encoder was not trained for, such as opinions.

    Args:
        data: What to learn from.
        encoder: A hub id, a folder or `package:NAME`.
        out: The folder to write.
        cache_dir: Where downloads are kept.
        max_seq_length: Maximum number of tokens per text.
        window: Maximum number of tokens per text that the encoder reads.
        strength: Inverse regularisation strength for the encoder's vectors; None chooses it by cross-validation.
        minutes: Minutes of fine-tuning the encoder together with the fitted head; 0 freezes it.
        learning_rate: The peak learning rate of that training.
        seed: Random seed of the parts, and of the order of the texts in that training.
        progress: Notified of every batch and step.

    Raises:
        MissingExtraError: scikit-learn is not installed.
    """
    check_scikit_learn()
    from scipy import sparse

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
    words = token_features(ids, rarity)
    dense = ((vectors - centre) / scale).numpy()
    number = len(data.labels)
    if strength is None:
        strength = best_dense_strength(
            words, dense, data.classes, number, first_rows=data.first_rows(), seed=seed, progress=progress
        )
    factor = (strength / TOKEN_STRENGTH) ** 0.5
    both = sparse.hstack([words, dense * factor], format="csr", dtype=np.float32)
    fitted = fit_logistic(both, data.classes, number, strength=TOKEN_STRENGTH)
    weights, bias = (torch.from_numpy(part) for part in fitted)
    progress("fitting", 1.0)
    own = {"base_model": encoder, "pooling": "mean", "window": window, "token_bag": True}
    config = {**classifier_config(data, backbone.config.to_dict()), **own}
    network = Deberta(config)
    head = weights[len(rarity) :].T * factor / scale
    with torch.no_grad():
        network.model.load_state_dict(backbone.state_dict())
        # The standardisation of the vectors is folded into the head, so that the saved network needs none.
        network.fc.weight.copy_(head)
        network.fc.bias.copy_(bias - head @ centre)
        bag: Any = network.bag
        bag.rarity.copy_(torch.from_numpy(rarity))
        bag.weights.weight.copy_(weights[: len(rarity)])
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
            vectors[rows] = mean_of_tokens(hidden, batch["attention_mask"])
        progress("encoding", (start + len(rows)) / len(order))
    return vectors


def best_dense_strength(
    words: Any,
    dense: Floats,
    classes: Integers,
    number: int,
    *,
    first_rows: Integers | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> float:
    """The strength with the lowest loss in three-fold cross-validation.

    Args:
        words: The features of the tokens of each text, as a sparse matrix.
        dense: The vector of each text.
        classes: The true class of each text.
        number: Number of classes.
        first_rows: For each text the first identical one, since identical texts must be in the same fold; None if all
            differ.
        seed: Random seed of the folds.
        progress: Notified of every fold.
    """
    from scipy import sparse

    different, text_of = np.unique(np.arange(len(dense)) if first_rows is None else first_rows, return_inverse=True)
    folds = (np.random.default_rng(seed).permutation(len(different)) % _FOLDS)[text_of]
    losses = dict.fromkeys(DENSE_STRENGTHS, 0.0)
    for fold in range(_FOLDS):
        inside, outside = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if not len(inside) or not len(outside):  # with fewer than three different texts
            continue
        for strength in DENSE_STRENGTHS:
            factor = (strength / TOKEN_STRENGTH) ** 0.5
            both = sparse.hstack([words, dense * factor], format="csr", dtype=np.float32)
            weights, bias = fit_logistic(both[inside], classes[inside], number, strength=TOKEN_STRENGTH, steps=40)
            values = torch.from_numpy(both[outside] @ weights + bias)
            losses[strength] += float(nn.functional.cross_entropy(values, torch.from_numpy(classes[outside])))
        progress("fitting", (fold + 1) / (_FOLDS + 1))
    return min(losses, key=losses.__getitem__)


def token_rarity(ids: Sequence[Sequence[int]], vocabulary: int, *, without: Sequence[int] = ()) -> Floats:
    """How rare each token is (smoothed, Spärck Jones 1972); meaningless tokens, `without`, count 0."""
    seen = np.zeros(vocabulary, np.int64)
    for row in ids:
        seen[np.unique(np.asarray(row, np.int64))] += 1
    rarity = np.log((1 + len(ids)) / (1 + seen)) + 1
    rarity[list(without)] = 0
    return rarity.astype(np.float32)


def token_features(ids: Sequence[Sequence[int]], rarity: Floats) -> Any:
    """The features of `TokenBag` as a sparse matrix of texts × tokens."""
    from scipy import sparse

    ends, columns, values = [0], [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for row in ids:
        tokens, counts = np.unique(np.asarray(row, np.int64), return_counts=True)
        value = (1 + np.log(counts)) * rarity[tokens]
        columns.append(tokens)
        values.append((value / max(float(np.sqrt((value**2).sum())), 1e-6)).astype(np.float32))
        ends.append(ends[-1] + len(tokens))
    return sparse.csr_matrix((np.concatenate(values), np.concatenate(columns), ends), shape=(len(ids), len(rarity)))


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
    """Train all weights of a network for a given time; the learning rate warms up and decays to zero."""
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
    """A byte-pair tokenizer trained on the texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    if vocabulary < 300:
        raise UsageError(f"vocabulary={vocabulary}: must be at least 300, because every byte is a token.")
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
