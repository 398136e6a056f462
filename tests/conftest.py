"""What every test can use: the test data beside the repository, and one setting of hypothesis for all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

# No deadline: the first call of a kernel compiles it. In CI the examples are the same in every run.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real texts beside the repository; the test is skipped without it, and fails in CI."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        message = "needs the real texts in ../shared/data beside the repository"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    return folder


@pytest.fixture(scope="session")
def sample_path() -> Path:
    """The shipped sample, ``sample.jsonl.gz``."""
    return ROOT / "src" / "gristmill" / "recipes" / "sample" / "sample.jsonl.gz"
