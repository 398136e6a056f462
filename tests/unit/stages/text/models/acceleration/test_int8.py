from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers import DebertaV2Model

from gristmill.errors import UsageError
from gristmill.kernels import distance_bias, int8_rows
from gristmill.kernels.int8_rows import product_to_gelu_bytes, product_to_norm
from gristmill.stages.text.classifiers.base import DistributedDataClassifier
from gristmill.stages.text.models.acceleration.deberta_encoder import DebertaEncoder, TokenWise
from gristmill.stages.text.models.acceleration.int8 import (
    ByteRows,
    Int8Linear,
    Int8TokenWise,
    weight_scales,
    with_int8_layers,
)
from tests.unit.stages.text.models.tiny import deberta_config


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


def values_of(rows: ByteRows) -> torch.Tensor:
    return rows.lows[:, None] + rows.steps[:, None] * rows.values.float()


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 70), st.integers(0, 9), st.sampled_from([0.0, 1e-3, 1.0, 1e4]), st.integers(0, 10_000))
def test_bytes_are_within_half_a_step(width: int, number: int, size: float, seed: int) -> None:
    rows = torch.randn(number, width, generator=torch.Generator().manual_seed(seed)) * size + size
    made = ByteRows.of(rows)
    assert ((values_of(made) - rows).abs() <= 0.501 * made.steps[:, None] + 1e-6 * size).all()
    assert made.lows.equal(rows.amin(1) if number else torch.empty(0))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 70), st.sampled_from([0.1, 1.0, 30.0]), st.integers(0, 10_000))
def test_gelu_in_one_pass_is_that_of_torch(width: int, size: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    product, shift = torch.randn(4, width, generator=random), torch.randn(2, width, generator=random)
    steps, lows = torch.rand(4, generator=random) * size, torch.randn(4, generator=random)
    expected = nn.functional.gelu(product * steps[:, None] + lows[:, None] * shift[0] + shift[1])
    made = ByteRows(torch.empty(4, width, dtype=torch.uint8), torch.empty(4), torch.empty(4))
    sums = torch.empty(4)
    product_to_gelu_bytes(*(tensor.numpy() for tensor in (product, steps, lows, shift, made.values, made.steps)),
                          made.lows.numpy(), sums.numpy())  # fmt: skip
    assert ((values_of(made) - expected).abs() <= 0.501 * made.steps[:, None] + 1e-5).all()
    assert torch.allclose(sums, expected.sum(1), atol=1e-3, rtol=1e-4)


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 70), st.sampled_from([0.1, 1.0, 30.0]), st.integers(0, 10_000))
def test_the_norm_in_one_pass_is_that_of_torch(width: int, size: float, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    product, residual = torch.randn(2, 4, width, generator=random)
    shift, (weight, bias) = torch.randn(2, width, generator=random), torch.randn(2, width, generator=random)
    steps, lows = torch.rand(4, generator=random) * size, torch.randn(4, generator=random)
    rows = product * steps[:, None] + lows[:, None] * shift[0] + shift[1] + residual
    expected = nn.functional.layer_norm(rows.double(), (width,), weight.double(), bias.double(), 1e-5)
    given_tensors = (product, steps, lows, shift, residual, weight, bias)
    product_to_norm(*(tensor.numpy() for tensor in given_tensors), 1e-5, product.numpy())
    assert torch.allclose(product.double(), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_that_is_not_finite_stays_so_and_spoils_no_other(bad: float) -> None:
    encoder = DebertaEncoder(DebertaV2Model(deberta_config())).eval()
    plain = encoder.layers[0].rest
    hidden = torch.randn(3, plain.norm.weight.shape[0])
    hidden[1, 3] = bad
    with_int8_layers(encoder)
    fused = encoder.layers[0].rest
    assert isinstance(fused, Int8TokenWise)
    with torch.no_grad():
        for context, before in ((hidden, torch.zeros_like(hidden)), (torch.zeros_like(hidden), hidden)):
            found = fused(context, before)
            assert found.isfinite().all(1).tolist() == [True, False, True]
        assert not Int8Linear(nn.Linear(hidden.shape[1], 64))(hidden)[1].isfinite().any()


def test_one_pass_is_as_near_to_float32_as_one_operation_after_the_other() -> None:
    torch.manual_seed(0)
    encoder = DebertaEncoder(DebertaV2Model(deberta_config())).eval()
    plain = encoder.layers[0].rest
    context, hidden = torch.randn(2, 5, 7, plain.norm.weight.shape[0])
    with torch.no_grad():
        expected = plain(context, hidden)
        with_int8_layers(encoder)  # changes the layers of `plain` as well
        apart = [(module(context, hidden) - expected).abs() for module in (encoder.layers[0].rest, plain)]
    assert isinstance(encoder.layers[0].rest, Int8TokenWise)
    assert isinstance(plain.inner, Int8Linear)
    assert apart[0].shape == expected.shape
    assert 0 < apart[0].mean() < 1.1 * apart[1].mean() < 0.05


def test_another_activation_than_gelu_goes_one_operation_after_the_other() -> None:
    encoder = DebertaEncoder(DebertaV2Model(deberta_config(hidden_act="relu"))).eval()
    with_int8_layers(encoder)
    rest = encoder.layers[0].rest
    assert isinstance(rest, TokenWise)
    assert isinstance(rest.inner, Int8Linear)


def test_workers_find_the_kernels_compiled() -> None:
    classifier = DistributedDataClassifier(model_identifier="nowhere", cpu_backend="torch-int8")
    for stage in classifier.decompose():
        stage.warm_up()
    modules = (vars(int8_rows), vars(distance_bias))
    kernels = [value for module in modules for value in module.values() if hasattr(value, "signatures")]
    asked = [kernel for kernel in kernels if not kernel.__name__.startswith("_")]
    before = [kernel.signatures for kernel in asked]
    assert len(asked) == 5
    assert all(before)
    encoder = DebertaEncoder(DebertaV2Model(deberta_config())).eval()
    with_int8_layers(encoder)
    with torch.no_grad():
        encoder(input_ids=torch.ones(2, 9, dtype=torch.int64), attention_mask=torch.ones(2, 9, dtype=torch.int64))
    assert [kernel.signatures for kernel in asked] == before
