"""How many workers a segment gets and what each of them holds, so that the whole plan fits the cluster at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.backends.plan import Segment

_LEAST_CPUS = 0.01
"""Ray counts resources in ten-thousandths; a worker with less would be meaningless."""


@dataclass(frozen=True, slots=True)
class Share:
    """What the workers of one segment hold.

    Attributes:
        cpus: Processors of one worker.
        gpus: GPUs of one worker.
        least: How many workers there are always; 0 for segments that run as tasks and hold nothing between them.
        most: How many there can be.
    """

    cpus: float
    gpus: float
    least: int
    most: int


def fit(
    segments: Sequence[Segment], *, cpus: float, gpus: float, holds: Sequence[bool], per_node: Sequence[int | None]
) -> tuple[list[Share], str | None]:
    """The shares of all segments, and a line that explains what had to be scaled, if anything.

    Segments that hold their workers must all fit at once, beside one task of the others; where they do not, every
    worker is booked with a smaller share of the processors, in proportion. Nothing waits for ever.

    Args:
        segments: The plan.
        cpus: The processors of the cluster.
        gpus: Its GPUs.
        holds: For each segment, whether its workers stay (they have been set up, or hold a model).
        per_node: For each segment, a fixed number of workers over the whole cluster, or None.
    """
    fixed = [count if count is not None else segment.workers for segment, count in zip(segments, per_node, strict=True)]
    held = sum(
        segment.resources.cpus * (number or 1)
        for segment, number, stays in zip(segments, fixed, holds, strict=True)
        if stays
    )
    free = max((s.resources.cpus for s, stays in zip(segments, holds, strict=True) if not stays), default=0.0)
    scale, note = 1.0, None
    if held + free > cpus and held + free > 0:
        scale = cpus / (held + free)
        note = (
            f"The workers of this plan ask for {held + free:g} CPUs at once and the cluster has {cpus:g}: each is booked "
            f"with {scale:.0%} of its request, and they take turns on the processors."
        )
    shares = []
    for segment, number, stays in zip(segments, fixed, holds, strict=True):
        mine = max(_LEAST_CPUS, _rounded(segment.resources.cpus * scale)) if segment.resources.cpus else 0.0
        most = number if number is not None else _most(segment, mine, cpus, gpus)
        shares.append(Share(mine, segment.resources.gpus, (number or 1) if stays else 0, max(1, most)))
    return shares, note


def _most(segment: Segment, cpus_each: float, cpus: float, gpus: float) -> int:
    most = int(cpus / cpus_each + 1e-6) if cpus_each else int(cpus)
    if segment.resources.gpus:
        share = segment.resources.gpus
        most = int(1 / share + 1e-6) * int(gpus) if share < 1 else int(gpus / share)
    return max(1, most)


def _rounded(cpus: float) -> float:
    """Down to what Ray can count, so that the sum still fits."""
    return int(cpus * 10_000) / 10_000
