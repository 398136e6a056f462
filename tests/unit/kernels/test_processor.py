"""Which level of processors kernels are compiled for."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gristmill.kernels.processor import LEVELS, level_of
from gristmill.kernels.signatures import described, parsed

X86 = LEVELS["x86_64"]


@pytest.mark.parametrize("level", X86)
def test_a_processor_is_taken_for_the_highest_level_it_reaches(level: str) -> None:
    able = dict.fromkeys(X86[level] | {"sse2", "unknown"}, True)
    assert level_of("x86_64", able) == level
    for feature in X86[level]:
        assert level_of("x86_64", {**able, feature: False}) != level


def test_older_and_other_processors_have_no_level() -> None:
    assert level_of("x86_64", {"sse2": True}) is None
    assert level_of("riscv64", {}) is None
    assert level_of("aarch64", {}) == "generic"


def chosen(before: str = "", **variables: str) -> str:
    code = (
        f"{before}\nfrom gristmill.kernels.store import LEVEL, numba\nprint(numba.config.CPU_NAME, LEVEL and LEVEL[1])"
    )
    environment = {**os.environ, **variables}
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="levels are known on Linux")
def test_the_choice_of_the_user_and_of_earlier_code_stays() -> None:
    name, level = chosen().split()
    assert name == level
    assert chosen(NUMBA_CPU_NAME="x86-64-v2") == "x86-64-v2 x86-64-v2\n"
    assert chosen(NUMBA_CPU_NAME="x86-64") == "x86-64 None\n"
    assert chosen(NUMBA_CPU_NAME="x86-64-v2", NUMBA_CPU_FEATURES="+avx") == "x86-64-v2 None\n"
    # What comes compiled can be used even so.
    assert chosen("import numba; numba.njit(lambda x: x)(1)") == f"None {level}\n"


def test_signatures_as_text() -> None:
    text = "uint8[1]! int64[1] bool float32[2] bool[1]! float64 uint64"
    assert described(parsed(text)) == text
    for wrong in ("text", "uint8[", "int65", "int64[1]?"):
        with pytest.raises(ValueError, match="not the type"):
            parsed(wrong)
