from __future__ import annotations

import pytest
import torch
from torch import nn

from gristmill.stages.text.models.acceleration import accelerated
from gristmill.stages.text.models.acceleration.packed_layers import PackedLinear, with_packed_layers


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 8), (37, 8), (3, 5, 8), (0, 8)])
def test_products_are_those_of_the_plain_layer(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    layer, inputs = nn.Linear(8, 20, bias=bias), torch.randn(shape)
    with torch.no_grad():
        expected = layer(inputs)
        found = PackedLinear(layer, torch.float32)(inputs)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = layer(inputs)
        short = PackedLinear(layer, torch.bfloat16)(inputs)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, atol=1e-6)
    assert short.dtype is rounded.dtype is torch.bfloat16
    assert torch.allclose(short.float(), rounded.float(), atol=0.02)


def test_other_layers_and_builds_of_torch_without_the_library_stay_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2)))
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert type(with_packed_layers(network, torch.float32)[0]) is nn.Linear
    packed = with_packed_layers(network, torch.float32)
    assert [type(layer).__name__ for layer in (packed[0], *packed[1])] == ["PackedLinear", "LayerNorm", "PackedLinear"]


def test_only_own_encoders_are_packed() -> None:
    plain = accelerated(nn.Sequential(nn.Linear(4, 4)).eval(), threads=1, int8=False)
    assert type(plain[0]) is nn.Linear
