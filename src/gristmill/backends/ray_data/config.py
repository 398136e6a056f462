"""The settings of the executor on Ray Data."""

from __future__ import annotations

from dataclasses import dataclass

from gristmill.backends.ray.cluster import ClusterConfig
from gristmill.errors import UsageError


@dataclass(frozen=True)
class RayDataConfig(ClusterConfig):
    """What `RayDataExecutor(config={…})` takes, besides the settings of `ClusterConfig`.

    Attributes:
        ignore_failures: Quarantine documents on which a stage raises.
        max_workers_per_stage: The most workers that a segment gets; None: as many as fit.
        batches_per_call: How many batches travel in one Ray task; None: up to eight, fewer for small inputs.
        worker_max_lifetime_m: Minutes after which workers are replaced; None: only those that hold models; 0: none.
    """

    ignore_failures: bool = False
    max_workers_per_stage: int | None = None
    batches_per_call: int | None = None
    worker_max_lifetime_m: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_workers_per_stage", "batches_per_call"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"RayDataExecutor: {name}={value!r} must be at least 1.", key=name, value=value)
        if self.worker_max_lifetime_m is not None and self.worker_max_lifetime_m < 0:
            raise UsageError(
                f"RayDataExecutor: worker_max_lifetime_m={self.worker_max_lifetime_m!r} must not be negative."
            )
