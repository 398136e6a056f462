"""The settings of the local executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gristmill.errors import UsageError
from gristmill.figures import parse_size


@dataclass(frozen=True)
class LocalConfig:
    """The settings of `LocalExecutor(config={…})`.

    Attributes:
        execution_mode: `streaming` keeps all segments active at once; `batch` runs one stage at a time over all data.
        cpu_allocation_percentage: Fraction of the CPU cores to use.
        autoscale_interval_s: Seconds between checks whether idle workers should make room for others.
        logging_interval: Seconds between progress lines if there is no terminal.
        ignore_failures: Quarantine documents on which a stage raises.
        max_workers_per_stage: Maximum number of workers per segment; None for the machine's limit.
        num_cpus: Number of CPU cores to use; 0 runs everything in the calling process; None for all.
        num_gpus: Number of GPU slots; None for the number of devices.
        gpu_memory_gb: Memory of one GPU, used to convert `Resources(gpu_memory_gb=…)` into a share; None for that of
            the smallest device.
        memory_budget: Maximum memory of all processes together, such as "8GB"; None for most of the available memory.
        on_memory: How to handle documents for which a single worker would exceed the budget: `quarantine` finds and
            quarantines them, `fail` ends the run and names the stage.
        time_limit_s: Maximum seconds per document in a stage that does not set its own `time_limit_s`; None for no
            limit. Does not apply to stages with a GPU or their own worker.
        worker_max_lifetime_m: Minutes after which a worker is replaced; None or 0 replaces it only if its memory grows.
        worker_restart_interval_m: Minimum minutes between two replacements in a segment.
    """

    execution_mode: Literal["streaming", "batch"] = "streaming"
    cpu_allocation_percentage: float = 0.95
    autoscale_interval_s: float = 180.0
    logging_interval: float = 60.0
    ignore_failures: bool = False
    max_workers_per_stage: int | None = None
    num_cpus: int | float | None = None
    num_gpus: int | None = None
    gpu_memory_gb: float | None = None
    memory_budget: str | int | None = None
    on_memory: Literal["quarantine", "fail"] = "quarantine"
    time_limit_s: float | None = 300.0
    worker_max_lifetime_m: float | None = None
    worker_restart_interval_m: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.cpu_allocation_percentage <= 1:
            raise UsageError(
                f"cpu_allocation_percentage={self.cpu_allocation_percentage!r} must be above 0 and at most 1 "
                "(0.95 leaves 5 % to the system)."
            )
        for name in (
            "num_cpus",
            "num_gpus",
            "autoscale_interval_s",
            "worker_max_lifetime_m",
            "worker_restart_interval_m",
        ):
            value = getattr(self, name)
            if value is not None and not 0 <= value < float("inf"):
                raise UsageError(f"{name}={value!r} must be finite, and must not be negative.")
        for name in ("logging_interval", "gpu_memory_gb", "time_limit_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise UsageError(f"{name}={value!r} must be above 0, and finite.")
        if self.max_workers_per_stage is not None and self.max_workers_per_stage < 1:
            raise UsageError(f"max_workers_per_stage={self.max_workers_per_stage!r} must be at least 1.")
        if self.memory_budget is not None:
            parse_size(self.memory_budget, name="memory_budget")

    @property
    def budget_bytes(self) -> int | None:
        """The memory budget in bytes, if one is set."""
        return None if self.memory_budget is None else parse_size(self.memory_budget, name="memory_budget")
