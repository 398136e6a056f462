"""Changes to Xenna while it runs for us; all of them are taken back at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import ray
from cosmos_xenna.pipelines.private import monitoring, resources
from cosmos_xenna.ray_utils import actor_pool

from gristmill.backends.ray.cluster import Cluster

FAREWELL_S = 30.0
"""How long a worker may take to tear down."""
_VARIABLES = (
    "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES",
    "RAY_MAX_LIMIT_FROM_API_SERVER",
    "RAY_MAX_LIMIT_FROM_DATA_SOURCE",
)
"""What Xenna sets in the driver. Left there, the next cluster of this process would not tell its workers their GPU."""


def farewell(worker: Any) -> None:
    """Runs in a Xenna worker: tear the stages down."""
    worker._stage_interface._stage.end()


@contextlib.contextmanager
def adapted(limits: dict[str, int], cluster: Cluster) -> Iterator[None]:
    """Xenna with these changes.

    - Every worker is torn down before Xenna kills it, which it does without a word.
    - A cluster that was not started for Xenna refuses its question for very long lists of actors, or has no dashboard
      that could answer: its own figures then lack them, instead of the run ending.
    - Its monitor, a process on every node, is left out.
    - A stage gets no more workers than `limits` says for its name: Xenna takes a fixed number or none, and skips a
      worker that finds no place.
    - Only the nodes of `cluster` that have processors are used. Xenna asks every node with a task that needs one, and
      would wait for ever for a head that has none.
    - Variables that it sets are put back.
    """
    kill, list_actors = actor_pool._kill_actor_and_reap, monitoring.get_ray_actors
    monitor, add = monitoring.RayResourceMonitor, actor_pool.ActorPool._add_worker_group
    look, ask = resources.make_cluster_resources_for_ray_cluster, resources._get_node_info_from_current_node
    usable = {node.id for node in cluster.nodes if node.cpus}

    def end(actor: Any, node: str, label: str) -> None:
        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(actor.__ray_call__.remote(farewell), timeout=FAREWELL_S)
        kill(actor, node, label)

    def actors(*options: Any) -> list[Any]:
        try:
            return list(list_actors(*options))
        except Exception:
            return []

    def add_within_limit(pool: Any, worker: Any) -> bool:
        limit = limits.get(pool.name)
        return False if limit is not None and len(pool._worker_groups) >= limit else bool(add(pool, worker))

    def look_at_ours(cpu_allocation_percentage: float = 1.0, nodes: list[Any] | None = None) -> Any:
        found = ray.nodes() if nodes is None else nodes
        return look(cpu_allocation_percentage, [node for node in found if node["NodeID"] in usable])

    actor_pool._kill_actor_and_reap, monitoring.get_ray_actors = end, actors
    actor_pool.ActorPool._add_worker_group = add_within_limit
    monitoring.RayResourceMonitor = _NoMonitor
    resources.make_cluster_resources_for_ray_cluster = look_at_ours
    # Without a processor of its own, since all of them may be in use by others.
    resources._get_node_info_from_current_node = ray.remote(num_cpus=0)(ask._function)
    before = {name: os.environ.get(name) for name in _VARIABLES}
    try:
        yield
    finally:
        actor_pool._kill_actor_and_reap, monitoring.get_ray_actors = kill, list_actors
        monitoring.RayResourceMonitor, actor_pool.ActorPool._add_worker_group = monitor, add
        resources.make_cluster_resources_for_ray_cluster, resources._get_node_info_from_current_node = look, ask
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _NoMonitor:
    """Stands for Xenna's monitor of nodes."""

    def update(self) -> dict[str, Any]:
        """No figures: those that are shown come from the events of the run."""
        return {}
