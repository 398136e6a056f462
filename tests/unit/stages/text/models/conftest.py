"""These tests need the extra `models`; they are left out where it is not installed."""

from __future__ import annotations

import importlib.util
import os

# Before torch is imported: transformers' DeBERTa would compile helpers for every new shape, which takes longer than all
# tests together.
os.environ.setdefault("PYTORCH_JIT", "0")
# Threads gain nothing on models this small, and waiting for each other on a busy machine they cost minutes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

missing = [name for name in ("torch", "transformers", "safetensors") if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if missing else []
