"""The executor on Cosmos-Xenna: the plan as a Xenna pipeline, the results through a mailbox."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar

from gristmill.backends.base import BaseExecutor, Capacity
from gristmill.backends.config import parse_config
from gristmill.backends.plan import ExecutionPlan
from gristmill.backends.ray import cluster as clusters
from gristmill.backends.ray.driver import Run, watched
from gristmill.backends.ray.shares import Demand, Share, fit
from gristmill.backends.work import Work
from gristmill.backends.xenna.config import XennaConfig
from gristmill.errors import PlanningError, UsageError

_CLUSTER_VARIABLES = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Xenna hands out GPUs itself; a cluster that Ray's own way is on must be started with this."""


class XennaExecutor(BaseExecutor):
    """Runs pipelines on a Ray cluster with Cosmos-Xenna.

    Args:
        config: The settings of `XennaConfig`; an unknown key is an error.
        ignore_head_node: Xenna always uses all nodes; must be False.

    Example:
        >>> executor = XennaExecutor(config={"execution_mode": "streaming", "autoscale_interval_s": 60})
        >>> pipeline.run(executor=executor)
    """

    name: ClassVar[str] = "xenna"

    def __init__(self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False) -> None:
        super().__init__(config, ignore_head_node)
        if ignore_head_node:
            raise UsageError("XennaExecutor uses all nodes: ignore_head_node must be False. RayDataExecutor can do it.")
        self.settings = parse_config(XennaConfig, config, owner="XennaExecutor")
        self.one_stage_at_a_time = self.settings.execution_mode == "batch"

    def capacity(self) -> Capacity:
        return clusters.capacity(self.settings)

    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        os.environ.setdefault("PYTHON_LOG", "off")
        from gristmill.backends.xenna.mailbox import Mailbox
        from gristmill.backends.xenna.rounds import Rounds

        with (
            clusters.connected(self.settings, environment=_CLUSTER_VARIABLES) as cluster,
            watched(plan, work, cluster, default_lifetime_m=self.settings.worker_max_lifetime_m, watch=Mailbox) as run,
        ):
            Rounds(plan, work, run, self._shares(plan, run), self.settings).run()

    def _shares(self, plan: ExecutionPlan, run: Run) -> list[Share]:
        nodes = [float(math.floor(node.cpus * self.settings.cpu_allocation_percentage)) for node in run.cluster.nodes]
        if not any(nodes):
            raise PlanningError(
                f"Xenna uses whole processors, and {self.settings.cpu_allocation_percentage:.0%} of "
                f"{max(node.cpus for node in run.cluster.nodes):g} is less than one. Raise cpu_allocation_percentage.",
                setting="cpu_allocation_percentage",
            )
        demands = [Demand(segment, stays=True, workers=run.fixed_workers(segment)) for segment in plan.segments]
        if self.one_stage_at_a_time:
            found = [fit([demand], nodes, gpus=run.cluster.gpus) for demand in demands]
            notes = [note for _, note in found if note is not None]
            if notes:
                run.notice(notes[0])
            return [shares[0] for shares, _ in found]
        shares, note = fit(demands, nodes, gpus=run.cluster.gpus)
        if note is not None:
            run.notice(note)
        return shares
