"""What kernels use of numba's private parts is still there, still works, and is still needed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np

from gristmill.kernels.compiler import inlined, leaf, routine
from gristmill.kernels.machine import load8
from gristmill.kernels.numba_internals import Intrinsic

# With the decorators of the package, and beside them with those of numba alone.
HELPER = """
from gristmill.kernels.compiler import inlined

@inlined
def helper(value):
    return value + 1
"""
KERNELS = """
import sys

import numba

from gristmill.kernels.compiler import compile_listeners, kernel, stores
from helper import helper

compile_listeners.append(lambda name: print("compiles", name))

def plain(value):
    return helper(value)

ours = kernel(plain)
theirs = numba.njit(cache=True)(lambda value: helper(value))

for which in sys.argv[1:]:
    one = {"ours": ours, "theirs": theirs}[which]
    kept = len(stores[one].signatures()) if one in stores else len(one._cache._cache_file._load_index())
    print(which, kept, one(1), "numba.np.arraymath" in sys.modules)
"""
WARM = """
import gristmill.kernels.vector_search as vector_search
from gristmill.kernels.warm import load_cached

print(load_cached(), load_cached(), len(vector_search.chain_ends.signatures))
"""
USE = """
import numpy as np
import gristmill.kernels.vector_search as vector_search

vector_search.chain_ends(np.zeros(1, np.int64))
"""


def run(folder: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_kernels_load_without_the_compiler_and_see_that_a_helper_has_changed(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text(HELPER)
    (tmp_path / "kernels.py").write_text(KERNELS)
    first = run(tmp_path, "kernels.py", "ours", "theirs")
    assert first == ["compiles plain", "ours 0 2 True", "theirs 0 2 True"]
    assert run(tmp_path, "kernels.py", "ours") == ["ours 1 2 False"]
    # numba alone imports what compiling needs although it has the machine code.
    assert run(tmp_path, "kernels.py", "theirs") == ["theirs 1 2 True"]

    (tmp_path / "helper.py").write_text(HELPER.replace("+ 1", "+ 10"))
    assert run(tmp_path, "kernels.py", "ours") == ["compiles plain", "ours 0 11 True"]
    # numba alone takes the cache for fresh.
    assert run(tmp_path, "kernels.py", "theirs") == ["theirs 1 2 True"]


def test_kernels_are_loaded_from_the_cache_before_work_starts(tmp_path: Path) -> None:
    assert run(tmp_path, "-c", WARM) == ["0 0 0"]
    run(tmp_path, "-c", USE)
    assert run(tmp_path, "-c", WARM) == ["1 0 1"]


def test_leaves_and_routines_do_not_count_references_and_other_helpers_do() -> None:
    def first(data, at):
        return data[at]

    counted = {}
    for decorator in (inlined, leaf, routine):
        helper = decorator(first)
        assert helper(np.ones(2), 1) == 1
        (code,) = helper.inspect_llvm().values()
        counted[decorator.__name__] = "NRT_decref" in code
    assert counted == {"inlined": True, "leaf": False, "routine": False}


def test_a_leaf_is_inlined_whatever_its_size() -> None:
    def large(data, at):
        total = data[at]
        for step in range(at):
            total = total * 31 + data[step] % 7
            if total % 3 == 0:
                total ^= data[at - step] % 11
            elif total % 5 == 0:
                total += data[step] // 13
            elif total % 17 == 0:
                total -= data[step] % (step + 19)
            else:
                total = (total << 3) ^ (total >> 5) ^ data[at] % 23
        for step in range(at):
            if data[step] % 29 == total % 31:
                total = total * 37 + step // (at + 41)
        return total

    def calls(decorator):
        helper = decorator(large)

        def caller(data):
            return helper(data, 3) ^ helper(data, 5) * helper(data, 7) - helper(data, 8)

        compiled = numba.njit(caller)
        compiled(np.arange(9))
        (code,) = compiled.inspect_llvm().values()
        return len(re.findall(r"call .*large", code))

    assert calls(leaf) == 0
    assert calls(routine) > 0


def test_intrinsics_are_told_from_other_helpers() -> None:
    assert isinstance(load8, Intrinsic)
    assert not isinstance(leaf(lambda value: value), Intrinsic)
