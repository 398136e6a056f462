"""The driver's side of a run on Ray, whatever moves the tasks: the watch, the orders for workers, and their end."""

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
from gristmill.backends.ray.allocation import Share
from gristmill.backends.ray.cluster import Cluster, alive_nodes
from gristmill.backends.ray.coordinator import Watch
from gristmill.backends.ray.feasibility import Request
from gristmill.backends.ray.stage_specs import SegmentSpec, lifetime_s, segment_spec
from gristmill.backends.ray.worker import Order, overrides
from gristmill.errors import GristmillError
from gristmill.execution.driver import Work
from gristmill.execution.stage_pickling import pickled
from gristmill.observe.events import Notice

_TICK_S = 1.0
_FAREWELL_S = 30.0
"""How long the end of a run waits for workers to tear down."""
_ABANDON_S = 5.0
"""How long a round that was given up waits for them."""


class Run:
    """One run: what its workers are told, and what they have told.

    Attributes:
        all_stay: Whether every segment keeps its workers, also those that hold nothing.
    """

    def __init__(
        self, plan: ExecutionPlan, work: Work, cluster: Cluster, watch: Any, *, default_lifetime_m: float | None
    ) -> None:
        self.id = uuid.uuid4().hex[:12]
        self.plan = plan
        self.cluster = cluster
        self.watch = watch
        self.specs: list[SegmentSpec] = [segment_spec(segment) for segment in plan.segments]
        self.all_stay = False
        self._events = work.events
        self._default_lifetime_m = default_lifetime_m
        self._looked_at = time.monotonic()
        self._problem: GristmillError | None = None

    def order(self, segment: Segment) -> Order:
        """What the workers of `segment` are told."""
        return Order(
            run=self.id,
            code=pickled(segment, self.plan.settings),
            index=segment.index,
            last=segment.index == len(self.plan.segments) - 1,
            whole_partitions=self.plan.whole_partitions,
            watch=self.watch,
            lifetime_s=lifetime_s(segment, self.specs[segment.index], self._default_lifetime_m),
        )

    def holds(self, segment: Segment) -> bool:
        """Whether workers of the segment stay: they were set up, hold a model, or were asked for by number."""
        spec = self.specs[segment.index].ray
        if self.all_stay:
            return True
        if spec.is_actor_stage is not None:
            return spec.is_actor_stage or self._has_hooks(segment)
        stays = any(stage.needs_own_worker or stage.resources.requires_gpu for stage in segment.stages)
        return stays or self._has_hooks(segment) or spec.min_workers is not None

    @staticmethod
    def _has_hooks(segment: Segment) -> bool:
        hooks = ("setup", "teardown", "setup_on_node")
        return any(overrides(stage, hook) for stage in segment.stages for hook in hooks)

    def fixed_workers(self, segment: Segment) -> int | None:
        """The number of workers that the stages ask for, over the whole cluster."""
        per_node = self.specs[segment.index].xenna.num_workers_per_node
        if segment.workers is not None or per_node is None:
            return segment.workers
        return max(1, math.ceil(per_node * len(self.cluster.nodes)))

    def requests(self, shares: Sequence[Share]) -> list[Request]:
        """What Ray is asked for by the workers of each segment, with what the stages add themselves."""
        found = []
        for segment, share in zip(self.plan.segments, shares, strict=True):
            spec = self.specs[segment.index].ray
            extra = spec.ray_remote_args or {}
            cpus = share.cpus if spec.ray_num_cpus is None else spec.ray_num_cpus
            others = dict(extra.get("resources") or {})
            if extra.get("memory"):
                others["memory"] = extra["memory"]
            cpus, gpus = extra.get("num_cpus", cpus), extra.get("num_gpus", share.gpus)
            found.append(Request(segment.name, cpus, gpus, others, max(1, share.least)))
        return found

    def notice(self, message: str) -> None:
        """Tell the user something."""
        self._events.emit(Notice(message))

    def tick(self) -> None:
        """Look now and then at what the watch knows; called as often as one likes."""
        if time.monotonic() - self._looked_at > _TICK_S:
            self._look()

    def workers(self) -> dict[str, Any]:
        """The workers that have started and not ended, with their handles."""
        return dict(ray.get(self.watch.workers.remote()))

    def _look(self) -> int:
        """Take over what the watch has heard; gives the number of workers that have not ended."""
        events, problems, workers = ray.get(self.watch.drain.remote())
        self._looked_at = time.monotonic()
        for event in events:
            self._events.emit(event)
        if problems and self._problem is None:
            self._problem = problems[0]
        return int(workers)

    def lost_nodes(self) -> frozenset[str]:
        """The nodes of this round that are gone."""
        return frozenset(node.id for node in self.cluster.nodes) - alive_nodes()

    def begin_again(self, cluster: Cluster) -> None:
        """Go on with the nodes that are left; tasks that were under way are not blamed for it."""
        gone = len(self.lost_nodes())
        self.cluster = cluster
        ray.get(self.watch.release_all.remote())
        message = f"{gone} node(s) of the cluster were lost; what was under way there is done again on the others."
        self._events.emit(Notice(message, "warning"))

    def end_workers(self) -> None:
        """End workers that nobody waits for any more, also those that cannot tear down."""
        deadline = time.monotonic() + _ABANDON_S
        while self._look() and time.monotonic() < deadline:
            time.sleep(0.1)
        for name, handle in self.workers().items():
            if handle is not None:
                ray.kill(handle)
            ray.get(self.watch.lost.remote(name))
        self._look()

    def wait_for_workers(self) -> None:
        """Wait until every worker has torn down.

        Raises:
            StageFailedError: A teardown failed.
        """
        deadline = time.monotonic() + _FAREWELL_S
        while self._look() and time.monotonic() < deadline:
            time.sleep(0.05)
        if self._problem is not None:
            raise self._problem


@contextlib.contextmanager
def watched(
    plan: ExecutionPlan,
    work: Work,
    cluster: Cluster,
    *,
    default_lifetime_m: float | None,
    watch: type[Watch] = Watch,
) -> Iterator[Run]:
    """A run with its watch, which ends with it."""
    # Beside the driver, without which the run is over anyway: no other node may take the watch with it.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(watch).options(num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here)
    handle = actor.remote()
    try:
        run = Run(plan, work, cluster, handle, default_lifetime_m=default_lifetime_m)
        if cluster.dashboard_url is not None:
            run.notice(f"Ray dashboard: {cluster.dashboard_url}")
        yield run
    finally:
        ray.kill(handle)
