"""`import gristmill` is quick and loads none of the large packages."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import gristmill

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


def test_import_loads_nothing_but_its_own_list_of_names(loaded_modules: frozenset[str]) -> None:
    bare = in_fresh_process("import sys; print(*sys.modules)").split()
    assert loaded_modules - set(bare) == {"__future__", "gristmill", "gristmill.lazy"}


def test_the_twenty_names_lead_to_what_other_paths_lead_to() -> None:
    names = [name for name in gristmill.__all__ if name != "__version__"]
    assert len(names) == 20
    assert dir(gristmill) == sorted(names)
    homes = {name: getattr(gristmill, name).__module__ for name in names}
    assert homes == {name: getattr(import_module(homes[name]), name).__module__ for name in names}
    with pytest.raises(ImportError, match="cannot import name 'Pipelin'"):
        from gristmill import Pipelin  # type: ignore[attr-defined]  # noqa: F401


@pytest.fixture(scope="module")
def loaded_modules() -> frozenset[str]:
    return frozenset(in_fresh_process("import sys, gristmill; print(*sys.modules)").split())
