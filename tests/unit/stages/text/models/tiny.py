"""Makes small real models on the fly: the files that the hub would give, with random weights."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import AutoModelForSequenceClassification, DebertaV2Config, DebertaV2Model, PreTrainedTokenizerFast

from gristmill.tasks import DocumentBatch

WORDS = [
    "the",
    "a",
    "of",
    "to",
    "and",
    "in",
    "is",
    "it",
    "that",
    "for",
    "was",
    "on",
    "are",
    "with",
    "as",
    "his",
    "they",
    "at",
    "be",
    "this",
    "from",
    "have",
    "or",
    "by",
    "one",
    "had",
    "not",
    "but",
    "what",
    "all",
]
LABELS = ("High", "Medium", "Low")


def make_tokenizer(folder: Path, *, max_length: int = 64, extra: Sequence[str] = ()) -> None:
    vocabulary = {word: number for number, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *WORDS, *extra])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        unk_token="[UNK]",
        model_max_length=max_length,
    ).save_pretrained(str(folder))


def deberta_config(**changes: Any) -> DebertaV2Config:
    settings = {
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 64,
        "relative_attention": True,
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
        "pad_token_id": 0,
        "type_vocab_size": 0,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "initializer_range": 0.5,
    }
    return DebertaV2Config(**{**settings, **changes})


def make_classifier(
    folder: Path, *, labels: Sequence[str] = LABELS, seed: int = 0, self_contained: bool = False
) -> Path:
    """A classifier in the published form: config.json, model.safetensors, tokenizer, and a base model beside it."""
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    base = DebertaV2Model(deberta_config()).eval()
    config: dict[str, Any] = {
        "base_model": "unused",
        "fc_dropout": 0.2,
        "id2label": {str(number): label for number, label in enumerate(labels)},
    }
    if self_contained:
        config["base_config"] = base.config.to_dict()
    else:
        base_folder = folder.parent / f"{folder.name}-base"
        base.save_pretrained(str(base_folder))
        config["base_model"] = str(base_folder)
    head = torch.nn.Linear(32, len(labels))
    torch.nn.init.normal_(head.weight, std=1.0)
    state = {f"model.{name}": tensor.contiguous() for name, tensor in base.state_dict().items()}
    state |= {f"fc.{name}": tensor.contiguous() for name, tensor in head.state_dict().items()}
    save_file(state, str(folder / "model.safetensors"))
    (folder / "config.json").write_text(json.dumps(config))
    make_tokenizer(folder)
    return folder


def make_sequence_classifier(folder: Path, *, num_labels: int = 3, seed: int = 0) -> Path:
    """A transformers sequence classifier (a regression with one label)."""
    torch.manual_seed(seed)
    config = deberta_config(num_labels=num_labels)
    AutoModelForSequenceClassification.from_config(config).eval().save_pretrained(str(folder))
    make_tokenizer(folder)
    return folder


def texts(number: int, *, seed: int = 0, longest: int = 50) -> list[str]:
    """Texts of very different lengths."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, size=rng.integers(0, longest))) for _ in range(number)]


def batch_of(values: Sequence[str | None], **columns: Sequence[Any]) -> DocumentBatch:
    named = {"text": pa.array(values, pa.large_string()), "id": pa.array(range(len(values)))}
    return DocumentBatch(data=pa.table({**named, **{name: pa.array(column) for name, column in columns.items()}}))


def run(stages: Sequence[Any], batch: DocumentBatch) -> DocumentBatch:
    """What a worker does with the stages of a composite, one after the other."""
    for stage in stages:
        stage.setup_on_node()
        stage.setup()
        batch = stage.process(batch)
        stage.teardown()
    return batch
