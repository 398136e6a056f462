"""One Ray cluster for all tests of this folder: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.other_engine import THEIR_WARNINGS, small_cluster

HERE = Path(__file__).resolve().parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            for line in THEIR_WARNINGS:
                item.add_marker(pytest.mark.filterwarnings(line))
            quick = getattr(getattr(item, "cls", None), "quick", None)
            if quick is not None and item.name not in quick:
                item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """The address of a cluster with two processors and one (made-up) GPU that this process is connected to."""
    pytest.importorskip("ray")
    with small_cluster() as address:
        yield address
