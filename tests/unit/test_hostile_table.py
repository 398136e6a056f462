"""The table of `make test-hostile` shows what the tests in `tests/hostile` tried, and the results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.hostile.table import FOLDER, functions

ROOT = Path(__file__).resolve().parents[2]
CONFTEST = """
from pathlib import Path
import tests.hostile.conftest as gathering
gathering.FOLDER = Path(__file__).parent
gathering.PAGE = gathering.FOLDER / "hostile.md"
from tests.hostile.conftest import pytest_configure, pytest_itemcollected
"""
TESTS = '''
import pytest

def test_bombs(record_property):
    """A bomb | 1:1000: refused."""
    record_property("tried", 700)
    record_property("tried", 500)

@pytest.mark.parametrize("name", ["a[b", "b::c", "x"])
def test_names(name):
    """A name: read.

    More.
    """
    assert name != "x"

def test_devices():
    """A device: left out."""
    pytest.skip("no device")
'''


def test_every_attack_says_what_is_tried_and_what_happens() -> None:
    lines = {f"{file}::{name}": line for file, name, line in functions(FOLDER)}
    assert len(lines) >= 10
    assert {name: line for name, line in lines.items() if not 20 <= len(line) <= 130 or ": " not in line} == {}


def run(folder: Path, *options: str, part: str = "full") -> str:
    (folder / "hostile").mkdir(exist_ok=True)
    (folder / "hostile" / "conftest.py").write_text(CONFTEST)
    (folder / "hostile" / "test_it.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "GRISTMILL_HOSTILE": part, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    environment.pop("PYTEST_XDIST_WORKER", None)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "hostile"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False).stdout


def test_the_page_has_a_row_for_each_test_whichever_worker_ran_it(tmp_path: Path) -> None:
    assert "written: hostile.md" in run(tmp_path, "-n", "2")
    page = (tmp_path / "hostile" / "hostile.md").read_text()
    assert "1,203 attacks by 3 tests" in page
    assert "1 tests failed" in page
    assert r"| A bomb \| 1:1000: refused | 1,200 | yes |" in page
    assert "| A name: read | 3 | **no** (1 failed) |" in page
    assert "| A device: left out | 0 | not tried (1) |" in page
    assert str(tmp_path) not in page


def test_a_part_of_the_tests_leaves_the_page_as_it_was(tmp_path: Path) -> None:
    assert "1 tests did not run (test_it.py::test_bombs" in run(tmp_path, "-k", "not bombs")
    assert "hostile.md" not in run(tmp_path, part="")
    assert not (tmp_path / "hostile" / "hostile.md").exists()
