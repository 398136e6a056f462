"""Losses are told from faults."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

import ray.exceptions

from gristmill.backends.ray.ray_errors import is_loss

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_losses() -> None:
    assert is_loss(ray.exceptions.WorkerCrashedError())
    assert is_loss(ray.exceptions.NodeDiedError("gone"))
    assert is_loss(ray.exceptions.OwnerDiedError("00", None, ""))


def test_what_came_from_a_loss() -> None:
    error = RuntimeError("the pipeline failed")
    error.__cause__ = ray.exceptions.WorkerCrashedError()
    assert is_loss(error)


def test_faults() -> None:
    assert not is_loss(KeyError("text"))
    assert not is_loss(ray.exceptions.RuntimeEnvSetupError("no such package"))
