"""What all tests of models need before torch is imported, and the same arithmetic on every machine."""

from __future__ import annotations

import importlib.util
import os

import pytest

# Before torch is imported: transformers' DeBERTa would compile helpers for every new shape, which takes longer than all
# tests together.
os.environ.setdefault("PYTORCH_JIT", "0")
# Threads gain nothing on models this small, and waiting for each other on a busy machine they cost minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

missing = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if missing else []


@pytest.fixture(autouse=True)
def float32_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute in float32, as the references do, also on processors where bfloat16 is faster."""
    monkeypatch.setattr("gristmill.stages.text.models.devices.faster_type", lambda device_type: None)
