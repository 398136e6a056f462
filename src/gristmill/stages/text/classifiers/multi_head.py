"""A transformer with several classification heads over the mean of its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from gristmill.stages.text.classifiers.deberta import load_weights, make_backbone, skipping_base_weights
from gristmill.stages.text.models.sources import model_folder, read_config
from gristmill.stages.text.models.tokens import ATTENTION_MASK_FIELD, INPUT_ID_FIELD


class _Head(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(width, classes)

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        return self.fc(pooled)


class MultiHeadClassifier(nn.Module, PyTorchModelHubMixin):  # type: ignore[misc]
    """Gives the probabilities of every head.

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

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def forward(self, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """The probabilities of each head, one row per document."""
        mask = batch[ATTENTION_MASK_FIELD]
        hidden = self.backbone(input_ids=batch[INPUT_ID_FIELD], attention_mask=mask).last_hidden_state
        weights = mask.unsqueeze(-1).to(hidden.dtype)
        pooled = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        heads = (getattr(self, f"head_{number}") for number in range(self.num_heads))
        return [torch.softmax(head(pooled).float(), dim=1) for head in heads]


def load_multi_head(folder: Path, *, cache_dir: str | None = None) -> tuple[nn.Module, dict[str, Any]]:
    """The network in a model folder, ready for inference, and its configuration."""
    config = read_config(folder)
    if "base_config" not in config:
        config = {**config, "base_model": str(model_folder(config["base_model"], cache_dir=cache_dir))}
    with skipping_base_weights():
        network = MultiHeadClassifier(config)
    return load_weights(network, folder), config
