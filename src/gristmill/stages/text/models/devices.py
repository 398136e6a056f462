"""Devices for models: the device, its faster numeric type, the threads, and out-of-memory errors."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator, MutableMapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from gristmill.backends.base import WorkerMetadata


# The numbers of these settings in glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

_OUT_OF_MEMORY_WORDS = (
    "can't allocate memory",
    "not enough memory",
    "CUDA out of memory",
    "bad_alloc",
)


def choose_device(worker: WorkerMetadata | None = None) -> torch.device:
    """CUDA if the worker was assigned a GPU (or runs outside of an executor and there is one), otherwise the CPU."""
    import torch

    if torch.cuda.is_available() and allocated_gpus(worker) != 0:
        return torch.device("cuda")
    return torch.device("cpu")


def allocated_gpus(worker: WorkerMetadata | None) -> int | None:
    """The number of GPUs that the executor assigned to the worker; None if unknown."""
    gpus = getattr(worker, "allocation", None)
    if isinstance(gpus, dict):
        gpus = gpus.get("gpus")
    elif not isinstance(gpus, list | tuple):
        gpus = getattr(gpus, "gpus", None)
    if gpus is None:
        return None
    return int(gpus > 0) if isinstance(gpus, int | float) else len(gpus)


def limit_threads(worker: WorkerMetadata | None, cpus: float) -> int:
    """Limit torch to the CPU cores that the stage requested. Returns the number of threads.

    Outside of an executor the machine is not shared, and torch keeps its own default.
    """
    import torch

    if worker is not None:
        torch.set_num_threads(max(1, round(cpus)))
    return int(torch.get_num_threads())


def keep_freed_memory() -> None:
    """Make the C library reuse large blocks instead of returning them to the system after each operation.

    A model on a CPU allocates and frees the same large activations over and over, and getting fresh pages from the
    system for them costs about as much as the arithmetic. Does nothing where the library has no such setting.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def device_of(model: Any) -> torch.device:
    """The device for a model's inputs."""
    import torch

    device = getattr(model, "device", None)
    if isinstance(device, torch.device):
        return device
    if device is not None:
        return torch.device(device)
    parameters = getattr(model, "parameters", None)
    first = next(iter(parameters()), None) if callable(parameters) else None
    return torch.device("cpu") if first is None else first.device


def autocast_on(device: torch.device, *, enabled: bool) -> AbstractContextManager[Any]:
    """`torch.autocast` with the faster type on `device`, turned off if there is none; nothing if not enabled."""
    import torch

    if not enabled:
        return contextlib.nullcontext()
    kind = faster_type(device.type)
    context: AbstractContextManager[Any] = torch.autocast(
        device_type=device.type, dtype=kind or torch.bfloat16, enabled=kind is not None
    )
    return context


def widened(outputs: Any) -> Any:
    """A model's outputs with float32 instead of bfloat16, which NumPy lacks; a mapping is changed in place."""
    import torch

    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype is torch.bfloat16 else outputs
    if isinstance(outputs, MutableMapping):
        for name, value in list(outputs.items()):
            outputs[name] = widened(value)
        return outputs
    if type(outputs) in (list, tuple):
        return type(outputs)(widened(value) for value in outputs)
    return outputs


@functools.cache
def faster_type(device_type: str) -> torch.dtype | None:
    """The 16-bit type in which matrices multiply faster than in float32 on this machine, or None.

    On a CPU the instructions decide, not a measurement: all workers of a run have to round alike.
    """
    import torch

    from gristmill.stages.text.models.torch_internals import cpu_has_bfloat16

    if device_type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return torch.bfloat16 if device_type == "cpu" and cpu_has_bfloat16() else None


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """Keep transformers from drawing a progress bar for weights that load in a moment."""
    from transformers.utils import logging as messages

    shown = messages.is_progress_bar_enabled()
    messages.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            messages.enable_progress_bar()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that the device or the host ran out of memory."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    # Torch reports a failed allocation on the host, and some on the GPU, only in the message.
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY_WORDS)


def free_memory() -> None:
    """Release cached GPU memory; does nothing on a CPU."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def place(network: Any, worker: WorkerMetadata | None, *, cpus: float, cpu_backend: str, autocast: bool) -> Any:
    """The network on the worker's device, in its fastest form there.

    Args:
        network: A torch module in evaluation mode.
        worker: The worker metadata from the executor, None outside of one.
        cpus: Number of CPU cores that the stage requests.
        cpu_backend: `torch` or `torch-int8`; used on the CPU.
        autocast: Whether it will run under `autocast_on`.
    """
    device = choose_device(worker)
    threads = limit_threads(worker, cpus)
    if device.type == "cuda":
        return network.to(device)
    import torch

    from gristmill.stages.text.models.acceleration import accelerated

    keep_freed_memory()
    kind = (faster_type("cpu") if autocast else None) or torch.float32
    return accelerated(network, threads=threads, int8=cpu_backend == "torch-int8", kind=kind)
