"""When Ray Data may begin another task: as it decides itself, and also while processors lie idle.

Ray Data divides the processors among the operators of a dataset, used or not: of four processors and three operators,
the one that has all the work gets one. Its limits on memory are left as they are.
"""

from __future__ import annotations

from typing import Any

from ray.data._internal.execution import backpressure_policy as policies
from ray.data._internal.execution.operators.task_pool_map_operator import TaskPoolMapOperator


class IdleProcessors(policies.ResourceBudgetBackpressurePolicy):  # type: ignore[misc]
    """Ray Data's own rule about resources, but a task that lacks only processors may have those that nobody uses.

    Tasks end soon and give them back, so that nobody waits for long; what workers hold that stay is not touched.
    """

    def can_add_input(self, op: Any) -> bool:
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


def with_idle_processors() -> list[Any]:
    """Ray Data's rules, with ours in the place of the one that it extends."""
    mine = policies.ResourceBudgetBackpressurePolicy
    return [IdleProcessors if policy is mine else policy for policy in policies.ENABLED_BACKPRESSURE_POLICIES]


KEY: str = policies.ENABLED_BACKPRESSURE_POLICIES_CONFIG_KEY
"""The setting of a `DataContext` that holds the rules."""
