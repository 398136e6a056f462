from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from gristmill.errors import UsageError
from gristmill.stages.text.models.int8 import Int8Linear, weight_scales, with_int8_layers


def layer_of(weight: torch.Tensor, *, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def slow(layer: nn.Linear, inputs: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Whole numbers multiplied without any limit of their size."""
    scale = weight_scales(layer.weight.detach())
    weight = (layer.weight.detach() / scale[:, None]).round().double()
    low = inputs.amin(1, keepdim=True)
    step = ((inputs.amax(1, keepdim=True) - low) / 255).clamp(min=1e-12)
    whole = ((inputs - low) / step + 0.5).floor().double()
    product = (whole @ weight.T) * scale * step + low * (weight.sum(1) * scale)
    return (product + (0 if layer.bias is None else layer.bias.detach().double())).detach().numpy()


@settings(deadline=None, max_examples=25)
@given(
    st.integers(1, 40), st.integers(1, 12), st.sampled_from([1e-3, 1.0, 50.0]), st.integers(0, 10_000), st.booleans()
)
def test_products_equal_those_of_unlimited_whole_numbers(
    inputs: int, rows: int, size: float, seed: int, same_sign: bool
) -> None:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(8, inputs, generator=random)
    # All of one sign and size is where sums of pairs are largest.
    layer = layer_of(weight.sign() * 0.7 if same_sign else weight, bias=seed % 2 == 0)
    given_rows = torch.randn(rows, inputs, generator=random) * size
    with torch.no_grad():
        found = Int8Linear(layer)(given_rows).numpy()
    expected = slow(layer, given_rows)
    weight_limit = layer.weight.detach().abs().max()
    # A value half way between two steps may go either way, which moves a product by one step of one weight.
    step = float((given_rows.amax(1) - given_rows.amin(1)).max()) / 255
    assert np.abs(found - expected).max() <= 1.01 * step * float(weight_limit) + 1e-4 * size


@pytest.mark.parametrize("inputs", [384, 385, 3072])
def test_sums_of_pairs_never_overflow(inputs: int) -> None:
    weight = torch.full((64, inputs), 0.5)
    weight[::2] *= -1
    values = torch.rand(5, inputs) + 2
    values[:, 0] = -3
    layer = layer_of(weight)
    with torch.no_grad():
        expected = layer(values)
        assert (Int8Linear(layer)(values) - expected).abs().max() < 0.01 * expected.abs().max()
    rounded = (weight / weight_scales(weight)[:, None]).round()
    assert rounded.abs().max() <= 64


def test_weights_without_large_neighbours_keep_all_bits() -> None:
    weight = torch.zeros(4, 6)
    weight[:, ::2] = torch.tensor([1.0, -2.0, 3.0])
    assert torch.allclose(weight.abs().amax(1) / weight_scales(weight), torch.full((4,), 127.0))


def test_a_document_does_not_depend_on_its_neighbours() -> None:
    layer = Int8Linear(nn.Linear(32, 64))
    inputs = torch.randn(3, 7, 32)
    inputs[1] *= 1000
    with torch.no_grad():
        assert torch.equal(layer(inputs)[2], layer(inputs[2:])[0])
        assert layer(inputs).shape == (3, 7, 64)


def test_heads_and_other_layers_stay_as_they_are() -> None:
    network = nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.Sequential(nn.Linear(64, 3)))
    changed = with_int8_layers(network)
    assert isinstance(changed[0], Int8Linear)
    assert isinstance(changed[1], nn.LayerNorm)
    assert isinstance(changed[2][0], nn.Linear)
    with torch.no_grad():
        assert changed(torch.zeros(2, 16)).shape == (2, 3)


def test_a_torch_without_the_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    with pytest.raises(UsageError, match="oneDNN"):
        with_int8_layers(nn.Linear(4, 64))
