"""Chooses the target of compiled kernels: a microarchitecture level, not this specific CPU.

Code compiled on one machine then runs on all machines of that level, produces the same bits there, and can be shipped.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import llvmlite.binding as llvm
import numba

from gristmill.kernels.numba_internals import is_target_chosen

_V2 = {"cx16", "popcnt", "sahf", "sse3", "sse4.1", "sse4.2", "ssse3"}
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"}
_V4 = _V3 | {"avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl"}
LEVELS: dict[str, dict[str, set[str]]] = {
    "x86_64": {"x86-64-v4": _V4, "x86-64-v3": _V3, "x86-64-v2": _V2},
    "aarch64": {"generic": set()},
}
"""The levels of an architecture, the highest first, each with the CPU features it requires."""


def level_of(architecture: str, features: Mapping[str, bool]) -> str | None:
    """The highest level that a CPU supports; None if it is older than all levels or of another architecture.

    Example:
        >>> level_of("x86_64", dict.fromkeys(LEVELS["x86_64"]["x86-64-v3"], True))
        'x86-64-v3'
        >>> level_of("x86_64", {"sse3": True})
    """
    able = {name for name, there in features.items() if there}
    return next((name for name, needed in LEVELS.get(architecture, {}).items() if needed <= able), None)


def choose_level() -> tuple[str, ...] | None:
    """Make numba compile for the level of this CPU; returns the target that precompiled code must have.

    `NUMBA_CPU_NAME` is the user's own choice and stays; a level there means its own features and no others. If a
    function was compiled before the first kernel is imported, numba continues to compile for this specific CPU;
    precompiled code is used nevertheless.
    """
    triple = llvm.get_process_triple()
    architecture = triple.partition("-")[0]
    name: str | None = numba.config.CPU_NAME
    if name is None and sys.platform.startswith("linux"):
        name = level_of(architecture, llvm.get_host_cpu_features())
    if name is None or name not in LEVELS.get(architecture, ()) or numba.config.CPU_FEATURES:
        return None
    if not is_target_chosen():
        numba.config.CPU_NAME, numba.config.CPU_FEATURES = name, ""
    return triple, name, ""
