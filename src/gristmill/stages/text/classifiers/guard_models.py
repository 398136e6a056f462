"""The networks of the Llama Guard family: one that answers in words, and one that judges by its hidden state."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from huggingface_hub import PyTorchModelHubMixin
from torch import nn

from gristmill.errors import UsageError
from gristmill.stages.text.classifiers.deberta import load_weights
from gristmill.stages.text.models.loading import load_network, load_tensors, reading
from gristmill.stages.text.models.sources import read_config
from gristmill.stages.text.models.tokens import ATTENTION_MASK_FIELD, INPUT_ID_FIELD

# Length of an answer: "unsafe", a line end and a list of categories.
ANSWER_TOKENS = 100
_ADAPTER_PREFIX = "base_model.model."


class PoisoningNet(nn.Module, PyTorchModelHubMixin):  # type: ignore[misc]
    """Turns the hidden state of a guard model into the probability that a text is poisoned.

    Args:
        input_dim: Width of the hidden state.
        dropout: Dropout rate during training.
    """

    def __init__(self, input_dim: int, dropout: float = 0.7) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.input_layer = nn.Linear(input_dim, input_dim)
        self.hidden_layer_0 = nn.Linear(input_dim, 2000)
        self.hidden_layer_1 = nn.Linear(2000, 500)
        self.hidden_layer_2 = nn.Linear(500, 1)

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """One probability per row."""
        values = nn.functional.normalize(state, dim=-1)
        for layer in (self.input_layer, self.hidden_layer_0, self.hidden_layer_1):
            values = torch.relu(layer(self.dropout(values)))
        return torch.sigmoid(self.hidden_layer_2(self.dropout(values)))


def load_judge(folder: Path) -> nn.Module:
    """The network over the hidden state in a model folder, with all of its weights."""
    config = read_config(folder)
    with reading(folder, "configuration"):
        network = PoisoningNet(**{name: config[name] for name in ("input_dim", "dropout") if name in config})
    return load_weights(network, folder)


class GuardModel(nn.Module):  # type: ignore[misc]
    """A guard language model: its answer to a prompt, or with a judge the probability of poisoning.

    Args:
        base: The folder of the base model.
        adapter: The folder of the adapter.
        judge: The folder of the network over the hidden state; None answers in words.
        dtype: The type of the weights.
    """

    def __init__(self, base: Path, adapter: Path, judge: Path | None = None, *, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = merge_adapter(load_network("AutoModelForCausalLM", base, dtype=dtype), adapter)
        self.judge = None if judge is None else load_judge(judge)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """The new tokens of each answer, or the probability of each document; prompts must be padded on the left."""
        ids, mask = batch[INPUT_ID_FIELD], batch[ATTENTION_MASK_FIELD]
        if self.judge is None:
            answers = self.network.generate(
                input_ids=ids, attention_mask=mask, max_new_tokens=ANSWER_TOKENS, do_sample=False, pad_token_id=0
            )
            return answers[:, ids.shape[1] :]
        # Positions are counted from the first real token, as when a model answers.
        places = (mask.cumsum(1) - 1).clamp(min=0)
        states = self.network(
            input_ids=ids, attention_mask=mask, position_ids=places, output_hidden_states=True
        ).hidden_states
        return self.judge(states[-1][:, -1, :].float()).flatten()


def merge_adapter(model: nn.Module, folder: Path) -> nn.Module:
    """The model with the adapter in `folder` (`adapter_config.json` and safetensors) added to its weights.

    This is done once, at load time (Hu et al., "LoRA", arXiv:2106.09685).

    Raises:
        UsageError: The adapter is of another type, or made for another model.
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
        target = name.removeprefix(_ADAPTER_PREFIX).split(".lora_A.")[0] + ".weight"
        if target not in parameters:
            raise UsageError(f"The adapter in {folder} changes {target!r}, which the base model does not have.")
        with torch.no_grad():
            weight = parameters[target]
            weight += (scale * (up.float() @ down.float())).to(weight.dtype).to(weight.device)
    return model
