"""Set before torch is imported: transformers' DeBERTa compiles helpers for every new shape, which takes longer than all
tests together."""

from __future__ import annotations

import os

os.environ.setdefault("PYTORCH_JIT", "0")
