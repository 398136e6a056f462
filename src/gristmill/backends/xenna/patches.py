"""Every change to private parts of Xenna. They last as long as a pipeline runs; the rest uses its public API only.

Each change says why it is needed. All were checked with the versions in `CHECKED_VERSIONS`; their tests fail when Xenna
no longer has a part, or no longer needs the change.
"""

from __future__ import annotations

import contextlib
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
"""What Xenna sets in the driver. Left there, the next cluster of this process would not tell its workers their GPU."""


@contextlib.contextmanager
def patched(*, nodes: frozenset[str], limits: Mapping[str, int], end_worker: Callable[[Any], None]) -> Iterator[None]:
    """Xenna with these changes.

    - `_kill_actor_and_reap`: calls `end_worker` with the handle of a worker first. Xenna's stages have no hook for
      teardown: workers are killed.
    - `ActorPool._add_worker_group`: a stage gets no more workers than `limits` says for its name. Xenna takes a fixed
      number or none, and skips a worker that finds no place.
    - `make_cluster_resources_for_ray_cluster`: only `nodes` are used. Xenna uses all of them, asks each with a task
      that needs a processor, and takes a head that was started without any to have those of its machine.
    - `PipelineMonitor`: left out. It books a processor on every node and waits for it, asks the dashboard for more
      actors than a cluster that was not started for Xenna allows, and fails where there is no dashboard.
    """
    kill = actor_pool._kill_actor_and_reap
    add = actor_pool.ActorPool._add_worker_group
    look = resources.make_cluster_resources_for_ray_cluster

    def end_and_kill(actor: Any, node: str, label: str) -> None:
        end_worker(actor)
        kill(actor, node, label)

    def add_within_limit(pool: Any, worker: Any) -> bool:
        limit = limits.get(pool.name)
        return False if limit is not None and len(pool._worker_groups) >= limit else bool(add(pool, worker))

    def look_at_nodes(cpu_allocation_percentage: float = 1.0) -> Any:
        return look(cpu_allocation_percentage, [node for node in ray.nodes() if node["NodeID"] in nodes])

    with (
        restored_variables(*VARIABLES),
        _replaced(actor_pool, "_kill_actor_and_reap", end_and_kill),
        _replaced(actor_pool.ActorPool, "_add_worker_group", add_within_limit),
        _replaced(resources, "make_cluster_resources_for_ray_cluster", look_at_nodes),
        _replaced(monitoring, "PipelineMonitor", _NoMonitor),
    ):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


class _NoMonitor(contextlib.nullcontext[Any]):
    """In place of Xenna's monitor: the figures that are shown come from the events of the run."""

    def __init__(self, *args: Any) -> None:
        super().__init__(self)

    def update(self, *args: Any, **kwargs: Any) -> bool:
        """Whether there is something to log: never."""
        return False
