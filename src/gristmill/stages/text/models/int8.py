"""Linear layers that multiply in 8 bits on a CPU, for networks whose labels may change a little for speed.

Activations get a scale and an offset per token, found when they come, so that a document's result does not depend on
its neighbours in the batch. Weights get a scale per output.

Processors without the VNNI instructions add products of 8-bit values in pairs, in 16 bits, where the sum of two large
ones does not fit. Usually a bit of every weight is given up for that; here each output gets the finest scale with which
no pair of its own weights can overflow, which keeps about half of that bit.
"""

from __future__ import annotations

import torch
from torch import nn

from gristmill.errors import UsageError

# A layer that narrows its inputs by more than this is a head: it costs nothing, and the labels hang on it.
_NARROWEST = 4
# The most that two neighbouring weights of one sign may sum to: 255 * 128 fits 16 bits with a sign.
_PAIR_LIMIT = 128.0
_HIGHEST = 255.0


def with_int8_layers(network: nn.Module) -> nn.Module:
    """The network with its linear layers in 8 bits; heads, and all that is not a linear layer, stay as they are.

    Raises:
        UsageError: This build of torch cannot multiply in 8 bits.
    """
    if not torch.backends.mkldnn.is_available():
        raise UsageError("cpu_backend='torch-int8' needs a torch that was built with oneDNN: use 'torch' here.")
    for name, child in list(network.named_children()):
        if isinstance(child, nn.Linear):
            if child.out_features * _NARROWEST >= child.in_features:
                setattr(network, name, Int8Linear(child))
        else:
            with_int8_layers(child)
    return network


class Int8Linear(nn.Module):  # type: ignore[misc]
    """A linear layer in 8 bits.

    Args:
        layer: The layer to replace; its weights are not kept.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight_scales(weight)
        rounded = (weight / scale[:, None]).round().clamp(-127, 127)
        self.out_features = layer.out_features
        self.scale = scale
        self.zero = torch.zeros(len(scale), dtype=torch.int32)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded.to(torch.int8), None)
        bias = torch.zeros(len(scale)) if layer.bias is None else layer.bias.detach().float()
        # Row 0 times the lowest value of a token, and row 1 once, are what its offset and the bias add.
        self.shift = torch.stack([rounded.sum(1) * scale, bias])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The product, in float32."""
        rows = inputs.reshape(-1, inputs.shape[-1])
        # Two reductions, because torch has fast code for each of them and none for both at once.
        low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
        step = ((high - low) / _HIGHEST).clamp(min=1e-12)
        factor = step.reciprocal()
        # None is negative, so cutting off rounds down, and with a half added to the nearest.
        bytes_ = torch.addcmul(0.5 - low * factor, rows, factor).to(torch.uint8)
        product = torch.ops.onednn.qlinear_pointwise(
            bytes_, 1.0, 0, self.packed, self.scale, self.zero, None, 1.0, 0, torch.float32, "none", [], ""
        )
        product.mul_(step).addmm_(torch.cat([low, torch.ones_like(low)], dim=1), self.shift)
        return product.view(*inputs.shape[:-1], self.out_features)


def weight_scales(weight: torch.Tensor) -> torch.Tensor:
    """For each row of weights the finest scale with which single weights and neighbouring pairs stay in range."""
    outputs, inputs = weight.shape
    even = nn.functional.pad(weight, (0, inputs % 2)).view(outputs, -1, 2)
    pairs = torch.maximum(even.clamp(min=0).sum(2), even.clamp(max=0).sum(2).abs()).amax(1)
    # Rounding may raise both of a pair by a half.
    return torch.maximum(pairs / (_PAIR_LIMIT - 1), weight.abs().amax(1) / 127).clamp(min=1e-12)
