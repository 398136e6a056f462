"""One Ray cluster for all tests of this folder: starting one takes longer than most tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent


# Warnings that Ray's and Xenna's own code gives about themselves.
_THEIRS = (
    "ignore::DeprecationWarning:ray",
    "ignore::DeprecationWarning:cosmos_xenna",
    "ignore::FutureWarning:ray",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == HERE:
            for line in _THEIRS:
                item.add_marker(pytest.mark.filterwarnings(line))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """The address of a cluster with two processors that this process is connected to."""
    ray = pytest.importorskip("ray")
    from gristmill.backends.ray.cluster import short_temp_dir

    os.environ.pop("RAY_ADDRESS", None)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (the name that Ray reads)
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        configure_logging=False,
        object_store_memory=200_000_000,
        _temp_dir=short_temp_dir(),
    )
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()
