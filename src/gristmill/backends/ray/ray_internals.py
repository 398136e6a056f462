"""Every use of private or undocumented parts of Ray. The rest of the package uses its public API only.

Each entry says why the public API is not enough. All of them were checked with the versions in `CHECKED_VERSIONS`;
their tests fail when Ray removes a part, or offers the same publicly.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import ray

CHECKED_VERSIONS = ("2.60",)

HEAD_RESOURCE = "node:__internal_head__"
"""A resource that only the head node has: `ray.nodes()` does not say which node is the head."""

START_COMMAND = (sys.executable, "-m", "ray.scripts.scripts", "start")
"""The command `ray start` of this environment: the `ray` on the PATH may belong to another one."""

STARTED_MESSAGE = "This command will now block"
"""What `ray start --block` prints once the cluster is up: it does not exit, so there is no exit code to check."""

USAGE_VARIABLES = {"RAY_DATA_USAGE_DISABLED": "1"}
"""Without it, Ray Data starts another process on every cluster for its own usage statistics."""

DATA_SETTINGS = {"_max_num_blocks_in_streaming_gen_buffer": 16}
"""Blocks of a worker that may wait for Ray's loop, which collects them ten times per second: with Ray's own limit of
two, a worker produces at most 20 batches per second."""

MOST_CALLS = 1_000_000_000
"""Calls after which a task process exits; never reached, unless `leave_after_call` forces it."""

_input_queues: dict[str, tuple[int, int]] = {}
"""Blocks and bytes that wait before each operator of the dataset that runs in this process."""
_hidden: set[str] = set()
"""Prefixes of lines that are not printed."""


def start_local_cluster(temp_dir: str, **options: Any) -> None:
    """Start a cluster on this machine whose files are below `temp_dir`, an option that `ray.init` does not document.

    The default folder can be unwritable, or too long for the names of sockets.
    """
    ray.init(address="local", _temp_dir=temp_dir, **options)


def dashboard_url() -> str | None:
    """URL of the dashboard: `ray.init` returns it, but the connection may be the caller's own."""
    node = ray._private.worker.global_worker.node
    address = None if node is None else node.address_info.get("webui_url")
    return f"http://{address}" if address else None


def reread_authentication() -> None:
    """Let Ray in this process see changed `RAY_AUTH_*` variables: it reads them only once, when it is imported."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def leave_after_call() -> None:
    """Let Ray end this process after the current call of a task whose `max_calls` is `MOST_CALLS`.

    Ray counts calls and ends processes itself. It has no public way to end one earlier, and reports any other exit as a
    failure.
    """
    counters = ray._private.worker.global_worker.function_actor_manager._num_task_executions
    for function in counters:
        counters[function] = MOST_CALLS - 1


def hide_retries(operator: str) -> None:
    """Stop Ray from printing that calls of an operator's actors failed and are retried.

    That happens whenever a worker is replaced as planned, and Ray has no setting for it. Ray still prints that a worker
    died, and the run reports losses itself.
    """
    original = ray._private.worker.print_to_stdstream
    if not _hidden:

        def print_others(data: dict[str, Any], ignore_prefix: bool) -> None:
            planned = [line for line in data["lines"] if line.startswith(tuple(_hidden)) and "will be retried" in line]
            if others := [line for line in data["lines"] if line not in planned]:
                original({**data, "lines": others}, ignore_prefix)

        ray._private.worker.print_to_stdstream = print_others
    _hidden.add(f"Task MapWorker(MapBatches({operator}))")


def task_attempt() -> int:
    """How many times Ray has already started the current call: `RuntimeContext` does not say."""
    return int(ray._private.worker.global_worker.core_worker.get_current_task_attempt_number())


class InputQueues:
    """What is queued before each operator, by the names of their functions; Ray Data has metrics for it, but no API.

    Ray Data consults its backpressure policies before it starts a task, and ours looks at the queue then. If the user
    has chosen other policies, nothing is known.
    """

    def __init__(self, operators: list[str]) -> None:
        self._names = [f"MapBatches({operator})" for operator in operators]
        _input_queues.clear()

    def __call__(self) -> tuple[list[int], list[int]]:
        found = [_input_queues.get(name, (0, 0)) for name in self._names]
        return [blocks for blocks, _ in found], [size for _, size in found]


@functools.cache
def idle_cpu_policies() -> tuple[str, list[Any]]:
    """The setting of a `DataContext` for backpressure policies: Ray Data's own ones, with one of them extended.

    Ray Data divides the CPUs among the operators of a dataset, used or not: with four CPUs and three operators, the one
    that has all the work gets one. Its limits on memory are left as they are.
    """
    from ray.data._internal.execution import backpressure_policy as policies
    from ray.data._internal.execution.operators.task_pool_map_operator import TaskPoolMapOperator

    class IdleCpuPolicy(policies.ResourceBudgetBackpressurePolicy):  # type: ignore[misc]
        """Ray Data's own rule about resources, but a task that lacks only CPUs may use idle ones.

        Tasks soon finish and return them, so waits are short; what actors hold is not touched.
        """

        def can_add_input(self, op: Any) -> bool:
            if self._topology and op in self._topology:
                state = self._topology[op]
                waiting = state.total_enqueued_input_blocks(), state.total_enqueued_input_blocks_bytes()
                _input_queues[op.name] = waiting
            if super().can_add_input(op):
                return True
            manager = self._resource_manager
            budget = manager.get_budget(op)
            if budget is None or not isinstance(op, TaskPoolMapOperator):
                return False
            needed = op.incremental_resource_usage()
            idle = manager.get_global_limits().cpu - manager.get_global_usage().cpu
            room = budget.copy(cpu=max(budget.cpu, idle))
            output = op.metrics.obj_store_mem_max_pending_output_per_task or 0
            return bool(needed.satisfies_limit(room)) and room.object_store_memory >= output

    enabled = [
        IdleCpuPolicy if policy is policies.ResourceBudgetBackpressurePolicy else policy
        for policy in policies.ENABLED_BACKPRESSURE_POLICIES
    ]
    return policies.ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY, enabled
