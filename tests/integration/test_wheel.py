"""The built wheel holds the package, its type marker, its licence and the sample, and nothing that was generated."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("gristmill-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize(
    "name",
    [
        "gristmill/__init__.py",
        "gristmill/py.typed",
        "gristmill/recipes/sample/sample.jsonl.gz",
        "gristmill/recipes/sample/PROVENANCE.md",
        "gristmill/theme.css",
        "gristmill/advice/page.css",
        "gristmill/report/assets/report.js",
        "gristmill/viewer/assets/index.html",
    ],
)
def test_wheel_holds(name: str, names: set[str]) -> None:
    assert name in names


def test_wheel_holds_the_licence(names: set[str]) -> None:
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_holds_nothing_generated(names: set[str]) -> None:
    assert not [name for name in names if name.endswith((".pyc", ".nbi", ".nbc")) or name.startswith("tests/")]
