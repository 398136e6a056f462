"""Linear layers that multiply in 8 bits on a CPU, for networks that may trade a few changed labels for speed.

Activations get a scale and an offset per token, computed on the fly, so that a document's result does not depend on its
neighbours in the batch. Weights get a scale per output.

Processors without the VNNI instructions add products of 8-bit values in pairs, in 16 bits, where the sum of two large
ones does not fit. Usually a bit of every weight is sacrificed for that; here each output gets the finest scale with
which no pair of its own weights can overflow, which keeps about half of that bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from gristmill.errors import UsageError
from gristmill.kernels.int8_rows import (
    product_to_gelu_bytes,
    product_to_norm,
    product_to_rows,
    rows_to_bytes,
)
from gristmill.stages.text.models.acceleration.deberta_encoder import TokenWise
from gristmill.stages.text.models.torch_internals import int8_product, packed_int8_weights
from gristmill.stages.text.models.transformers_internals import is_exact_gelu

# A layer that narrows its inputs by more than this is a head: it is cheap, and the labels depend on it.
_NARROWEST = 4
# Maximum sum of two neighbouring weights of one sign: 255 * 128 fits 16 bits with a sign.
_PAIR_LIMIT = 128.0


def with_int8_layers(network: nn.Module) -> nn.Module:
    """The network with its linear layers in 8 bits; heads and other layers are not changed.

    Raises:
        UsageError: This torch build cannot multiply in 8 bits.
    """
    if not torch.backends.mkldnn.is_available():
        raise UsageError("cpu_backend='torch-int8' needs a torch built with oneDNN: use 'torch' here.")
    for name, child in list(network.named_children()):
        if isinstance(child, nn.Linear):
            if child.out_features * _NARROWEST >= child.in_features:
                setattr(network, name, Int8Linear(child))
        else:
            made = with_int8_layers(child)
            setattr(network, name, Int8TokenWise(made) if Int8TokenWise.supports(made) else made)
    return network


@dataclass(slots=True)
class ByteRows:
    """Rows of activations as bytes, with the step and the lowest value of each row."""

    values: torch.Tensor
    steps: torch.Tensor
    lows: torch.Tensor

    @classmethod
    def of(cls, rows: torch.Tensor) -> ByteRows:
        """The rows of a matrix in float32."""
        rows = rows.contiguous()
        values = torch.empty(rows.shape, dtype=torch.uint8)
        steps, lows, sums = torch.empty(3, len(rows))
        rows_to_bytes(rows.numpy(), values.numpy(), steps.numpy(), lows.numpy(), sums.numpy())
        return cls(values, _unless_infinite(steps, sums), lows)


class Int8Linear(nn.Module):  # type: ignore[misc]
    """A linear layer in 8 bits.

    Args:
        layer: The layer to replace; its weights are discarded.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        weight = layer.weight.detach().float()
        scale = weight_scales(weight)
        rounded = (weight / scale[:, None]).round().clamp(-127, 127)
        self.out_features = layer.out_features
        self.scale = scale
        self.zero = torch.zeros(len(scale), dtype=torch.int32)
        self.packed = packed_int8_weights(rounded.to(torch.int8))
        bias = torch.zeros(len(scale)) if layer.bias is None else layer.bias.detach().float()
        # Row 0 times the lowest value of a token, and row 1 once, are what its offset and the bias add.
        self.shift = torch.stack([rounded.sum(1) * scale, bias])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The product, in float32."""
        rows = ByteRows.of(inputs.detach().reshape(-1, inputs.shape[-1]).float())
        product = self.product(rows)
        product_to_rows(product.numpy(), rows.steps.numpy(), rows.lows.numpy(), self.shift.numpy())
        return product.view(*inputs.shape[:-1], self.out_features)

    def product(self, rows: ByteRows) -> torch.Tensor:
        """The product with bytes, before applying steps, lowest values and bias."""
        return int8_product(rows.values, self.packed, self.scale, self.zero)


class Int8TokenWise(nn.Module):  # type: ignore[misc]
    """The part of a DeBERTa layer after the attention, in 8 bits, with one pass between two multiplications.

    Args:
        plain: The same module with layers in 8 bits, one operation after another.
    """

    def __init__(self, plain: TokenWise) -> None:
        super().__init__()
        self.attention_dense, self.inner, self.outer = plain.attention_dense, plain.inner, plain.outer
        self.attention_norm, self.norm = plain.attention_norm, plain.norm

    @staticmethod
    def supports(module: nn.Module) -> bool:
        """Whether this class can replace a module: it does the same, with layers in 8 bits."""
        return (
            isinstance(module, TokenWise)
            and all(isinstance(layer, Int8Linear) for layer in (module.attention_dense, module.inner, module.outer))
            and all(
                type(norm) is nn.LayerNorm and norm.bias is not None for norm in (module.attention_norm, module.norm)
            )
            and is_exact_gelu(module.activation)
        )

    def forward(self, context: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """The new vectors, from the output of the attention and the vectors before it."""
        shape = hidden.shape
        context, hidden = (rows.detach().reshape(-1, shape[-1]).float().contiguous() for rows in (context, hidden))
        hidden = _normalised(self.attention_dense, ByteRows.of(context), hidden, self.attention_norm)
        rows = ByteRows.of(hidden)
        product = self.inner.product(rows)
        values = torch.empty(product.shape, dtype=torch.uint8)
        steps, lows, sums = torch.empty(3, len(product))
        product_to_gelu_bytes(
            product.numpy(), rows.steps.numpy(), rows.lows.numpy(), self.inner.shift.numpy(), values.numpy(),
            steps.numpy(), lows.numpy(), sums.numpy(),
        )  # fmt: skip
        active = ByteRows(values, _unless_infinite(steps, sums), lows)
        return _normalised(self.outer, active, hidden, self.norm).view(shape)


def _normalised(layer: Int8Linear, rows: ByteRows, residual: torch.Tensor, norm: nn.LayerNorm) -> torch.Tensor:
    """The output of a layer, plus the residual, normalised."""
    product = layer.product(rows)
    product_to_norm(
        product.numpy(), rows.steps.numpy(), rows.lows.numpy(), layer.shift.numpy(), residual.numpy(),
        norm.weight.detach().numpy(), norm.bias.detach().numpy(), norm.eps, product.numpy(),
    )  # fmt: skip
    return product


def _unless_infinite(steps: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The steps, and NaN for rows whose sum is not finite, so that everything computed from them is NaN as well."""
    return steps.add_(sums.mul_(0))


def weight_scales(weight: torch.Tensor) -> torch.Tensor:
    """For each row of weights the finest scale with which single weights and neighbouring pairs stay in range."""
    outputs, inputs = weight.shape
    even = nn.functional.pad(weight, (0, inputs % 2)).view(outputs, -1, 2)
    pairs = torch.maximum(even.clamp(min=0).sum(2), even.clamp(max=0).sum(2).abs()).amax(1)
    # Rounding may raise both of a pair by a half.
    return torch.maximum(pairs / (_PAIR_LIMIT - 1), weight.abs().amax(1) / 127).clamp(min=1e-12)
