"""Linear layers whose weights are stored in the order that a CPU multiplies fastest.

Torch's own layers rearrange their weights for every product, and under `torch.autocast` also round them each time.
"""

from __future__ import annotations

import torch
from torch import nn

from gristmill.stages.text.models.torch_internals import packed_product, packed_weights


def with_packed_layers(network: nn.Module, kind: torch.dtype) -> nn.Module:
    """The network with packed weights of its linear layers, in a numeric type; unchanged if torch lacks support."""
    if not torch.backends.mkldnn.is_available():
        return network
    for name, child in list(network.named_children()):
        if isinstance(child, nn.Linear):
            setattr(network, name, PackedLinear(child, kind))
        else:
            with_packed_layers(child, kind)
    return network


class PackedLinear(nn.Module):  # type: ignore[misc]
    """A linear layer with packed weights.

    Args:
        layer: The layer to replace; its weights are discarded.
        kind: The numeric type of products and results.
    """

    def __init__(self, layer: nn.Linear, kind: torch.dtype) -> None:
        super().__init__()
        self.kind = kind
        self.packed = packed_weights(layer.weight.detach().to(kind))
        self.bias = None if layer.bias is None else layer.bias.detach().to(kind)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The product."""
        return packed_product(inputs.detach().to(self.kind), self.packed, self.bias)
