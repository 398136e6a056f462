"""The executor on Cosmos-Xenna: runs the plan as a Xenna pipeline."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

from gristmill.backends.base import BaseExecutor, Capacity, parse_config
from gristmill.backends.plan import ExecutionPlan
from gristmill.backends.ray import cluster as clusters
from gristmill.backends.ray.driver import coordinated_run
from gristmill.errors import UsageError
from gristmill.execution.driver import Work

_CLUSTER_VARIABLES = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
"""Xenna assigns GPUs itself; a cluster on which Ray would do so must be started with this variable."""

_WORKERS_LOG = "debug,*cosmos_xenna*=off"
"""What workers write to loguru's default sink: everything that users log, but none of Xenna's own messages."""


@dataclass(frozen=True)
class XennaConfig(clusters.ClusterConfig):
    """The settings of `XennaExecutor(config={…})`, in addition to those of `ClusterConfig`.

    Attributes:
        execution_mode: `streaming` keeps all stages active at once; `batch` runs one stage at a time over all data.
        cpu_allocation_percentage: Fraction of each node's CPU cores to use.
        autoscale_interval_s: Seconds between two decisions about the number of workers per stage.
        ignore_failures: Quarantine documents on which a stage raises.
        max_workers_per_stage: Maximum number of workers per stage; None lets Xenna choose.
        worker_max_lifetime_m: Minutes after which workers are replaced; None replaces only those that hold models, 0
            none.
        worker_restart_interval_m: Minimum minutes between two replacements in a stage.
    """

    execution_mode: Literal["streaming", "batch"] = "streaming"
    cpu_allocation_percentage: float = 0.95
    autoscale_interval_s: float = 180.0
    ignore_failures: bool = False
    max_workers_per_stage: int | None = None
    worker_max_lifetime_m: float | None = None
    worker_restart_interval_m: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.cpu_allocation_percentage <= 1:
            raise UsageError(
                f"XennaExecutor: cpu_allocation_percentage={self.cpu_allocation_percentage!r} must be above 0 and at "
                "most 1 (0.95 leaves 5 % to the system)."
            )
        self.check_above_zero("XennaExecutor", "autoscale_interval_s", "logging_interval", "gpu_memory_gb")
        self.check_least("XennaExecutor", 0, "worker_max_lifetime_m", "worker_restart_interval_m")
        self.check_least("XennaExecutor", 1, "max_workers_per_stage")

    def usable_cpus(self, node: clusters.Node) -> int:
        """The number of CPU cores of a node that Xenna uses; whole cores only."""
        return math.floor(node.cpus * self.cpu_allocation_percentage)


class XennaExecutor(BaseExecutor):
    """Runs pipelines on a Ray cluster with Cosmos-Xenna.

    Args:
        config: The settings of `XennaConfig`; an unknown key is an error.
        ignore_head_node: Keep work off the head node.

    Example:
        >>> executor = XennaExecutor(config={"execution_mode": "streaming", "autoscale_interval_s": 60})
        >>> pipeline.run(executor=executor)
    """

    name: ClassVar[str] = "xenna"

    def __init__(self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False) -> None:
        super().__init__(config, ignore_head_node)
        self.settings = parse_config(XennaConfig, config, owner="XennaExecutor")
        self.shares_environment = self.settings.starts_here
        self.one_stage_at_a_time = self.settings.execution_mode == "batch"

    def capacity(self) -> Capacity:
        return clusters.capacity(self.settings, ignore_head_node=self.ignore_head_node)

    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        os.environ.setdefault("PYTHON_LOG", _WORKERS_LOG)
        with _sinks_kept():
            from gristmill.backends.xenna.pipeline import XennaRun

        with (
            clusters.connected(
                self.settings, ignore_head_node=self.ignore_head_node, environment=_CLUSTER_VARIABLES
            ) as cluster,
            coordinated_run(plan, work, cluster, self.settings.worker_max_lifetime_m) as run,
        ):
            self._check_environments(plan, connected_before=cluster.connected_before)
            run.all_stay = True
            XennaRun(run, self.settings).run()

    def _check_environments(self, plan: ExecutionPlan, *, connected_before: bool) -> None:
        """Reject settings that Xenna would silently ignore.

        Raises:
            UsageError: A runtime environment contains something that Xenna cannot pass to its workers.
        """
        given = [(segment.runtime_env or {}, f"{segment.name}: runtime_env") for segment in plan.segments]
        if connected_before:
            given.append((self.settings.runtime_env or {}, "XennaExecutor: runtime_env"))
        for environment, where in given:
            for name in environment:
                if name not in ("conda", "env_vars"):
                    raise UsageError(
                        f"{where} contains {name!r}, which Xenna cannot pass to workers: it supports conda and "
                        "env_vars. "
                        "Pass it to your own ray.init(runtime_env=...), or use executor='ray_data'.",
                        key=name,
                    )


@contextlib.contextmanager
def _sinks_kept() -> Iterator[None]:
    """Keep the user's loguru sinks while importing Xenna, which replaces all sinks in this process."""
    from loguru import logger

    sinks = cast("Any", logger)
    sinks.add = sinks.remove = lambda *args, **kwargs: 0
    try:
        yield
    finally:
        del sinks.add, sinks.remove
    if os.environ["PYTHON_LOG"] == _WORKERS_LOG:
        logger.disable("cosmos_xenna")
