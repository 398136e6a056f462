"""The driver's side of a run on Ray, for every engine: the coordinator, the workers and their results."""

from __future__ import annotations

import contextlib
import math
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gristmill.backends.plan import ExecutionPlan, Segment
from gristmill.backends.ray.allocation import Demand, Request, Share, check, fit
from gristmill.backends.ray.cluster import Cluster
from gristmill.backends.ray.coordinator import Coordinator
from gristmill.backends.ray.stage_specs import SegmentSpec, lifetime_s, max_growth_bytes, segment_spec
from gristmill.backends.ray.usage import Queues, Sampler
from gristmill.backends.ray.worker import WorkerReport, WorkerSpec, overrides
from gristmill.errors import GristmillError
from gristmill.execution.driver import Work
from gristmill.execution.packed_task import unpack_end
from gristmill.execution.stage_pickling import pickled
from gristmill.observe.events import Notice

_POLL_S = 1.0
_TEARDOWN_S = 30.0
"""How long to wait for workers to tear down at the end of a run."""
_ABANDON_S = 5.0
"""How long to wait for them after an attempt was abandoned."""

_LOSSES = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.TaskUnschedulableError,
    ray.exceptions.ActorUnschedulableError,
)


def is_loss(problem: BaseException) -> bool:
    """Whether `problem` or its cause is the loss of a worker, node or block rather than an error in the work.

    Example:
        >>> is_loss(ValueError("no such column"))
        False
    """
    cause: BaseException | None = problem
    while cause is not None:
        if isinstance(cause, _LOSSES):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


class RayRun:
    """One run: the configuration of its workers, their reports, and the cluster.

    Attributes:
        all_stay: Whether every segment keeps its workers, even stateless ones.
        grown_workers: The ids of actors whose memory has grown so much that they should be replaced.
        sampler: Receives what workers report to the coordinator about themselves.
    """

    def __init__(
        self, plan: ExecutionPlan, work: Work, cluster: Cluster, coordinator: Any, default_lifetime_m: float | None
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.plan = plan
        self.work = work
        self.cluster = cluster
        self.coordinator = coordinator
        self.specs: list[SegmentSpec] = [segment_spec(segment) for segment in plan.segments]
        self.all_stay = False
        self.grown_workers: set[str] = set()
        self.sampler: Sampler | None = None
        self._default_lifetime_m = default_lifetime_m
        self._polled_at = time.monotonic()
        self._problem: GristmillError | None = None

    # --- workers before they start ---

    def worker_spec(self, segment: Segment) -> WorkerSpec:
        """The configuration of the workers of `segment`."""
        given = (self.specs[segment.index].ray.ray_remote_args or {}).get("num_gpus", segment.resources.gpus)
        return WorkerSpec(
            run=self.id,
            code=pickled(segment, self.plan.settings),
            index=segment.index,
            last=segment.index == len(self.plan.segments) - 1,
            whole_partitions=self.plan.whole_partitions,
            coordinator=self.coordinator,
            lifetime_s=lifetime_s(segment, self.specs[segment.index], self._default_lifetime_m),
            max_growth_bytes=max_growth_bytes(self.specs[segment.index], self._default_lifetime_m),
            holds_gpu=bool(given),
        )

    def stays(self, segment: Segment) -> bool:
        """Whether workers of the segment are long-lived: they have a setup, hold a model, or a number was requested."""
        spec = self.specs[segment.index].ray
        hooks = ("setup", "teardown", "setup_on_node")
        if self.all_stay or any(overrides(stage, hook) for stage in segment.stages for hook in hooks):
            return True
        if spec.is_actor_stage is not None:
            return spec.is_actor_stage
        held = any(stage.needs_own_worker or stage.resources.requires_gpu for stage in segment.stages)
        return held or spec.min_workers is not None

    def fixed_workers(self, segment: Segment) -> int | None:
        """The number of workers that the stages request on the whole cluster."""
        per_node = self.specs[segment.index].xenna.num_workers_per_node
        if segment.workers is not None or per_node is None:
            return segment.workers
        return max(1, math.ceil(per_node * len(self.cluster.nodes)))

    def shares(self, nodes: Sequence[float], *, one_stage_at_a_time: bool, ray_options: bool = True) -> list[Share]:
        """Allocate resources to each segment; notifies the user if a segment gets less than it requested.

        Args:
            nodes: CPU cores of each node.
            one_stage_at_a_time: Whether each segment has the whole cluster to itself.
            ray_options: Whether workers request the additions of `ray_stage_spec`.

        Raises:
            ResourcesError: Some workers can never be placed.
        """
        demands = [Demand(item, self.stays(item), self.fixed_workers(item)) for item in self.plan.segments]
        groups = [[demand] for demand in demands] if one_stage_at_a_time else [demands]
        found = [fit(group, nodes, gpus=self.cluster.gpus) for group in groups]
        for note in dict.fromkeys(note for _, note in found if note is not None):
            self.notice(note)
        shares = [share for group, _ in found for share in group]
        requests = []
        for segment, share in zip(self.plan.segments, shares, strict=True):
            cpus, gpus, others = share.cpus, share.gpus, dict[str, float]()
            if ray_options:
                spec = self.specs[segment.index].ray
                extra = spec.ray_remote_args or {}
                cpus = extra.get("num_cpus", cpus if spec.ray_num_cpus is None else spec.ray_num_cpus)
                gpus = extra.get("num_gpus", gpus)
                others.update(extra.get("resources") or {})
                if extra.get("memory"):
                    others["memory"] = extra["memory"]
            requests.append(Request(segment.name, cpus, gpus, others, max(1, share.least)))
        check(requests, self.cluster.nodes, at_once=not one_stage_at_a_time)
        return shares

    # --- workers while they run ---

    def notice(self, message: str, level: str = "info") -> None:
        """Notify the user."""
        self.work.events.emit(Notice(message, level))

    def poll(self) -> None:
        """Poll the coordinator, unless that was done a moment ago."""
        if time.monotonic() - self._polled_at > _POLL_S:
            self._poll()

    def _poll(self) -> int:
        """Poll the coordinator; returns the number of workers that are still running."""
        told = ray.get(self.coordinator.drain.remote())
        self.grown_workers.update(told.grown)
        if self.sampler is not None:
            self.sampler.take(told.usages)
        self._polled_at = time.monotonic()
        for event in told.events:
            self.work.events.emit(event)
        if told.problems and self._problem is None:
            self._problem = told.problems[0]
        return int(told.workers)

    @contextlib.contextmanager
    def delivery(self, queues: Queues | None = None) -> Iterator[Delivery]:
        """The receiver of worker reports; `queues` as for the `Sampler`."""
        with contextlib.closing(Delivery(self.work, queues)) as delivery:
            self.sampler = delivery.sampler
            try:
                yield delivery
            finally:
                self.sampler = None

    def workers(self) -> dict[str, Any]:
        """The workers that are still running, with their handles."""
        return dict(ray.get(self.coordinator.workers.remote()))

    def lost_nodes(self) -> frozenset[str]:
        """The nodes of this attempt that are gone."""
        alive = {info["NodeID"] for info in ray.nodes() if info.get("Alive")}
        return frozenset(node.id for node in self.cluster.nodes) - alive

    def restart(self, cluster: Cluster) -> None:
        """Continue on the remaining nodes; tasks in progress are not blamed."""
        gone = len(self.lost_nodes())
        self.cluster = cluster
        ray.get(self.coordinator.release_all_tasks.remote())
        self.notice(
            f"{gone} node(s) of the cluster were lost; their unfinished work is repeated on other nodes.", "warning"
        )

    # --- workers at their end ---

    def end_workers(self) -> None:
        """Stop workers that are no longer needed, including those that cannot tear down."""
        self._wait(_ABANDON_S)
        self.kill_workers()
        self._poll()

    def kill_workers(self) -> None:
        """Kill the remaining workers."""
        for name, handle in self.workers().items():
            if handle is not None:
                ray.kill(handle)
            ray.get(self.coordinator.worker_lost.remote(name))

    def wait_for_workers(self) -> None:
        """Wait until every worker has torn down.

        Raises:
            StageFailedError: A teardown failed.
        """
        self._wait(_TEARDOWN_S)
        if self._problem is not None:
            raise self._problem

    def _wait(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while self._poll() and time.monotonic() < deadline:
            time.sleep(0.05)


@contextlib.contextmanager
def coordinated_run(
    plan: ExecutionPlan, work: Work, cluster: Cluster, default_lifetime_m: float | None
) -> Iterator[RayRun]:
    """A run with its coordinator, which stops with it; workers are replaced after `default_lifetime_m` minutes."""
    handle = ray.remote(Coordinator).options(max_restarts=-1, max_task_retries=-1, **beside_driver()).remote()
    try:
        run = RayRun(plan, work, cluster, handle, default_lifetime_m)
        if cluster.dashboard_url is not None:
            run.notice(f"Ray dashboard: {cluster.dashboard_url}")
        yield run
    finally:
        ray.kill(handle)


def beside_driver() -> dict[str, Any]:
    """Options for actors that the run depends on: on the driver's node, without which the run is over anyway."""
    node = ray.get_runtime_context().get_node_id()
    return {"num_cpus": 0, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}


class Delivery:
    """Passes the reports of workers to `work`; tasks that ran twice after a loss are counted once.

    Repeating a task produces the same ends, because task ids, rows and decisions depend only on the input.
    """

    def __init__(self, work: Work, queues: Queues | None = None) -> None:
        self._work = work
        self._seen: dict[int, set[tuple[int, ...]]] = {}
        self.sampler = Sampler(work.events, len(work.plan.segments), partitions=len(work), queues=queues)

    def take(self, report: WorkerReport) -> None:
        """Deliver the content of the report.

        Raises:
            GristmillError: The error in the report.
        """
        for end, packed in report.ends:
            partition, order = end.lineage.partition, end.lineage.order
            seen = self._seen.setdefault(partition, set())
            if order not in seen and not self._work.is_done(partition):
                seen.add(order)
                self._work.deliver(unpack_end(end, packed))
            if self._work.is_done(partition):
                del self._seen[partition]
        for event in report.events:
            self._work.events.emit(event)
        self.sampler.take(report.usage)
        if report.error is not None:
            raise report.error

    def close(self) -> None:
        """Close the receiver: nothing more will arrive."""
        self.sampler.close()
