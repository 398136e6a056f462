"""Every change to private parts of Xenna. They last as long as a pipeline runs; the rest uses its public API only.

Each change says why it is needed. All were checked with the versions in `CHECKED_VERSIONS`; their tests fail when Xenna
removes a part or no longer needs the change.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ray
from cosmos_xenna.pipelines.private import monitoring, resources
from cosmos_xenna.ray_utils import actor_pool

from gristmill.backends.ray.cluster import restored_variables

CHECKED_VERSIONS = ("0.3",)

VARIABLES = (
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    "RAY_MAX_LIMIT_FROM_API_SERVER",
    "RAY_MAX_LIMIT_FROM_DATA_SOURCE",
)
"""Variable that Xenna sets in the driver; if it stayed, the next cluster of this process would hide GPUs from
workers."""


_HANDED_ON_S = 2.0
"""Time limit for the results of an ended worker to arrive."""


@contextlib.contextmanager
def patched(
    *,
    nodes: frozenset[str],
    limits: Mapping[str, int],
    end_worker: Callable[[Any, str], None],
    has_grown: Callable[[str], bool],
) -> Iterator[None]:
    """Xenna with these changes.

    - `_kill_actor_and_reap`: calls `end_worker` with the handle of a worker first. Xenna's stages have no hook for
      teardown: workers are killed.
    - `ActorPool._add_worker_group`: a stage gets no more workers than `limits` says for its name. Xenna supports a
      fixed number or none, and skips a worker that does not fit.
    - `ActorPool._maybe_restart_long_running_actor` and `_find_worker_groups_with_free_slots`: a worker that is old, or
      whose id `has_grown`, gets no more tasks and is replaced once it has none. Xenna kills it together with its tasks,
      finished or not, and another worker repeats them.
    - `ActorPool._adjust_actors` and `delete_worker_groups`: finished results are kept when a worker is removed from its
      stage. Xenna repeats all its tasks.
    - `make_cluster_resources_for_ray_cluster`: only `nodes` are used. Xenna uses all of them, queries each with a task
      that needs a CPU, and assumes that a head node started without CPUs has those of its machine.
    - `PipelineMonitor`: left out. It reserves a CPU on every node and waits for it, queries the dashboard for more
      actors than a cluster that was not started for Xenna allows, and fails if there is no dashboard.
    """
    kill = actor_pool._kill_actor_and_reap
    add = actor_pool.ActorPool._add_worker_group
    look = resources.make_cluster_resources_for_ray_cluster
    find = actor_pool.ActorPool._find_worker_groups_with_free_slots
    adjust, delete = actor_pool.ActorPool._adjust_actors, actor_pool.ActorPool.delete_worker_groups
    leaving: dict[str, str] = {}  # worker groups that get no more tasks, by the names of their pools

    def end_and_kill(actor: Any, node: str, label: str) -> None:
        end_worker(actor, "finished")
        kill(actor, node, label)

    def add_within_limit(pool: Any, worker: Any) -> bool:
        limit = limits.get(pool.name)
        return False if limit is not None and len(pool._worker_groups) >= limit else bool(add(pool, worker))

    def replace_when_idle(pool: Any) -> None:
        ready = {actor.metadata.worker_group_id: actor for actor in pool._ready_actors.values()}
        group = leaving.pop(pool.name, None)
        group = group if group in ready else _due_group(pool, has_grown)
        if group is None:
            return
        if ready[group].num_used_slots:
            leaving[pool.name] = group
            return
        end_worker(ready[group].actor_ref, "recycled")
        pool._add_worker_group(pool._delete_worker_group(group))
        pool._last_actor_restart_time = time.time()

    def find_staying(pool: Any) -> list[Any]:
        return [group for group in find(pool) if group.id_ != leaving.get(pool.name)]

    def adjust_keeping(pool: Any) -> None:
        _take_results(pool, end_worker)
        adjust(pool)

    def delete_keeping(pool: Any) -> None:
        _take_results(pool, end_worker)
        delete(pool)

    def look_at_nodes(cpu_allocation_percentage: float = 1.0) -> Any:
        return look(cpu_allocation_percentage, [node for node in ray.nodes() if node["NodeID"] in nodes])

    with (
        restored_variables(*VARIABLES),
        _replaced(actor_pool, "_kill_actor_and_reap", end_and_kill),
        _replaced(actor_pool.ActorPool, "_add_worker_group", add_within_limit),
        _replaced(actor_pool.ActorPool, "_maybe_restart_long_running_actor", replace_when_idle),
        _replaced(actor_pool.ActorPool, "_find_worker_groups_with_free_slots", find_staying),
        _replaced(actor_pool.ActorPool, "_adjust_actors", adjust_keeping),
        _replaced(actor_pool.ActorPool, "delete_worker_groups", delete_keeping),
        _replaced(resources, "make_cluster_resources_for_ray_cluster", look_at_nodes),
        _replaced(monitoring, "PipelineMonitor", _NoMonitor),
    ):
        yield


def _due_group(pool: Any, has_grown: Callable[[str], bool]) -> str | None:
    """The worker group that should be replaced next, if one should."""
    for actor in pool._ready_actors.values():
        if has_grown(actor.actor_ref._actor_id.hex()):
            return str(actor.metadata.worker_group_id)
    lifetime_m, now = pool._params.worker_max_lifetime_m, time.time()
    if not lifetime_m or now - pool._last_actor_restart_time < 60 * pool._params.worker_restart_interval_m:
        return None
    # Only after a task: otherwise nothing would ever be done if the lifetime is too short.
    old = [actor for actor in pool._ready_actors.values() if actor.rate_estimator.maybe_get_rate() is not None]
    oldest = min(old, key=lambda actor: actor.start_time, default=None)
    if oldest is None or now - oldest.start_time <= 60 * lifetime_m:
        return None
    return str(oldest.metadata.worker_group_id)


def _take_results(pool: Any, end_worker: Callable[[Any, str], None]) -> None:
    """Stop the workers to be deleted, and collect what they have finished."""
    groups = {group.id for group in pool._worker_groups_to_delete}
    for actor in pool._ready_actors.values():
        if actor.metadata.worker_group_id not in groups or not actor.num_used_slots:
            continue
        end_worker(actor.actor_ref, "finished")
        slots = {slot.get_task.object_ref.completed(): place for place, slot in enumerate(actor.slots) if slot.has_task}
        ready, _ = ray.wait(list(slots), num_returns=len(slots), timeout=_HANDED_ON_S, fetch_local=False)
        for reference in ready:
            with contextlib.suppress(ray.exceptions.RayError):  # repeated by another worker
                pool._process_completed_task(actor, slots[reference], is_primary=True)


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _NoMonitor(contextlib.nullcontext[Any]):
    """Replaces Xenna's monitor: the displayed figures come from the events of the run."""

    def __init__(self, *args: Any) -> None:
        super().__init__(self)

    def update(self, *args: Any, **kwargs: Any) -> bool:
        """Whether there is something to log: never."""
        return False
