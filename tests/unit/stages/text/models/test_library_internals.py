"""What is used of torch and transformers without being documented is still there, and still needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.mkldnn import to_mkldnn
from transformers import AutoModelForSequenceClassification, DebertaV2Config, DebertaV2Model
from transformers.activations import ACT2FN

from gristmill.stages.text.models import torch_internals, transformers_internals
from tests.unit.stages.text.models.tiny import deberta_config

ROOT = Path(__file__).resolve().parents[5]


def lowest(package: str) -> tuple[int, ...]:
    """The oldest version of a package that the extra `models` accepts."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["models"]
    (found,) = [line.partition(">=")[2] for line in wanted if line.startswith(f"{package}>=")]
    return tuple(int(part) for part in found.split("."))


def test_the_processor_is_asked_for_bfloat16_as_the_documented_function_tells() -> None:
    assert hasattr(torch.cpu, "_is_amx_tile_supported")
    assert hasattr(torch.cpu, "_is_avx512_bf16_supported")
    capabilities = getattr(torch.cpu, "get_capabilities", None)
    if capabilities is None:
        pytest.skip("this torch has no documented way")
    told = capabilities()
    documented = bool(told.get("amx_tile") or told.get("avx512_bf16"))
    assert torch_internals.cpu_has_bfloat16() is documented
    # Take the documented function, and remove ours, once every accepted torch has it.
    assert lowest("torch") < (2, 13)


def test_packed_weights_multiply_and_torch_documents_them_for_float32_alone() -> None:
    rows, weight = torch.randn(3, 8), torch.randn(5, 8)
    for kind in (torch.float32, torch.bfloat16):
        packed = torch_internals.packed_weights(weight.to(kind))
        found = torch_internals.packed_product(rows.to(kind), packed, torch.ones(5, dtype=kind))
        assert torch.allclose(found.float(), rows @ weight.T + 1, atol=0.1 if kind is torch.bfloat16 else 1e-5)
    # The documented layers, `torch.utils.mkldnn`, pack weights of one type only.
    with pytest.raises((RuntimeError, AssertionError)):
        to_mkldnn(torch.nn.Linear(8, 5).bfloat16())(rows)


def test_rows_of_bytes_are_multiplied_exactly_and_torch_documents_no_such_product() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 256, (3, 8), generator=generator).to(torch.uint8)
    weight = torch.randint(-60, 61, (5, 8), generator=generator).to(torch.int8)
    scale, zero = torch.rand(5, generator=generator) + 0.5, torch.zeros(5, dtype=torch.int32)
    found = torch_internals.int8_product(rows, torch_internals.packed_int8_weights(weight), scale, zero)
    assert torch.allclose(found, (rows.float() @ weight.float().T) * scale)
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.nn.functional.linear(rows, weight)


def test_transformers_deberta_has_the_known_parts_and_no_faster_attention() -> None:
    model = DebertaV2Model(deberta_config()).eval()
    assert transformers_internals.is_known_deberta(model)
    classifier = AutoModelForSequenceClassification.from_config(deberta_config(num_labels=3))
    assert transformers_internals.classifies_first_token(classifier)
    # Measure again whether the own encoder is worth its lines if transformers gains a fused attention for DeBERTa.
    assert not getattr(model, "_supports_sdpa", False)


@pytest.mark.parametrize(("name", "exact"), [("gelu", True), ("gelu_new", False), ("relu", False)])
def test_the_exact_gelu_is_told_by_its_class(name: str, exact: bool) -> None:
    activation: Any = ACT2FN[name]
    values = torch.linspace(-4, 4, 100)
    assert transformers_internals.is_exact_gelu(activation) is exact
    assert torch.equal(activation(values), torch.nn.functional.gelu(values)) is exact
    assert ACT2FN[DebertaV2Config().hidden_act].__class__ is ACT2FN["gelu"].__class__


def test_no_other_file_uses_private_parts_of_the_libraries() -> None:
    private = re.compile(r"torch\.ops\.|\b(torch|transformers)(\.\w+)*\._\w|DebertaV2ForSequence|GELUActivation")
    room = ROOT / "src/gristmill"
    places = [room / "stages/text" / name for name in ("models", "classifiers", "embedders")] + [room / "training"]
    files = [path for place in places for path in place.rglob("*.py")]
    found = {path.name for path in files if private.search(path.read_text(encoding="utf-8"))}
    assert found == {"torch_internals.py", "transformers_internals.py"}
