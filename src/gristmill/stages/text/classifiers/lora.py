"""Adds a low-rank adapter to a model's weights once, at load time (Hu et al., "LoRA", arXiv:2106.09685)."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from gristmill.errors import UsageError
from gristmill.stages.text.models.loading import load_tensors, reading

_PREFIX = "base_model.model."


def merge_adapter(model: nn.Module, folder: Path) -> nn.Module:
    """The model with the adapter in `folder` (`adapter_config.json` and safetensors) added to its weights.

    Raises:
        UsageError: The adapter is of another kind, or made for another model.
    """
    with reading(folder, "adapter_config.json"):
        config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    if config.get("peft_type", "LORA") != "LORA" or config.get("use_dora") or config.get("fan_in_fan_out"):
        raise UsageError(f"The adapter in {folder} is not plain LoRA: {config.get('peft_type')}.")
    root = config.get("r") ** 0.5 if config.get("use_rslora") else config.get("r")
    scale = config["lora_alpha"] / root
    tensors = load_tensors(folder)
    parameters = dict(model.named_parameters())
    for name, down in tensors.items():
        if ".lora_A." not in name:
            continue
        up = tensors[name.replace(".lora_A.", ".lora_B.")]
        target = name.removeprefix(_PREFIX).split(".lora_A.")[0] + ".weight"
        if target not in parameters:
            raise UsageError(f"The adapter in {folder} changes {target!r}, which the base model does not have.")
        with torch.no_grad():
            weight = parameters[target]
            weight += (scale * (up.float() @ down.float())).to(weight.dtype).to(weight.device)
    return model
