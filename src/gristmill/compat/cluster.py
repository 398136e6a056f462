"""Constants of and queries about a Ray cluster, under the names in `nemo_curator.core` and `nemo_curator.backends`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from gristmill.errors import WorkerError
from gristmill.stages.base import ProcessingStage

DEFAULT_RAY_PORT = 6379
DEFAULT_RAY_DASHBOARD_PORT = 8265
DEFAULT_RAY_TEMP_DIR = "/tmp/ray"  # noqa: S108 (the value that scripts compare with; RayClient makes its own folder)
DEFAULT_RAY_METRICS_PORT = 8080
DEFAULT_RAY_DASHBOARD_HOST = "127.0.0.1"
DEFAULT_RAY_CLIENT_SERVER_PORT = 10001
DEFAULT_RAY_AUTOSCALER_METRIC_PORT = 44217
DEFAULT_RAY_DASHBOARD_METRIC_PORT = 44227
DEFAULT_RAY_MIN_WORKER_PORT = 10002
DEFAULT_RAY_MAX_WORKER_PORT = 19999
RAY_CLUSTER_START_VERIFICATION_TIMEOUT = 300
DEFAULT_SERVE_PORT = 8000
DEFAULT_SERVE_HEALTH_TIMEOUT_S = 300


class RayStageSpecKeys(StrEnum):
    """The keys of `ray_stage_spec`; each is the text itself.

    Example:
        >>> {RayStageSpecKeys.IS_ACTOR_STAGE: True} == {"is_actor_stage": True}
        True
    """

    IS_ACTOR_STAGE = "is_actor_stage"
    IS_FANOUT_STAGE = "is_fanout_stage"
    IS_RAFT_ACTOR = "is_raft_actor"
    IS_LSH_STAGE = "is_lsh_stage"
    IS_SHUFFLE_STAGE = "is_shuffle_stage"
    MAX_CALLS_PER_WORKER = "max_calls_per_worker"
    MIN_WORKERS = "min_workers"
    MAX_WORKERS = "max_workers"
    INITIAL_WORKERS = "initial_workers"
    RAY_REMOTE_ARGS = "ray_remote_args"
    RAY_NUM_CPUS = "ray_num_cpus"


def ignore_ray_head_node() -> bool:
    """Whether `CURATOR_IGNORE_RAY_HEAD_NODE` requests to keep work off the head node."""
    return os.environ.get("CURATOR_IGNORE_RAY_HEAD_NODE", "").strip().lower() in ("1", "true", "yes")


def get_free_port(start_port: int, get_next_free_port: bool = True, bind_host: str = "localhost") -> int:
    """The first free port from `start_port` on that Ray does not use for its workers.

    Raises:
        WorkerError: (a RuntimeError) It is in use and no other is allowed, or none is free.
    """
    for port in range(start_port, 65536 if get_next_free_port else start_port + 1):
        if DEFAULT_RAY_MIN_WORKER_PORT <= port <= DEFAULT_RAY_MAX_WORKER_PORT:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((bind_host, port))
            except OSError:
                continue
            return port
    raise WorkerError(f"Port {start_port} is in use. Pass another port, or get_next_free_port=True.", port=start_port)


def check_ray_responsive(timeout_s: int = RAY_CLUSTER_START_VERIFICATION_TIMEOUT) -> bool:
    """Whether the cluster at `RAY_ADDRESS` responds within a few seconds."""
    address = os.environ.get("RAY_ADDRESS", "")
    host, _, port = address.removeprefix("ray://").rpartition(":")
    deadline = time.monotonic() + timeout_s
    while port.isdigit() and time.monotonic() < deadline:
        try:
            with socket.create_connection((host, int(port)), timeout=5):
                return True
        except OSError:
            time.sleep(0.5)
    return False


def is_actor_stage(stage: ProcessingStage[Any, Any]) -> bool:
    """Whether the workers of a stage keep state between tasks."""
    asks = stage.resources.gpus > 0 and stage.resources.cpus > 0
    return type(stage).setup is not ProcessingStage.setup or asks


def merge_executor_configs(
    base_config: Mapping[str, Any] | None, override_config: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Two configurations merged; the second takes precedence, and dictionaries are merged recursively."""
    merged = dict(base_config or {})
    for key, value in (override_config or {}).items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge_executor_configs(merged[key], value) if both else value
    return merged


def register_loguru_serializer() -> None:
    """Does nothing: Gristmill sends no loggers to workers."""


def get_available_cpu_gpu_resources(
    init_and_shutdown: bool = False, ignore_head_node: bool = False
) -> tuple[float, float]:
    """The CPU cores and GPUs of the cluster at `RAY_ADDRESS`, or of this machine if there is no cluster."""
    from gristmill.backends.registry import as_executor

    found = as_executor(None).capacity()
    return found.cpus, found.gpus


def check_total_gpu_capacity(gpus_needed: int, *, ignore_head_node: bool = False) -> None:
    """Fail if there are fewer GPUs than needed.

    Raises:
        WorkerError: (a RuntimeError) There are fewer.
    """
    _, gpus = get_available_cpu_gpu_resources(ignore_head_node=ignore_head_node)
    if gpus < gpus_needed:
        raise WorkerError(f"{gpus_needed} GPUs are needed, but there are {gpus:g}. Request fewer, or add nodes.")


def get_gpu_count() -> int:
    """The number of GPUs."""
    return int(get_available_cpu_gpu_resources()[1])


def is_head_node(node: Mapping[str, Any]) -> bool:
    """Whether a node, as `ray.nodes()` describes it, is the head of its cluster."""
    return "node:__internal_head__" in node.get("Resources", {})


def get_head_node_id() -> str | None:
    """The id of the head node of the cluster that this process is connected to."""
    import ray

    return next((str(node["NodeID"]) for node in ray.nodes() if is_head_node(node)), None)


def get_alive_ray_nodes(ignore_head_node: bool = False) -> list[dict[str, Any]]:
    """The living nodes of the cluster, as `ray.nodes()` describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"] and not (ignore_head_node and is_head_node(node))]


def get_alive_ray_node_count(ignore_head_node: bool = False) -> int:
    """The number of living nodes."""
    return len(get_alive_ray_nodes(ignore_head_node))


def submit_on_each_node(
    remote_fn: Any, *args: Any, ignore_head_node: bool = False, num_cpus: float = 0, num_gpus: float = 0
) -> list[Any]:
    """Start a Ray task once on every living node; returns its references."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return [
        remote_fn.options(
            num_cpus=num_cpus,
            num_gpus=num_gpus,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node["NodeID"], soft=False),
        ).remote(*args)
        for node in get_alive_ray_nodes(ignore_head_node)
    ]


def run_on_each_node(remote_fn: Any, *args: Any, **options: Any) -> list[Any]:
    """Run a Ray task once on every living node; returns its results."""
    import ray

    return list(ray.get(submit_on_each_node(remote_fn, *args, **options)))
