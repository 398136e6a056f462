"""The settings of the local executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gristmill.errors import UsageError
from gristmill.figures import parse_size


@dataclass(frozen=True)
class LocalConfig:
    """What `LocalExecutor(config={…})` takes.

    Attributes:
        execution_mode: `streaming` keeps all segments active at once; `batch` runs one stage at a time over all data.
        cpu_allocation_percentage: The share of the processors to use, as a fraction.
        autoscale_interval_s: How often idle workers are given up where others are short.
        logging_interval: Seconds between progress lines where there is no terminal.
        ignore_failures: Quarantine documents on which a stage raises.
        max_workers_per_stage: Maximum number of workers per segment; None for no limit but the machine's.
        num_cpus: Processors to use; 0 runs everything in the calling process; None: those there are.
        num_gpus: GPU slots to hand out; None: the devices there are.
        gpu_memory_gb: Memory of one GPU, to which `Resources(gpu_memory_gb=…)` relates; None: that of the smallest
            device.
        memory_budget: The most memory of all processes together, such as "8GB"; None: most of what is available.
        on_memory: What happens to documents for which one worker alone would take more than that: `quarantine` finds
            them and sets them aside, `fail` ends the run with the name of the stage.
        time_limit_s: Seconds that a document may take in a stage without a `time_limit_s` of its own; None: any time.
            Stages with a GPU or a worker of their own have none.
        worker_max_lifetime_m: Minutes after which a worker is replaced; None or 0: only when its memory grows.
        worker_restart_interval_m: Minutes that pass at least between two replacements in a segment.
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
            if value is not None and value < 0:
                raise UsageError(f"{name}={value!r} must not be negative.")
        for name in ("logging_interval", "gpu_memory_gb", "time_limit_s"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UsageError(f"{name}={value!r} must be above 0.")
        if self.max_workers_per_stage is not None and self.max_workers_per_stage < 1:
            raise UsageError(f"max_workers_per_stage={self.max_workers_per_stage!r} must be at least 1.")
        if self.memory_budget is not None:
            parse_size(self.memory_budget, name="memory_budget")

    @property
    def budget_bytes(self) -> int | None:
        """The memory budget in bytes, if one is set."""
        return None if self.memory_budget is None else parse_size(self.memory_budget, name="memory_budget")
