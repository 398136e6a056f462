"""The executor on Ray Data: partitions and batches stream through the segments of a plan on a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from gristmill.backends.base import BaseExecutor, Capacity
from gristmill.backends.config import parse_config
from gristmill.backends.plan import ExecutionPlan
from gristmill.backends.ray import cluster as clusters
from gristmill.backends.ray.allocation import Demand, Share, fit
from gristmill.backends.ray.delivery import Delivery
from gristmill.backends.ray.driver import Run, watched
from gristmill.backends.ray.feasibility import check
from gristmill.backends.ray_data.config import RayDataConfig
from gristmill.execution.driver import Work

_PATIENCE_S = 20.0
"""Seconds without any result after the loss of a node, until what is not finished is begun anew."""
_STAGE_PATIENCE_S = 600.0
"""The same where stages run one after the other: there, results come only from the last one."""

_PARTITIONS_AT_ONCE = 1_000
"""Partitions in one dataset. Ray keeps 12 kB in the driver for each, until the dataset is at its end."""
_TIMES_MORE_IF_HELD = 20
"""So many times more where workers hold something, such as a model: they end with the dataset."""
_PARTITIONS_PER_CPU = 20
"""The same for each processor, where there are many: the end of a dataset must be rare."""


class RayDataExecutor(BaseExecutor):
    """Runs pipelines on a Ray cluster with Ray Data.

    Uses the cluster this process is connected to, else the one at `RAY_ADDRESS`, else starts one on this machine for
    the time of the run.

    Args:
        config: The settings of `RayDataConfig`; an unknown key is an error.
        ignore_head_node: Keep work off the head node.

    Example:
        >>> pipeline.run(executor=RayDataExecutor(config={"max_workers_per_stage": 16}))
    """

    name: ClassVar[str] = "ray_data"

    def __init__(self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False) -> None:
        super().__init__(config, ignore_head_node)
        self.settings = parse_config(RayDataConfig, config, owner="RayDataExecutor")

    def capacity(self) -> Capacity:
        return clusters.capacity(self.settings, ignore_head_node=self.ignore_head_node)

    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        with (
            clusters.connected(self.settings, ignore_head_node=self.ignore_head_node) as cluster,
            watched(plan, work, cluster, default_lifetime_m=self.settings.worker_max_lifetime_m) as run,
        ):
            self._stream(plan, work, run)

    def _stream(self, plan: ExecutionPlan, work: Work, run: Run) -> None:
        from gristmill.backends.ray_data.attempts import play
        from gristmill.backends.ray_data.dataset import Flow

        delivery = Delivery(work)
        one_by_one = self.one_stage_at_a_time
        patience = _STAGE_PATIENCE_S if one_by_one else _PATIENCE_S
        # Where stages run one after the other, each has to see all partitions before the next one begins.
        many = max(_PARTITIONS_AT_ONCE, int(_PARTITIONS_PER_CPU * run.cluster.cpus))
        if any(run.holds(segment) for segment in plan.segments):
            many *= _TIMES_MORE_IF_HELD
        at_once = len(work) if one_by_one else many
        while (done := work.done) < len(work):
            shares = self._shares(plan, run)
            flow = Flow(plan, work, run, shares, self.settings, at_once=at_once, one_at_a_time=one_by_one)
            if not play(flow, delivery, run, patience_s=patience):
                run.begin_again(self._present(run.cluster))
            elif work.done == done:
                return  # the work knows what is missing, and says so

    def _present(self, cluster: clusters.Cluster) -> clusters.Cluster:
        """The cluster as it is now, after a node was lost."""
        return clusters.present(cluster, ignore_head_node=self.ignore_head_node)

    def _shares(self, plan: ExecutionPlan, run: Run) -> list[Share]:
        """What each segment gets.

        Raises:
            ResourcesError: Some workers can never find a place.
        """
        demands = [
            Demand(segment, stays=run.holds(segment), workers=run.fixed_workers(segment)) for segment in plan.segments
        ]
        nodes = [node.cpus for node in run.cluster.nodes]
        # Where stages run one after the other, each has the whole cluster.
        groups = [[demand] for demand in demands] if self.one_stage_at_a_time else [demands]
        shares: list[Share] = []
        for group in groups:
            found, note = fit(group, nodes, gpus=run.cluster.gpus)
            shares.extend(found)
            if note is not None:
                run.notice(note)
        check(run.requests(shares), run.cluster.nodes, at_once=not self.one_stage_at_a_time)
        if self.one_stage_at_a_time:
            # Ray keeps the actors of a finished stage while their output may have to be made again. Only one stage
            # works at a time, so each books its part of the processors and they all find a place.
            return [replace(share, cpus=share.cpus / len(shares)) for share in shares]
        return shares
