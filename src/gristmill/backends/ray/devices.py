"""How much memory the GPUs of a cluster have, asked on the nodes that hold them."""

from __future__ import annotations

from collections.abc import Iterable

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

UNKNOWN_GB = 24.0
"""What a device is taken to have where none can be asked: the GPU count of the node is made up, say."""
_ANSWER_S = 60.0
_known: dict[frozenset[str], float] = {}
"""Answers by the ids of the nodes; nobody puts another card into a node that runs."""


def memory_here_gb() -> float | None:
    """The memory of the smallest GPU of this machine; None where there is none."""
    try:
        from ray._private.thirdparty import pynvml

        pynvml.nvmlInit()
        try:
            handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
            sizes = [float(pynvml.nvmlDeviceGetMemoryInfo(handle).total) / 1e9 for handle in handles]
        finally:
            pynvml.nvmlShutdown()
    except Exception:
        # No library, no driver or no device: in each case there is nothing to ask.
        return None
    return min(sizes, default=None)


def memory_on_gb(nodes: Iterable[str]) -> float:
    """The memory of the smallest GPU on these nodes, so that a share of any of them is enough.

    The driver's own machine often has no GPU, or another one: the nodes are asked.
    """
    wanted = frozenset(nodes)
    if not wanted:
        return UNKNOWN_GB
    if wanted not in _known:
        answers = [
            ray.remote(memory_here_gb)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
            .remote()
            for node in sorted(wanted)
        ]
        ready, _ = ray.wait(answers, num_returns=len(answers), timeout=_ANSWER_S)
        _known[wanted] = min((size for size in map(_answer, ready) if size is not None), default=UNKNOWN_GB)
    return _known[wanted]


def _answer(reference: ray.ObjectRef[float | None]) -> float | None:
    try:
        size: float | None = ray.get(reference)
    except ray.exceptions.RayError:
        # The node went away, or lacks something; it will be told by the run itself.
        return None
    return size
