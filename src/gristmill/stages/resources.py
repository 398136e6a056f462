"""Resources of a stage's worker: CPU cores, and a share of a GPU, whole GPUs, or an amount of GPU memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Resources:
    """A resource request as a plain value; the executor resolves it against its hardware.

    Args:
        cpus: CPU cores per worker; fractions are allowed.
        gpu_memory_gb: GPU memory per worker; the executor turns it into a share of a device.
        gpus: GPUs per worker: with 0.25 four workers share one, with 2 each worker has two.

    Example:
        >>> Resources(cpus=2.0).requires_gpu
        False
        >>> Resources(gpu_memory_gb=1).requires_gpu
        True
    """

    cpus: float = 1.0
    gpu_memory_gb: float = 0.0
    gpus: float = 0.0

    def __post_init__(self) -> None:
        for name in ("cpus", "gpu_memory_gb", "gpus"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise UsageError(f"Resources({name}={value!r}): {name} must be a non-negative number.")
        if self.gpus and self.gpu_memory_gb:
            raise UsageError(
                f"Resources(gpus={self.gpus}, gpu_memory_gb={self.gpu_memory_gb}): set only one of the two. "
                "gpu_memory_gb is for a stage that shares a single GPU, gpus for a share or a number of GPUs."
            )
        if self.gpus > 1 and self.gpus != int(self.gpus):
            raise UsageError(
                f"Resources(gpus={self.gpus}): more than one GPU must be a whole number, "
                f"for instance {int(self.gpus)} or {int(self.gpus) + 1}."
            )

    @property
    def requires_gpu(self) -> bool:
        """Whether a worker needs any part of a GPU."""
        return self.gpus > 0 or self.gpu_memory_gb > 0

    def gpus_on(self, device_memory_gb: float) -> float:
        """The share of a device with `device_memory_gb` (or the number of devices) that this request amounts to.

        Raises:
            UsageError: The request does not fit one device.
        """
        if not self.gpu_memory_gb:
            return self.gpus
        if self.gpu_memory_gb > device_memory_gb:
            raise UsageError(
                f"Resources(gpu_memory_gb={self.gpu_memory_gb}) does not fit a GPU with {device_memory_gb:g} GB; "
                "request less, or several whole GPUs with gpus=."
            )
        return self.gpu_memory_gb / device_memory_gb

    def maximum(self, other: Resources) -> Resources:
        """The smallest request that covers both (for stages that share one worker)."""
        return Resources(
            cpus=max(self.cpus, other.cpus),
            gpu_memory_gb=max(self.gpu_memory_gb, other.gpu_memory_gb),
            gpus=max(self.gpus, other.gpus),
        )

    def to_dict(self) -> dict[str, Any]:
        """The request as plain values."""
        return {"cpus": self.cpus, "gpu_memory_gb": self.gpu_memory_gb, "gpus": self.gpus}
