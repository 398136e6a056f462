"""Runs pipelines stage by stage: one stage after another over all data, each on a pool of Ray actors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from gristmill.backends.base import Capacity, parse_config
from gristmill.backends.ray.cluster import Cluster
from gristmill.backends.ray_data.executor import RayDataConfig, RayDataExecutor
from gristmill.errors import UsageError


@dataclass(frozen=True)
class ActorPoolConfig(RayDataConfig):
    """The settings of `RayActorPoolExecutor(config={…})`, in addition to those of `RayDataConfig`.

    Attributes:
        reserved_cpus: Number of CPU cores of the cluster to leave unused.
        reserved_gpus: Number of GPUs to leave unused.
    """

    reserved_cpus: float = 0.0
    reserved_gpus: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_least("RayActorPoolExecutor", 0, "reserved_cpus", "reserved_gpus")


class RayActorPoolExecutor(RayDataExecutor):
    """Runs pipelines stage by stage: each stage works on all data before the next one begins.

    Data between two stages stays in Ray's object store, which spills to disk when it is full.

    Args:
        config: The settings of `ActorPoolConfig`; an unknown key is an error.
        ignore_head_node: Keep work off the head node.
        show_progress: Accepted for compatibility; progress is shown as on every executor.
        progress_interval: Likewise.

    Example:
        >>> pipeline.run(executor=RayActorPoolExecutor(config={"reserved_cpus": 2}))
    """

    name: ClassVar[str] = "ray_actor_pool"

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        ignore_head_node: bool = False,
        show_progress: bool = True,
        progress_interval: float = 10.0,
    ) -> None:
        super().__init__({}, ignore_head_node)
        self.config = dict(config or {})
        self.settings: ActorPoolConfig = parse_config(ActorPoolConfig, config, owner="RayActorPoolExecutor")
        self.shares_environment = self.settings.starts_here
        self.one_stage_at_a_time = True
        self.show_progress = show_progress
        self.progress_interval = progress_interval

    def capacity(self) -> Capacity:
        found = super().capacity()
        cpus = found.cpus - self.settings.reserved_cpus
        gpus = found.gpus - self.settings.reserved_gpus
        if cpus <= 0 or gpus < 0:
            raise UsageError(
                f"RayActorPoolExecutor: of {found.cpus:g} CPUs and {found.gpus:g} GPUs, reserved_cpus="
                f"{self.settings.reserved_cpus:g} and reserved_gpus={self.settings.reserved_gpus:g} leave nothing."
            )
        return replace(
            found,
            cpus=cpus,
            gpus=gpus,
            largest_node_cpus=min(found.largest_node_cpus, cpus),
            largest_node_gpus=min(found.largest_node_gpus, gpus),
        )

    def _usable(self, cluster: Cluster) -> Cluster:
        return cluster.without(self.settings.reserved_cpus, self.settings.reserved_gpus)
