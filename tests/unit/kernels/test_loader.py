"""Machine code on disk is called without numba, and numba takes over where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import typeof
from numba.core.errors import NumbaError

from gristmill.kernels import loader, store
from gristmill.kernels.compiler import stores
from gristmill.kernels.hashing import content_hashes, second_hashes
from gristmill.kernels.signatures import described
from gristmill.kernels.union_find import group_pairs

LIGHT = """
import pickle, sys
import gristmill.kernels
gristmill.kernels.without_numba = True
from gristmill.kernels import loader
loader.PLACES = tuple(sys.argv[1:])
import numpy as np
from gristmill.kernels import hashing, union_find
from gristmill.kernels.warm import load_cached

loaded = load_cached()
assert loaded >= 5, loaded
data = np.frombuffer(b"one two", np.uint8)
offsets = np.array([0, 3, 7])
offsets.flags.writeable = False
print(hashing.content_hashes(data, offsets).tolist())
print("numba" in sys.modules)
kernel = hashing.second_hashes
again = pickle.loads(pickle.dumps(union_find.settle))
parents = np.array([0, 0, 1])
again(parents)
print(parents.tolist(), "numba" in sys.modules)
# What is not on disk, here because of its types, is compiled by numba; helpers are real ones then.
print(kernel(np.array(data), offsets).tolist(), "numba" in sys.modules, type(hashing.second_hashes).__name__)
print(kernel(data=data, offsets=offsets).tolist())
"""
HELPER = """
import gristmill.kernels
gristmill.kernels.without_numba = True
from gristmill.kernels.shingles import roll_power
from gristmill.kernels import shingles
print(roll_power(0), type(shingles.roll_power).__name__)
"""


KERNELS = ("hashing.hash_spans", "hashing.second_hashes", "union_find.settle")
COMPILE = f"""
from gristmill.kernels import ahead
ahead.compile_listed([one for one in ahead.read_list() if one.kernel in {KERNELS}], wait=True)
"""


def test_kernels_run_without_numba(tmp_path: Path) -> None:
    data, offsets = np.frombuffer(b"one two", np.uint8), np.array([0, 3, 7])
    offsets.flags.writeable = False
    expected = content_hashes(data, offsets).tolist()
    second = [row[1] for row in expected]
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", COMPILE], env=environment, check=True)
    folders = sorted({str(path.parent) for path in tmp_path.rglob("*.kernel")})
    for found in (True, False):
        command = [sys.executable, "-c", LIGHT, *(folders if found else ())]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines() == [
            str(expected),
            str(not found),
            f"[0, 0, 0] {not found}",
            f"{second} True CPUDispatcher",
            str(second),
        ]


def test_helpers_can_be_called_from_python() -> None:
    done = subprocess.run([sys.executable, "-c", HELPER], capture_output=True, text=True, check=True)
    assert done.stdout == "1 CPUDispatcher\n"


def test_the_same_code_is_looked_for() -> None:
    if not any(name in os.environ for name in ("NUMBA_BOUNDSCHECK", "NUMBA_OPT", "NUMBA_CPU_NAME")):
        assert loader.versions() == store.VERSIONS
        assert loader.target() == store.LEVEL
    assert loader.PLACES[0] == store.SHIPPED
    assert loader.SUFFIX == store.SUFFIX


def _array(kind: str, shape: tuple[int, ...], writeable: bool, step: int) -> Any:
    made = np.zeros(shape, kind)[::step]
    made.flags.writeable = writeable
    return made


scalars = st.sampled_from([True, 3, 2.5, np.int64(1), np.uint64(1), np.float32(1), np.bool_(True), np.uint8(1)])
arrays = st.builds(
    _array,
    st.sampled_from(["uint8", "int16", "int64", "uint64", "float32", "float64", "bool", ">i8"]),
    st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple),
    st.booleans(),
    st.sampled_from([1, 1, 2]),
)


@given(st.one_of(scalars, arrays))
def test_types_are_told_as_numba_tells_them(value: Any) -> None:
    try:
        expected = described([typeof(value)])
    except (ValueError, NumbaError):  # bytes in another order are not for kernels
        expected = None
    assert loader._kind(value) == (expected or "?")


def test_a_dispatcher_has_a_store() -> None:
    assert {stores[second_hashes].name, stores[group_pairs].name} == {"hashing.second_hashes", "union_find.group_pairs"}
