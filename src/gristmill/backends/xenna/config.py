"""The settings of the Xenna executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gristmill.backends.ray.cluster import ClusterConfig
from gristmill.errors import UsageError


@dataclass(frozen=True)
class XennaConfig(ClusterConfig):
    """What `XennaExecutor(config={…})` takes, besides the settings of `ClusterConfig`.

    Attributes:
        execution_mode: `streaming` keeps all stages active at once; `batch` runs one stage at a time over all data.
        cpu_allocation_percentage: The share of each node's processors to use, as a fraction.
        autoscale_interval_s: Seconds between two decisions about how many workers each stage gets.
        logging_interval: Seconds between Xenna's own status lines, where its log is shown (`PYTHON_LOG=info`).
        ignore_failures: Quarantine documents on which a stage raises.
        max_workers_per_stage: The most workers that a stage gets; None: as many as Xenna finds best.
        worker_max_lifetime_m: Minutes after which workers are replaced; None: only those that hold models; 0: none.
        worker_restart_interval_m: Minutes that pass at least between two replacements in a stage.
    """

    execution_mode: Literal["streaming", "batch"] = "streaming"
    cpu_allocation_percentage: float = 0.95
    autoscale_interval_s: float = 180.0
    logging_interval: float = 60.0
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
        for name in ("autoscale_interval_s", "logging_interval"):
            if getattr(self, name) <= 0:
                raise UsageError(f"XennaExecutor: {name}={getattr(self, name)!r} must be above 0.", key=name)
        for name in ("worker_max_lifetime_m", "worker_restart_interval_m"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UsageError(f"XennaExecutor: {name}={value!r} must not be negative.", key=name)
        if self.max_workers_per_stage is not None and self.max_workers_per_stage < 1:
            raise UsageError(f"XennaExecutor: max_workers_per_stage={self.max_workers_per_stage!r} must be at least 1.")
