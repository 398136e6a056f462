"""One run for all tests of the viewer; tests that change something make a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.ledger.record.layout import RunFolder
from gristmill.viewer.app import View
from tests.outputs import copy_output
from tests.unit.viewer.runs import make_run


@pytest.fixture(scope="session")
def whole_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the run; not to be changed."""
    return make_run(tmp_path_factory.mktemp("viewed"))


@pytest.fixture
def output(whole_output: Path, tmp_path: Path) -> Path:
    """A copy of the output with its record."""
    return copy_output(whole_output, tmp_path / "out")


@pytest.fixture
def view(output: Path) -> View:
    """The viewer of that copy."""
    return View(RunFolder(output))
