"""`import gristmill` is quick and loads none of the large packages."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("cosmos_xenna", "numba", "numpy", "pandas", "polars", "pyarrow", "ray", "torch", "transformers")
LIMIT_S = 0.150


def in_fresh_process(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_import_takes_less_than_150_ms() -> None:
    program = "import time; t = time.process_time(); import gristmill; print(time.process_time() - t)"
    # A few milliseconds, were the machine ten times slower: one large package more, and it is too long on any.
    best = min(float(in_fresh_process(program)) for _ in range(5))
    assert best < LIMIT_S


@pytest.mark.parametrize("name", HEAVY)
def test_import_does_not_load(name: str, loaded_modules: frozenset[str]) -> None:
    assert name not in loaded_modules


@pytest.fixture(scope="module")
def loaded_modules() -> frozenset[str]:
    return frozenset(in_fresh_process("import sys, gristmill; print(*sys.modules)").split())
