"""Runs the pipelines of all tests on another executor: `GRISTMILL_TEST_EXECUTOR=ray_data make test-quick`.

What tests run without an executor, on the local one by name, or in their own process, then goes through the executor of
that name, on one small Ray cluster for the whole session. Tests of the local engine itself stay with it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import pytest

VARIABLE = "GRISTMILL_TEST_EXECUTOR"

THEIR_WARNINGS = (
    "ignore::DeprecationWarning:ray",
    "ignore::DeprecationWarning:cosmos_xenna",
    "ignore::FutureWarning:ray",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
"""Warnings that Ray's and Xenna's own code gives about themselves."""


def other_executor() -> str | None:
    """The executor that takes the place of the local one; None: none does."""
    return os.environ.get(VARIABLE) or None


only_in_one_process = pytest.mark.skipif(
    other_executor() is not None, reason="looks at what stages leave in the memory of the process of the test"
)


def plain_executor() -> Any:
    """An executor that runs in this process, or the other one."""
    from gristmill.backends.local import LocalExecutor
    from gristmill.backends.registry import get_executor

    name = other_executor()
    return LocalExecutor(config={"num_cpus": 0}) if name is None else get_executor(name)


@contextlib.contextmanager
def small_cluster() -> Iterator[str]:
    """A Ray cluster with two processors and one (made-up) GPU, and its address."""
    import ray

    from gristmill.backends.ray.cluster import short_temp_dir

    if ray.is_initialized():
        yield ray.get_runtime_context().gcs_address
        return
    os.environ.pop("RAY_ADDRESS", None)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (the name that Ray reads)
    for left in (2, 1, 0):
        try:
            ray.init(
                address="local",
                num_cpus=2,
                num_gpus=1,
                include_dashboard=False,
                log_to_driver=False,
                configure_logging=False,
                object_store_memory=200_000_000,
                _temp_dir=short_temp_dir(),
            )
            break
        except Exception:  # on a busy machine, the half minute that Ray gives itself is too short
            ray.shutdown()
            if not left:
                raise
    try:
        yield ray.get_runtime_context().gcs_address
    finally:
        ray.shutdown()


@contextlib.contextmanager
def in_place_of_the_local_one() -> Iterator[None]:
    """Whoever asks for the local executor by name or by default gets the other one, on a cluster that is there."""
    name = other_executor()
    if name is None:
        yield
        return
    from gristmill.backends import registry

    homes, registry._HOMES = registry._HOMES, {**registry._HOMES, "local": registry._HOMES[name]}
    try:
        with small_cluster():
            yield
    finally:
        registry._HOMES = homes
