"""Where compiled kernels are kept when neither the installation nor the home can be written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The locators beside the source file and in the home find nothing to write to; a program of its own, because numba's
# settings are those of a process.
PROGRAM = """
import os, sys, tempfile
import numba.core.caching as caching
caching.CacheImpl._locator_classes = [caching.UserProvidedCacheLocator]
from gristmill.kernels.compiler import kernel
@kernel
def double(x):
    return x + x
print(double(21), type(double._cache).__name__)
"""


def run(folder: Path) -> list[str]:
    (folder / "program.py").write_text(PROGRAM)
    env = {**os.environ, "TMPDIR": str(folder / "tmp"), "PYTHONPATH": str(Path(__file__).parents[3] / "src")}
    env.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=folder, env=env, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("state", ["absent", "there", "open to others", "a link"])
def test_a_private_folder_or_none(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "tmp" / f"gristmill-kernels-{os.getuid()}"
    folder.parent.mkdir()
    if state == "there":
        folder.mkdir(0o700)
    elif state == "open to others":
        folder.mkdir()
        folder.chmod(0o777)
    elif state == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    private = state in ("absent", "there")
    assert run(tmp_path) == ["42", "FunctionCache" if private else "NullCache"]
    assert bool(list(folder.rglob("*.kernel"))) == private
    if private:
        assert folder.stat().st_mode & 0o777 == 0o700
