"""The executor on Ray Data: partitions and batches stream through the segments of a plan on a cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import ray

from gristmill.backends.base import BaseExecutor, Capacity, parse_config
from gristmill.backends.plan import ExecutionPlan
from gristmill.backends.ray import cluster as clusters
from gristmill.backends.ray import ray_internals
from gristmill.backends.ray.allocation import Share
from gristmill.backends.ray.driver import Delivery, RayRun, coordinated_run, is_loss
from gristmill.backends.ray.stage_specs import shown_name
from gristmill.errors import GristmillError, WorkerError
from gristmill.execution.driver import Work

if TYPE_CHECKING:
    from gristmill.backends.ray_data.dataset import SegmentDataset

_PATIENCE_S = 20.0
"""Seconds without any result after a node was lost, until unfinished work is restarted."""
_STAGE_PATIENCE_S = 600.0
"""The same for stages that run one after the other, where results come only from the last one."""
_POLL_S = 1.0
_NOTICE_S = 60.0
"""Time that Ray may need to notice a lost node after something on it was lost."""

_PARTITIONS_AT_ONCE = 1_000
"""Partitions per dataset. Ray keeps 12 kB per partition in the driver until the dataset ends."""
_TIMES_MORE_IF_HELD = 20
"""Multiplier for stateful workers, such as those with a model: they end with the dataset."""
_PARTITIONS_PER_CPU = 20
"""The same per CPU core, if there are many: datasets should end rarely."""


@dataclass(frozen=True)
class RayDataConfig(clusters.ClusterConfig):
    """The settings of `RayDataExecutor(config={…})`, in addition to those of `ClusterConfig`.

    Attributes:
        ignore_failures: Quarantine documents on which a stage raises.
        max_workers_per_stage: Maximum number of workers per segment; None for the maximum that fits.
        batches_per_call: Number of batches per Ray task; None for up to eight, fewer for small inputs.
        worker_max_lifetime_m: Minutes after which workers are replaced; None replaces only those that hold models, 0
            none.
    """

    ignore_failures: bool = False
    max_workers_per_stage: int | None = None
    batches_per_call: int | None = None
    worker_max_lifetime_m: float | None = None

    def __post_init__(self) -> None:
        self.check_least("RayDataExecutor", 1, "max_workers_per_stage", "batches_per_call")
        self.check_least("RayDataExecutor", 0, "worker_max_lifetime_m")
        self.check_above_zero("RayDataExecutor", "logging_interval", "gpu_memory_gb")


class RayDataExecutor(BaseExecutor):
    """Runs pipelines on a Ray cluster with Ray Data.

    Uses the cluster this process is connected to, otherwise the one at `RAY_ADDRESS`, or starts one on this machine for
    the duration of the run.

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
        self.shares_environment = self.settings.starts_here

    def capacity(self) -> Capacity:
        return clusters.capacity(self.settings, ignore_head_node=self.ignore_head_node)

    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        with (
            clusters.connected(self.settings, ignore_head_node=self.ignore_head_node) as cluster,
            coordinated_run(plan, work, self._usable(cluster), self.settings.worker_max_lifetime_m) as run,
        ):
            run.all_stay = self.one_stage_at_a_time
            self._stream(run)

    def _stream(self, run: RayRun) -> None:
        from gristmill.backends.ray_data.dataset import SegmentDataset

        work = run.work
        one_by_one = self.one_stage_at_a_time
        patience = _STAGE_PATIENCE_S if one_by_one else _PATIENCE_S
        # If stages run one after the other, each has to process all partitions before the next one begins.
        many = max(_PARTITIONS_AT_ONCE, int(_PARTITIONS_PER_CPU * run.cluster.cpus))
        if any(run.stays(segment) for segment in run.plan.segments):
            many *= _TIMES_MORE_IF_HELD
        at_once = len(work) if one_by_one else many
        with run.delivery(ray_internals.InputQueues(list(map(shown_name, run.plan.segments)))) as delivery:
            while (done := work.done) < len(work):
                shares = self._shares(run)
                dataset = SegmentDataset(run, shares, self.settings, at_once=at_once, one_at_a_time=one_by_one)
                if not _attempt(dataset, delivery, run, patience_s=patience):
                    run.restart(self._usable(clusters.present(run.cluster)))
                elif work.done == done:
                    return  # the work reports what is missing

    def _usable(self, cluster: clusters.Cluster) -> clusters.Cluster:
        """The part of the cluster that the run may use."""
        return cluster

    def _shares(self, run: RayRun) -> list[Share]:
        """Allocate resources to each segment.

        Raises:
            ResourcesError: Some workers can never be placed.
        """
        nodes = [node.cpus for node in run.cluster.nodes]
        shares = run.shares(nodes, one_stage_at_a_time=self.one_stage_at_a_time)
        if self.one_stage_at_a_time:
            # Ray keeps the actors of a finished stage as long as their output may have to be recomputed. Only one stage
            # works at a time, so each reserves its part of the CPUs and they all fit.
            return [replace(share, cpus=share.cpus / len(shares)) for share in shares]
        return shares


class _StuckError(Exception):
    """No result has arrived for a long time, and a node is gone."""


def _attempt(dataset: SegmentDataset, delivery: Delivery, run: RayRun, *, patience_s: float) -> bool:
    """Deliver what `dataset` returns; False if it was abandoned because of a lost node.

    Ray recomputes lost blocks with the tasks that made them. If long-lived workers hold all remaining CPUs, those tasks
    cannot run while the workers wait for their blocks: a deadlock. The attempt is then abandoned after `patience_s`,
    and the next one is planned for the remaining nodes. Finished partitions are kept.

    Raises:
        GristmillError: The error that ends the run.
    """
    try:
        _deliver(dataset, delivery, run, patience_s)
    except _StuckError:
        run.end_workers()
        return False
    except GristmillError:
        raise
    except ray.exceptions.RayError as error:
        if is_loss(error) and _is_node_lost(run):
            run.end_workers()
            return False
        raise WorkerError(
            f"Ray ended the run: {type(error).__name__}: {str(error).strip()} Committed output is intact; look at the "
            "Ray dashboard and logs, and run the same command again to resume.",
            cause=type(error).__name__,
        ) from error
    return True


def _deliver(dataset: SegmentDataset, delivery: Delivery, run: RayRun, patience_s: float) -> None:
    with dataset.opened() as blocks:
        received_at = time.monotonic()
        while (references := blocks.take(_POLL_S)) is not None:
            for reference in references:
                for report in dataset.reports(_value(reference, run, patience_s)):
                    delivery.take(report)
                received_at = time.monotonic()
            run.poll()
            if not references:
                _check(run, received_at, patience_s)


def _value(reference: Any, run: RayRun, patience_s: float) -> Any:
    """The block, which Ray may have to recompute."""
    asked_at = time.monotonic()
    while True:
        try:
            return ray.get(reference, timeout=_POLL_S)
        except ray.exceptions.GetTimeoutError:
            run.poll()
            _check(run, asked_at, patience_s)


def _check(run: RayRun, since: float, patience_s: float) -> None:
    if time.monotonic() - since > patience_s and run.lost_nodes():
        raise _StuckError


def _is_node_lost(run: RayRun) -> bool:
    """Whether a node turns out to be gone; Ray reports losses on a node before the loss of the node itself."""
    deadline = time.monotonic() + _NOTICE_S
    while not run.lost_nodes():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
