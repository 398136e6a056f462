"""Private parts of Ray: still there, and still needed."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

pytest.importorskip("ray")

import ray
from ray.data import DataContext, ExecutionResources
from ray.data._internal.execution.backpressure_policy import ResourceBudgetBackpressurePolicy
from ray.data._internal.execution.operators.task_pool_map_operator import TaskPoolMapOperator
from ray.runtime_context import RuntimeContext

from gristmill.backends.ray import ray_internals

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def test_the_installed_version_was_checked() -> None:
    """With another version: read every entry of `ray_internals` again, then add the version there."""
    assert ".".join(ray.__version__.split(".")[:2]) in ray_internals.CHECKED_VERSIONS


def test_other_modules_use_the_public_api_only() -> None:
    backends = Path(ray_internals.__file__).parents[1]
    private = ("ray._private", "ray.data._internal", "__internal", "_raylet", "global_worker", "_temp_dir=")
    for file in [*backends.rglob("*.py"), *backends.with_name("core").rglob("*.py")]:
        if file.name != "ray_internals.py":
            lines = [line for line in file.read_text().splitlines() if any(part in line for part in private)]
            # `_LOGGERS` are names of loggers; the import is that of this module.
            assert [line for line in lines if "_LOGGERS" not in line and "ray_internals" not in line] == [], file


def test_the_head_is_marked_among_resources() -> None:
    from ray._common import constants

    assert constants.HEAD_NODE_RESOURCE_NAME == ray_internals.HEAD_RESOURCE


def test_ray_start_says_when_the_cluster_is_up() -> None:
    scripts = importlib.import_module(ray_internals.START_COMMAND[2])
    assert callable(scripts.start)
    assert ray_internals.STARTED_MESSAGE in inspect.getsource(scripts.start.callback)


def test_the_folder_of_a_local_cluster_has_no_public_option() -> None:
    assert "_temp_dir" in inspect.getsource(ray.init)
    assert "temp_dir" not in inspect.signature(ray.init).parameters


def test_the_runtime_context_tells_neither_attempt_nor_dashboard() -> None:
    public = [name for name in dir(RuntimeContext) if not name.startswith("_")]
    assert not [name for name in public if "attempt" in name or "dashboard" in name]
    assert hasattr(ray._raylet.CoreWorker, "get_current_task_attempt_number")
    assert ray_internals.dashboard_url() is None or ray.is_initialized()


def test_authentication_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    if ray.is_initialized() or "RAY_AUTH_MODE" in os.environ:
        pytest.skip("connected to a cluster")
    mode = ray._raylet.get_authentication_mode
    before = mode()
    try:
        with monkeypatch.context() as patch:
            patch.setenv("RAY_AUTH_MODE", "token")
            assert mode() == before
            ray_internals.reread_authentication()
            assert mode() != before
    finally:
        ray_internals.reread_authentication()
    assert mode() == before


def test_the_settings_of_ray_data_are_there_with_other_defaults() -> None:
    for name, value in ray_internals.DATA_SETTINGS.items():
        assert getattr(DataContext(), name) < value


def test_the_variable_about_usage_is_read() -> None:
    collector = importlib.import_module("ray.data._internal.usage.collector")
    for name in ray_internals.USAGE_VARIABLES:
        assert name in inspect.getsource(collector)


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


def _policy(budget: ExecutionResources, *, used: float) -> Any:
    manager = SimpleNamespace(
        _op_resource_allocator=SimpleNamespace(can_submit_new_task=lambda op: False),
        get_budget=lambda op: budget,
        get_global_limits=lambda: ExecutionResources(cpu=4.0),
        get_global_usage=lambda: ExecutionResources(cpu=used),
    )
    return _idle_cpu_policy()(None, None, manager)


def _idle_cpu_policy() -> Any:
    _, policies = ray_internals.idle_cpu_policies()
    (policy,) = [policy for policy in policies if policy.__name__ == "IdleCpuPolicy"]
    return policy


def test_idle_processors_are_used() -> None:
    budget = ExecutionResources(cpu=0.3, object_store_memory=100)
    assert _policy(budget, used=3.0).can_add_input(_Operator())
    assert not _policy(budget, used=3.5).can_add_input(_Operator())


def test_memory_is_still_limited() -> None:
    assert not _policy(ExecutionResources(cpu=4.0, object_store_memory=5), used=0.0).can_add_input(_Operator())


def test_workers_that_stay_are_left_to_ray() -> None:
    """Only tasks give their processors back."""
    assert not _policy(ExecutionResources(cpu=0.3, object_store_memory=100), used=0.0).can_add_input(object())


def test_the_other_policies_remain() -> None:
    key, policies = ray_internals.idle_cpu_policies()
    assert len(policies) > 1
    assert ResourceBudgetBackpressurePolicy not in policies
    context = DataContext()
    context.set_config(key, policies)
    assert len(pickle.loads(cloudpickle.dumps(context)).get_config(key)) == len(policies)


def test_ray_data_still_divides_processors_among_operators() -> None:
    """Its default reserves half of them in equal parts, used or not."""
    assert DataContext().op_resource_reservation_enabled
    assert DataContext().op_resource_reservation_ratio > 0


def test_calls_of_a_process_are_counted_where_they_are_set() -> None:
    manager = importlib.import_module("ray._private.function_manager").FunctionActorManager(SimpleNamespace())
    manager._num_task_executions["f"] = 3
    descriptor = SimpleNamespace(function_id="f")
    manager.increase_task_counter(descriptor)
    assert manager.get_task_counter(descriptor) == 4


def test_only_planned_retries_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    worker = importlib.import_module("ray._private.worker")
    assert "print_to_stdstream(" in inspect.getsource(worker.listen_error_messages)
    monkeypatch.setattr(worker, "print_to_stdstream", lambda data, ignore_prefix: printed.extend(data["lines"]))
    monkeypatch.setattr(ray_internals, "_hidden", set())
    ray_internals.hide_retries("mine")
    ray_internals.hide_retries("other")
    retried = "failed. There are infinite retries remaining, so the task will be retried."
    lines = [f"Task MapWorker(MapBatches(mine)).submit {retried}", f"Task theirs {retried}", "A worker died"]
    for line in lines:
        worker.print_to_stdstream({"lines": [line], "pid": "raylet", "is_err": False}, ignore_prefix=False)
    assert printed == lines[1:]
