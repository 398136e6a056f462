"""Finds or starts a Ray cluster, reports its resources, and leaves it as it was found."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from gristmill.backends.base import UNKNOWN_GPU_GB, Capacity, gpu_names
from gristmill.backends.ray import ray_internals
from gristmill.errors import UsageError, WorkerError
from gristmill.observe.memory import cpu_count, gpu_memory_gb

_LOGGERS = ("ray", "ray.data", "ray.util", "ray._private")
_ANSWER_S = 60.0
_gpu_memory: dict[frozenset[str], float] = {}
"""Cached answers by node ids; the GPUs of a running node do not change."""


@dataclass(frozen=True)
class ClusterConfig:
    """What is needed to reach a cluster, or to start one on this machine.

    Attributes:
        address: Address of a running cluster; None uses `RAY_ADDRESS`, or starts a cluster if that is not set.
        num_cpus: Number of CPU cores of a cluster started here; None for all.
        num_gpus: Number of GPUs of a cluster started here; None for all.
        object_store_memory: Size of the object store of a cluster started here, in bytes.
        gpu_memory_gb: Memory of one GPU, used to convert `Resources(gpu_memory_gb=…)` into a fraction; None for that of
            the smallest device on the nodes.
        runtime_env: The runtime environment of the workers.
        log_to_driver: Show the output of workers.
        logging_interval: Seconds between progress lines if there is no terminal.
    """

    address: str | None = None
    num_cpus: int | float | None = None
    num_gpus: int | None = None
    object_store_memory: int | None = None
    gpu_memory_gb: float | None = None
    runtime_env: dict[str, Any] | None = None
    log_to_driver: bool = False
    logging_interval: float = 60.0

    def check_above_zero(self, owner: str, *names: str) -> None:
        """Reject settings that are zero or less.

        Raises:
            UsageError: One of them is.
        """
        for name in names:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{owner}: {name}={value!r} must be above 0.", key=name, value=value)

    @property
    def starts_here(self) -> bool:
        """Whether the cluster is started on this machine, with the packages and files of this process."""
        elsewhere = self.address or os.environ.get("RAY_ADDRESS") or self.runtime_env or ray.is_initialized()
        return not elsewhere

    def check_least(self, owner: str, least: float, *names: str) -> None:
        """Reject settings below `least`.

        Raises:
            UsageError: One of them is.
        """
        for name in names:
            value = getattr(self, name)
            if value is not None and value < least:
                raise UsageError(f"{owner}: {name}={value!r} must be at least {least:g}.", key=name, value=value)


@dataclass(frozen=True, slots=True)
class Node:
    """A node that can run work; `others` lists its custom resources."""

    id: str
    cpus: float
    gpus: float
    others: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster this process is connected to.

    Attributes:
        nodes: Nodes that can run work.
        dashboard_url: URL of Ray's dashboard, if there is one.
        connected_before: Whether the connection is the caller's own.
        ignore_head_node: Whether the head node is excluded.
        avoided: Id of the node that gets no work; None if all are used.
    """

    nodes: tuple[Node, ...]
    dashboard_url: str | None
    connected_before: bool
    ignore_head_node: bool = False
    avoided: str | None = None

    @property
    def cpus(self) -> float:
        """The CPU cores of all nodes."""
        return sum(node.cpus for node in self.nodes)

    @property
    def gpus(self) -> float:
        """The GPUs of all nodes."""
        return sum(node.gpus for node in self.nodes)

    def without(self, cpus: float, gpus: float) -> Cluster:
        """The cluster with fewer CPU cores and GPUs, taken from its first nodes."""
        nodes = []
        for node in self.nodes:
            fewer_cpus, fewer_gpus = min(cpus, node.cpus), min(gpus, node.gpus)
            cpus, gpus = cpus - fewer_cpus, gpus - fewer_gpus
            nodes.append(replace(node, cpus=node.cpus - fewer_cpus, gpus=node.gpus - fewer_gpus))
        return replace(self, nodes=tuple(nodes))


@contextlib.contextmanager
def connected(
    config: ClusterConfig, *, ignore_head_node: bool = False, environment: Mapping[str, str] | None = None
) -> Iterator[Cluster]:
    """A connection to a cluster: the one this process already has, the one at the address, or one started here.

    The caller's own connection stays open; a connection made here is closed at the end, and a cluster started here is
    shut down with it.

    Args:
        config: How to reach the cluster.
        ignore_head_node: Exclude the head node.
        environment: Environment variables for the processes of a cluster that is started here.
    """
    # Show only errors from Ray's own loggers: our own errors explain what went wrong.
    for logger in map(logging.getLogger, _LOGGERS):
        if logger.level in (logging.NOTSET, logging.INFO, logging.WARNING):
            logger.setLevel(logging.ERROR)
    if ray.is_initialized():
        _check_sendable(config)
        yield _look(ignore_head_node=ignore_head_node, connected_before=True)
        return
    _connect(config, config.address or os.environ.get("RAY_ADDRESS"), environment or {})
    try:
        yield _look(ignore_head_node=ignore_head_node, connected_before=False)
    finally:
        ray.shutdown()


def present(cluster: Cluster) -> Cluster:
    """The cluster as it is now."""
    return _look(ignore_head_node=cluster.ignore_head_node, connected_before=cluster.connected_before)


def capacity(config: ClusterConfig, *, ignore_head_node: bool = False) -> Capacity:
    """The resources of the cluster; if one would be started here, those of this machine, without starting it."""
    if ray.is_initialized() or config.address or os.environ.get("RAY_ADDRESS"):
        with connected(config, ignore_head_node=ignore_head_node) as cluster:
            return Capacity(
                cpus=cluster.cpus,
                gpus=cluster.gpus,
                largest_node_cpus=max(node.cpus for node in cluster.nodes),
                largest_node_gpus=max(node.gpus for node in cluster.nodes),
                gpu_memory_gb=config.gpu_memory_gb or _memory_on_nodes_gb(cluster),
            )
    if ignore_head_node:
        raise UsageError(
            "ignore_head_node=True leaves no node to work on: a cluster started on this machine has only a head node. "
            "Set RAY_ADDRESS to a cluster with more nodes."
        )
    cpus = float(cpu_count() if config.num_cpus is None else config.num_cpus)
    gpus = float(len(gpu_names(config.num_gpus)))
    memory_gb = config.gpu_memory_gb or (gpus and gpu_memory_gb()) or UNKNOWN_GPU_GB
    return Capacity(cpus, gpus, cpus, gpus, memory_gb)


def _memory_on_nodes_gb(cluster: Cluster) -> float:
    """The memory of the smallest GPU on the nodes, so that a fraction of any of them is enough.

    Queries the nodes, since the driver's own machine often has no GPU or a different one.
    """
    wanted = frozenset(node.id for node in cluster.nodes if node.gpus)
    if not wanted:
        return UNKNOWN_GPU_GB
    if wanted not in _gpu_memory:
        answers = [
            ray.remote(gpu_memory_gb)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote()
            for node in sorted(wanted)
        ]
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=_ANSWER_S)
        sizes = []
        for answer in ready:
            # If the node is lost or lacks something, the run itself will say so.
            with contextlib.suppress(ray.exceptions.RayError):
                sizes.append(ray.get(answer))
        _gpu_memory[wanted] = min((size for size in sizes if size is not None), default=UNKNOWN_GPU_GB)
    return _gpu_memory[wanted]


def _connect(config: ClusterConfig, address: str | None, environment: Mapping[str, str]) -> None:
    if address and address.startswith("ray://"):
        raise UsageError(
            f"RAY_ADDRESS={address!r} is the address of a Ray Client server. Gristmill's driver must run on a node of "
            "the cluster: submit it with `ray job submit`, or start it there with RAY_ADDRESS=auto.",
            address=address,
        )
    options: dict[str, Any] = {
        "log_to_driver": config.log_to_driver,
        "logging_level": logging.ERROR,
        "configure_logging": False,
        "runtime_env": config.runtime_env,
    }
    if address:
        if "RAY_AUTH_MODE" in os.environ:
            # Ray reads it when it is imported, which may have been before it was set.
            ray_internals.reread_authentication()
        try:
            ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
            raise _unreachable(address, error) from error
        return
    options.update(
        num_cpus=config.num_cpus,
        # Ray itself treats -1 as a device.
        num_gpus=0 if config.num_gpus is None and not gpu_names() else config.num_gpus,
        object_store_memory=config.object_store_memory,
        include_dashboard=importlib.util.find_spec("aiohttp_cors") is not None,
    )
    with temporary_variables({"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", **environment}):
        try:
            ray_internals.start_local_cluster(short_temp_dir(), **options)
        except Exception as error:
            ray.shutdown()
            # Ray raises a bare Exception when its processes are not up within half a minute.
            raise WorkerError(
                f"Ray could not be started on this machine: {error} Try again when the machine is less busy, or start "
                "a cluster with `ray start --head` and set RAY_ADDRESS=auto.",
                cause=str(error),
            ) from error


def _check_sendable(config: ClusterConfig) -> None:
    """Reject settings that Ray can only apply when it connects."""
    for name in ("working_dir", "py_modules", "excludes"):
        if name in (config.runtime_env or {}):
            raise UsageError(
                f"runtime_env contains {name!r}, which Ray sends when a process connects, but this process is already "
                "connected. Pass it to your own ray.init(runtime_env=...), or let the executor connect.",
                key=name,
            )


def _unreachable(address: str, error: Exception) -> WorkerError:
    words = str(error).strip().splitlines()
    reason = words[0].rstrip(".") if words else type(error).__name__
    return WorkerError(
        f"The Ray cluster at {address!r} cannot be used: {reason}. Check that it is running (`ray status`), that this "
        f"machine is one of its nodes, and that it runs the same Ray version as this process, {ray.__version__}. A "
        "cluster that was started with `ray start` may require a token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to "
        "the token from the cluster's administrator (`ray get-auth-token` prints it on the head node).",
        address=address,
    )


def _look(*, ignore_head_node: bool, connected_before: bool) -> Cluster:
    nodes = []
    avoided = None
    for info in ray.nodes():
        if not info.get("Alive"):
            continue
        resources = dict(info.get("Resources", {}))
        node = Node(
            id=info["NodeID"],
            cpus=float(resources.pop("CPU", 0.0)),
            gpus=float(resources.pop("GPU", 0.0)),
            others=resources,
        )
        if ignore_head_node and ray_internals.HEAD_RESOURCE in resources:
            avoided = node.id
        else:
            nodes.append(node)
    if not nodes:
        raise WorkerError("The Ray cluster has no node other than its head, and ignore_head_node is set.")
    return Cluster(tuple(nodes), ray_internals.dashboard_url(), connected_before, ignore_head_node, avoided)


def short_temp_dir() -> str:
    """A folder for Ray's files whose path leaves room for the names of its sockets (at most 107 bytes)."""
    folder = os.path.join(tempfile.gettempdir(), f"gristmill-ray-{os.getuid()}")
    return folder if len(folder) < 40 else f"/tmp/gristmill-ray-{os.getuid()}"  # noqa: S108


@contextlib.contextmanager
def restored_variables(*names: str) -> Iterator[None]:
    """Restores environment variables."""
    before = {name: os.environ.get(name) for name in names}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def temporary_variables(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables temporarily, unless they are already set."""
    with restored_variables(*values):
        for name, value in values.items():
            os.environ.setdefault(name, value)
        yield
