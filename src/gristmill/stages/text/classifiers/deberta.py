"""The classification networks: a pretrained transformer with one head, with several, or from transformers itself."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn
from transformers import AutoModel

from gristmill.errors import ModelLoadError, UsageError
from gristmill.stages.text.models.loading import (
    load_network,
    load_settings,
    load_tensors,
    reading,
    stored_settings,
)
from gristmill.stages.text.models.padding import mean_of_tokens, moved, padding_before
from gristmill.stages.text.models.sources import (
    CONFIG_FILES,
    PACKAGE_PREFIX,
    fetch_model,
    hide,
    model_folder,
    read_config,
    weight_files,
)
from gristmill.stages.text.models.tokens import ATTENTION_MASK_FIELD, INPUT_ID_FIELD

FindFolder = Callable[[str], Path]

# Set while weights are about to be loaded over the whole network, so that the backbone's own need not be read; returns
# the folder with the settings of a base model.
_settings_in: contextvars.ContextVar[FindFolder | None] = contextvars.ContextVar("settings_in", default=None)

POOLINGS = ("cls", "mean")


class Deberta(nn.Module, PyTorchModelHubMixin):  # type: ignore[misc]
    """A pretrained transformer with a classification head; returns probabilities.

    Args:
        config: `base_model` (a hub id, a folder or `package:NAME`), `fc_dropout` and `id2label`, as a mapping or a
            dataclass instance. Some optional keys are ours: `base_config`, the backbone's configuration, makes a saved
            classifier independent of the base model's files; `pooling` "mean" averages all tokens instead of using the
            first; `window` is the number of tokens that the backbone reads, if not all; `token_bag` adds a linear
            classifier over all tokens to the head.
    """

    def __init__(self, config: Mapping[str, Any] | Any) -> None:
        super().__init__()
        config = as_mapping(config)
        pooling = config.get("pooling", "cls")
        if pooling not in POOLINGS:
            raise UsageError(f"pooling={pooling!r}: must be one of {POOLINGS}.")
        self.pooling = pooling
        self.model = make_backbone(config)
        self.dropout = nn.Dropout(config["fc_dropout"])
        self.fc = nn.Linear(self.model.config.hidden_size, len(config["id2label"]))
        self.window: int | None = config.get("window")
        bag = TokenBag(self.model.config.vocab_size, len(config["id2label"])) if config.get("token_bag") else None
        self.bag: TokenBag | None = bag

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def uses_first_token_only(self) -> bool:
        """Whether the head uses only the first vector, so that the last layer need not compute the others."""
        cls = type(self)
        return cls.logits is Deberta.logits and cls.forward is Deberta.forward and bool(self.pooling == "cls")

    def logits(self, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The logits of all classes."""
        ids, mask = batch[INPUT_ID_FIELD], batch[ATTENTION_MASK_FIELD]
        before = padding_before(mask)
        if before is not None:
            ids, mask = moved(ids, before), moved(mask, before)
        words = None if self.bag is None else self.bag(ids, mask)
        if self.window is not None:
            ids, mask = ids[:, : self.window], mask[:, : self.window]
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        if self.pooling == "mean":
            pooled = mean_of_tokens(hidden, mask)
        else:
            pooled = hidden[:, 0]
        values: torch.Tensor = self.fc(self.dropout(pooled))
        return values if words is None else values + words

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The probability of each class for each document."""
        return torch.softmax(self.logits(batch).float(), dim=1)

    @classmethod
    def _from_pretrained(cls, **options: Any) -> Any:
        cache_dir = None if options["cache_dir"] is None else str(options["cache_dir"])

        def find(base: str) -> Path:
            if options["local_files_only"]:
                return model_folder(base, cache_dir=cache_dir, files=CONFIG_FILES)
            return fetch_model(base, cache_dir=cache_dir, token=hide(options["token"]), files=CONFIG_FILES)

        with skipping_base_weights(find):
            return super()._from_pretrained(**options)


class TokenBag(nn.Module):  # type: ignore[misc]
    """Computes a value for each class from the tokens that occur, regardless of their order.

    The features are those of TF-IDF: one plus the logarithm of a token's count, times its rarity, scaled to length 1.

    Args:
        vocabulary: Number of tokens.
        classes: Number of classes.
    """

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("rarity", torch.zeros(vocabulary))
        self.weights = nn.Embedding(vocabulary, classes)
        nn.init.zeros_(self.weights.weight)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The values of all classes for each row of tokens."""
        real = mask > 0
        count = _counts(torch.where(real, ids, -1)).float()
        value = (1 + count.log()) * self.rarity[ids] * real
        # Every occurrence of a token carries its share, so that their sum is its value.
        share = value / count
        norm = (value * share).sum(1, keepdim=True).sqrt().clamp(min=1e-6)
        return torch.bmm((share / norm)[:, None, :], self.weights(ids))[:, 0]


def _counts(ids: torch.Tensor) -> torch.Tensor:
    """The number of occurrences of each token in its row."""
    ordered = ids.sort(1).values
    return torch.searchsorted(ordered, ids, right=True) - torch.searchsorted(ordered, ids)


class SequenceClassifier(nn.Module):  # type: ignore[misc]
    """A transformers sequence-classification model that returns probabilities, like `Deberta`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The probability of each class for each document."""
        return torch.softmax(self.model(**batch).logits.float(), dim=1)


class _Head(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, classes)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        return self.fc(pooled)


class MultiHeadClassifier(nn.Module, PyTorchModelHubMixin):  # type: ignore[misc]
    """A transformer with several classification heads over the mean of its tokens; returns their probabilities.

    Args:
        config: `base_model` (or `base_config`) and `target_sizes`, the number of classes of each head.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.backbone = make_backbone(config)
        sizes = list(config["target_sizes"].values())
        for number, size in enumerate(sizes):
            self.add_module(f"head_{number}", _Head(self.backbone.config.hidden_size, size))
        self.num_heads = len(sizes)

    def forward(self, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """The probabilities of each head, one row per document."""
        mask = batch[ATTENTION_MASK_FIELD]
        hidden = self.backbone(input_ids=batch[INPUT_ID_FIELD], attention_mask=mask).last_hidden_state
        pooled = mean_of_tokens(hidden, mask)
        heads = (getattr(self, f"head_{number}") for number in range(self.num_heads))
        return [torch.softmax(head(pooled).float(), dim=1) for head in heads]


def load_classifier(folder: Path, *, cache_dir: str | None = None) -> tuple[nn.Module, list[str]]:
    """The network in a model folder, ready for inference, and its labels by class number.

    Reads the form of `Deberta` and of transformers' sequence classifiers; safetensors only.

    Raises:
        ModelNotFoundError: Files are missing.
        ModelLoadError: They cannot be used.
        UsageError: The model has a single output, which is a score, not a label.
    """
    config = read_config(folder)
    weight_files(folder)
    if "base_model" not in config and "base_config" not in config:
        model = load_network("AutoModelForSequenceClassification", folder, dtype=torch.float32)
        labels = labels_of({"id2label": model.config.id2label})
        check_choice(folder, labels)
        return SequenceClassifier(model).eval(), labels
    absent = [name for name in ("id2label", "fc_dropout") if name not in config]
    if absent:
        raise ModelLoadError(
            f"{folder / 'config.json'} has no {absent[0]!r}, which a classifier on a base model needs; it has "
            f"{', '.join(map(repr, config))}.",
            identifier=str(folder),
        )
    labels = labels_of(config)
    check_choice(folder, labels)
    if "base_config" not in config:
        base = model_folder(config["base_model"], cache_dir=cache_dir, files=CONFIG_FILES)
        config = {**config, "base_model": str(base)}
    with skipping_base_weights(), reading(folder, "configuration"):
        network = Deberta(config)
    return load_weights(network, folder), labels


def load_multi_head(folder: Path, *, cache_dir: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """The network in a model folder, ready for inference, and its configuration."""
    config = read_config(folder)
    if "base_config" not in config:
        config = {**config, "base_model": str(model_folder(config["base_model"], cache_dir=cache_dir))}
    with skipping_base_weights():
        network = MultiHeadClassifier(config)
    return load_weights(network, folder), config


def load_weights(network: nn.Module, folder: Path) -> nn.Module:
    """The network with the weights in `folder`, in float32, ready for inference.

    Raises:
        ModelLoadError: The weights are damaged, or belong to another network.
    """
    state = load_tensors(folder)
    # Buffers such as position ids are saved by some versions of transformers and made anew by others.
    with reading(folder, "weights"):
        missing, unexpected = network.load_state_dict(state, strict=False)
    unexpected = [name for name in unexpected if not name.endswith("position_ids")]
    if missing or unexpected:
        raise ModelLoadError(
            f"The weights in {folder} do not match the network of its config.json: missing {missing[:4]}, unexpected "
            f"{unexpected[:4]}.",
            identifier=str(folder),
        )
    return network.float().eval()


def as_mapping(config: Any) -> Mapping[str, Any]:
    """A configuration as a mapping; dataclass instances are accepted too."""
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        return dataclasses.asdict(config)
    settings: Mapping[str, Any] = config
    return settings


def labels_of(config: Mapping[str, Any]) -> list[str]:
    """The labels of a configuration, by class number."""
    named = {int(number): str(label) for number, label in config["id2label"].items()}
    if sorted(named) != list(range(len(named))):
        raise UsageError(f"id2label must number the labels 0 to {len(named) - 1}; it has {sorted(named)[:10]}.")
    return [named[number] for number in range(len(named))]


def check_choice(folder: Path, labels: Sequence[str]) -> None:
    """Reject a model with a single output: as a probability it would be 1 for every document."""
    if len(labels) < 2:
        raise UsageError(
            f"The model in {folder} has {len(labels)} output ({', '.join(map(repr, labels))}), so it returns a score, "
            "not a label. For a score from 0 to 5 use FineWebEduClassifier(model_identifier=...); for others "
            "subclass ModelStage."
        )


def make_backbone(config: Mapping[str, Any]) -> nn.Module:
    """The transformer that a classifier's configuration names."""
    stored = config.get("base_config")
    if stored is not None:
        made: nn.Module = AutoModel.from_config(stored_settings(stored), trust_remote_code=False)
        return made
    base = config["base_model"]
    find = _settings_in.get()
    if find is not None:
        return AutoModel.from_config(load_settings(find(base)), trust_remote_code=False)
    source = str(model_folder(base)) if base.startswith(PACKAGE_PREFIX) else base
    return AutoModel.from_pretrained(source, use_safetensors=True, trust_remote_code=False)


@contextlib.contextmanager
def skipping_base_weights(find: FindFolder = model_folder) -> Iterator[None]:
    """Create backbones without reading their weights, because the classifier's weights replace them.

    Args:
        find: Returns the folder with the settings of a base model; by default nothing is downloaded.
    """
    mark = _settings_in.set(find)
    try:
        yield
    finally:
        _settings_in.reset(mark)
