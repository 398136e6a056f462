"""Settings of executors: typed, complete, and helpful when misspelt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from gristmill.backends.base import parse_config
from gristmill.backends.local.config import LocalConfig
from gristmill.errors import UnknownNameError, UsageError


def parsed(**config: Any) -> LocalConfig:
    return parse_config(LocalConfig, config, owner="LocalExecutor")


def test_defaults_and_values() -> None:
    assert parsed() == LocalConfig()
    assert parsed(num_cpus=0).num_cpus == 0
    assert parsed(memory_budget="8GB").budget_bytes == 8_000_000_000
    assert parsed(memory_budget=1 << 30).budget_bytes == 1 << 30
    assert parsed(execution_mode="batch").execution_mode == "batch"


@pytest.mark.parametrize(
    ("key", "near"), [("num_cpu", "num_cpus"), ("memory_bugdet", "memory_budget"), ("execution_mod", "execution_mode")]
)
def test_a_misspelt_key_gets_a_suggestion(key: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"(?s)LocalExecutor has no setting '{key}'.*mean.*{near}"):
        parsed(**{key: 1})


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("execution_mode", "stream", "'streaming' or 'batch'"),
        ("num_gpus", 1.5, "a whole number or None"),
        ("ignore_failures", 1, "True or False"),
        ("num_cpus", True, "number"),
        ("num_cpus", -1, "must not be negative"),
        ("num_cpus", float("nan"), "num_cpus=nan must be finite"),
        ("time_limit_s", float("nan"), "time_limit_s=nan must be above 0"),
        ("cpu_allocation_percentage", 95, "above 0 and at most 1"),
        ("max_workers_per_stage", 0, "at least 1"),
        ("memory_budget", "much", "memory_budget"),
    ],
)
def test_a_value_that_cannot_work_is_refused(key: str, value: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parsed(**{key: value})


def test_settings_that_are_dictionaries() -> None:
    @dataclass(frozen=True)
    class Config:
        environment: dict[str, Any] | None = None

    assert parse_config(Config, {"environment": {"env_vars": {}}}, owner="X").environment == {"env_vars": {}}
    assert parse_config(Config, {"environment": None}, owner="X").environment is None
    with pytest.raises(UsageError, match="environment='a' must be dict"):
        parse_config(Config, {"environment": "a"}, owner="X")
