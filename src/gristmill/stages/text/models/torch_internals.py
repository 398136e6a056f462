"""Every undocumented part of torch that is used, with the reason; checked by `test_library_internals.py`.

Written for torch 2.13. Older versions that the extra `models` accepts were not tried.
"""

from __future__ import annotations

import torch


def cpu_has_bfloat16() -> bool:
    """Whether the processor has instructions for bfloat16.

    `torch.cpu.get_capabilities` reports it too, but only in newer versions of torch than the oldest supported one.
    """
    checks = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(bool(check()) for name in checks if callable(check := getattr(torch.cpu, name, None)))


def packed_weights(weight: torch.Tensor) -> torch.Tensor:
    """Weights in the order in which oneDNN multiplies by them; torch documents such layers only for float32."""
    packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def packed_product(rows: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The product of rows with packed weights of the same type, plus the bias."""
    product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
    return product


def packed_int8_weights(weight: torch.Tensor) -> torch.Tensor:
    """Weights in 8 bits in the order in which oneDNN multiplies by them; torch documents no product of bytes."""
    packed: torch.Tensor = torch.ops.onednn.qlinear_prepack(weight, None)
    return packed


def int8_product(rows: torch.Tensor, packed: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """The product of rows of bytes with packed weights, in float32, times the scale of each output."""
    product: torch.Tensor = torch.ops.onednn.qlinear_pointwise(
        rows, 1.0, 0, packed, scale, zero, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return product
