"""Runs a network on a CPU on several parts of a batch at once, each with one thread.

Torch divides every operation among its threads and waits for the last of them at its end, hundreds of times in a
forward pass, and small operations use one thread only. Documents do not depend on each other: dividing them once per
pass leaves no thread waiting until the end, and the results are the same.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import torch
from torch import nn

# Tokens per part, if there are enough: with several parts per thread, a thread with short documents takes more.
PART_TOKENS = 1024


def with_threads(network: nn.Module, threads: int) -> nn.Module:
    """The network, with its forward pass divided among threads.

    Args:
        network: Takes tensors with one row per document, by name or in a mapping, and returns the same.
        threads: Number of parts to run at once; 1 leaves the network unchanged.
    """
    if threads > 1:
        network.forward = _ThreadedForward(network.forward, threads)
    return network


def forward_threads(network: Any) -> int:
    """The number of parts of a batch that a network runs at once."""
    forward = getattr(network, "forward", None)
    return forward.threads if isinstance(forward, _ThreadedForward) else 1


class _ThreadedForward:
    """A forward pass that is divided among threads."""

    def __init__(self, forward: Callable[..., Any], threads: int) -> None:
        self.threads = threads
        self._forward = forward
        self._pool: ThreadPoolExecutor | None = None

    def __call__(self, *mappings: Mapping[str, torch.Tensor], **tensors: torch.Tensor) -> Any:
        shapes = [tensor.shape for mapping in (*mappings, tensors) for tensor in mapping.values()]
        rows, tokens = shapes[0][0], shapes[0].numel()
        parts = min(self.threads * max(1, round(tokens / (self.threads * PART_TOKENS))), rows)
        if parts < 2:
            return self._forward(*mappings, **tensors)
        ends = [part * rows // parts for part in range(parts + 1)]
        modes = (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
        pool = self._started()
        running = [
            pool.submit(
                self._part, modes, [_rows(mapping, start, end) for mapping in mappings], _rows(tensors, start, end)
            )
            for start, end in itertools.pairwise(ends)
        ]
        # A caller that handles an error and retries with less needs the memory of all parts.
        wait(running)
        return _joined([future.result() for future in running])

    def _started(self) -> ThreadPoolExecutor:
        if self._pool is None:
            before = torch.get_num_threads()
            self._pool = ThreadPoolExecutor(self.threads, "part", initializer=_compute_alone)
            # A pool starts a thread only when all others are busy: these wait until the last one has started.
            all_there = threading.Barrier(self.threads)
            wait([self._pool.submit(all_there.wait) for _ in range(self.threads)])
            torch.set_num_threads(before)  # for threads started later by others
        return self._pool

    def _part(self, modes: tuple[bool, bool, torch.dtype], mappings: list[Any], tensors: dict[str, Any]) -> Any:
        # Modes belong to a thread, too.
        grad, autocast, kind = modes
        with torch.set_grad_enabled(grad), torch.autocast("cpu", dtype=kind, enabled=autocast):
            return self._forward(*mappings, **tensors)


def _compute_alone() -> None:
    """Make torch use no other thread for what this one computes."""
    torch.set_num_threads(1)
    # Torch sets the number for all threads, and each thread permanently adopts the value of its first query.
    torch.get_num_threads()


def _rows(tensors: Mapping[str, torch.Tensor], start: int, end: int) -> dict[str, torch.Tensor]:
    return {name: tensor[start:end] for name, tensor in tensors.items()}


def _joined(parts: list[Any]) -> Any:
    """The concatenated results of the parts: tensors, or mappings, lists and tuples of them.

    Anything else in a mapping is omitted, such as a decoder's cache.
    """
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        names = [name for name, value in first.items() if isinstance(value, torch.Tensor | Mapping | list | tuple)]
        return type(first)(**{name: _joined([part[name] for part in parts]) for name in names})
    return type(first)(_joined(list(same)) for same in zip(*parts, strict=True))
