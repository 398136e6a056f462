"""A task that lacks only processors may have idle ones; limits on memory stay."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from ray.data import ExecutionResources
from ray.data._internal.execution.operators.task_pool_map_operator import TaskPoolMapOperator

from gristmill.backends.ray_data.backpressure import IdleProcessors, with_idle_processors

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class _Operator(TaskPoolMapOperator):
    """An operator whose tasks need one processor and are known to give ten bytes."""

    def __init__(self) -> None:
        self._output = 10

    def incremental_resource_usage(self) -> ExecutionResources:
        return ExecutionResources(cpu=1.0)

    @property
    def metrics(self) -> Any:
        return SimpleNamespace(obj_store_mem_max_pending_output_per_task=self._output)

    def __hash__(self) -> int:
        return id(self)


def _policy(budget: ExecutionResources, *, used: float) -> IdleProcessors:
    manager = SimpleNamespace(
        _op_resource_allocator=SimpleNamespace(can_submit_new_task=lambda op: False),
        get_budget=lambda op: budget,
        get_global_limits=lambda: ExecutionResources(cpu=4.0),
        get_global_usage=lambda: ExecutionResources(cpu=used),
    )
    return IdleProcessors(None, None, manager)


def test_idle_processors_are_used() -> None:
    budget = ExecutionResources(cpu=0.3, object_store_memory=100)
    assert _policy(budget, used=3.0).can_add_input(_Operator())
    assert not _policy(budget, used=3.5).can_add_input(_Operator())


def test_memory_is_still_limited() -> None:
    assert not _policy(ExecutionResources(cpu=4.0, object_store_memory=5), used=0.0).can_add_input(_Operator())


def test_workers_that_stay_are_left_to_ray() -> None:
    """Only tasks give their processors back."""
    assert not _policy(ExecutionResources(cpu=0.3, object_store_memory=100), used=0.0).can_add_input(object())


def test_the_other_rules_remain() -> None:
    rules = with_idle_processors()
    assert rules.count(IdleProcessors) == 1
    assert len(rules) > 1
