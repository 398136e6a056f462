"""The executor on Cosmos-Xenna: the plan as a Xenna pipeline, the results through a mailbox."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from gristmill.backends.base import BaseExecutor, Capacity
from gristmill.backends.config import parse_config
from gristmill.backends.plan import ExecutionPlan
from gristmill.backends.ray import cluster as clusters
from gristmill.backends.ray.allocation import Demand, Share, fit
from gristmill.backends.ray.driver import Run, watched
from gristmill.backends.ray.feasibility import Request, check
from gristmill.backends.xenna.config import XennaConfig
from gristmill.errors import PlanningError, UsageError
from gristmill.execution.driver import Work

_CLUSTER_VARIABLES = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Xenna hands out GPUs itself; a cluster that Ray's own way is on must be started with this."""


class XennaExecutor(BaseExecutor):
    """Runs pipelines on a Ray cluster with Cosmos-Xenna.

    Args:
        config: The settings of `XennaConfig`; an unknown key is an error.
        ignore_head_node: Keep work off the head node.

    Example:
        >>> executor = XennaExecutor(config={"execution_mode": "streaming", "autoscale_interval_s": 60})
        >>> pipeline.run(executor=executor)
    """

    name: ClassVar[str] = "xenna"

    def __init__(self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False) -> None:
        super().__init__(config, ignore_head_node)
        self.settings = parse_config(XennaConfig, config, owner="XennaExecutor")
        self.one_stage_at_a_time = self.settings.execution_mode == "batch"

    def capacity(self) -> Capacity:
        return clusters.capacity(self.settings, ignore_head_node=self.ignore_head_node)

    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        os.environ.setdefault("PYTHON_LOG", "off")
        from gristmill.backends.xenna.attempts import Rounds
        from gristmill.backends.xenna.mailbox import Mailbox

        ignored = self.ignore_head_node
        with (
            clusters.connected(self.settings, ignore_head_node=ignored, environment=_CLUSTER_VARIABLES) as cluster,
            watched(plan, work, cluster, default_lifetime_m=self.settings.worker_max_lifetime_m, watch=Mailbox) as run,
        ):
            self._check_environments(plan, connected_before=cluster.connected_before)

            def shares() -> list[Share]:
                run.cluster = clusters.present(run.cluster, ignore_head_node=ignored)
                return self._shares(plan, run)

            Rounds(plan, work, run, shares, self.settings).run()

    def _check_environments(self, plan: ExecutionPlan, *, connected_before: bool) -> None:
        """Refuse what Xenna would leave out without a word.

        Raises:
            UsageError: A runtime environment holds something that it cannot give to its workers.
        """
        for segment in plan.segments:
            _check_environment(segment.runtime_env or {}, f"{segment.name}: runtime_env")
        if connected_before:
            _check_environment(self.settings.runtime_env or {}, "XennaExecutor: runtime_env")

    def _shares(self, plan: ExecutionPlan, run: Run) -> list[Share]:
        """What each segment gets.

        Raises:
            PlanningError: Some workers can never find a place.
        """
        nodes = [float(math.floor(node.cpus * self.settings.cpu_allocation_percentage)) for node in run.cluster.nodes]
        if not any(nodes):
            raise PlanningError(
                f"Xenna uses whole processors, and {self.settings.cpu_allocation_percentage:.0%} of "
                f"{max(node.cpus for node in run.cluster.nodes):g} is less than one. Raise cpu_allocation_percentage.",
                setting="cpu_allocation_percentage",
            )
        demands = [Demand(segment, stays=True, workers=run.fixed_workers(segment)) for segment in plan.segments]
        groups = [[demand] for demand in demands] if self.one_stage_at_a_time else [demands]
        found = [fit(group, nodes, gpus=run.cluster.gpus) for group in groups]
        for note in [note for _, note in found if note is not None][:1]:
            run.notice(note)
        shares = [share for group, _ in found for share in group]
        requests = [
            Request(segment.name, share.cpus, share.gpus, workers=max(1, share.least))
            for segment, share in zip(plan.segments, shares, strict=True)
        ]
        check(requests, run.cluster.nodes, at_once=not self.one_stage_at_a_time)
        return shares


def _check_environment(given: Iterable[str], where: str) -> None:
    for name in given:
        if name not in ("conda", "env_vars"):
            raise UsageError(
                f"{where} holds {name!r}, which Xenna cannot give to its workers: it takes conda and env_vars. Give it "
                "to your own ray.init(runtime_env=...), or use executor='ray_data'.",
                key=name,
            )
