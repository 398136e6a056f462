"""How many workers a segment gets and what each of them holds, so that the whole plan fits the cluster at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gristmill.backends.plan import Segment

_LEAST_CPUS = 0.01
"""Ray counts resources in ten-thousandths; a worker with less than this would be meaningless."""
_LEAST_GPUS = 0.0001
_STEP = 0.95
"""How much smaller shares become from try to try, where their sum fits but their sizes do not."""


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


@dataclass(frozen=True, slots=True)
class Demand:
    """What a segment asks for.

    Attributes:
        segment: The segment.
        stays: Whether its workers hold their processors all the time.
        workers: A fixed number of workers, or None.
    """

    segment: Segment
    stays: bool
    workers: int | None = None


def fit(demands: Sequence[Demand], nodes: Sequence[float], *, gpus: float) -> tuple[list[Share], str | None]:
    """The shares of all segments, and a line that explains what had to be scaled, if anything.

    Workers that stay must all find a place at once, beside one task of the other segments; where they do not, every
    worker is booked with a smaller share of the processors, in proportion. So nothing waits for ever.

    Args:
        demands: What the segments ask for.
        nodes: The processors of each node.
        gpus: The GPUs of all nodes.

    Example:
        >>> shares, note = fit([Demand(first, True), Demand(second, True)], [1.0], gpus=0)
        >>> [share.cpus for share in shares]
        [0.5, 0.5]
    """
    asked = [demand.segment.resources.cpus for demand in demands if demand.stays for _ in range(demand.workers or 1)]
    passing = max((demand.segment.resources.cpus for demand in demands if not demand.stays), default=0.0)
    if passing:
        asked.append(passing)
    total = sum(nodes)
    # Without its largest node the cluster must still hold one worker of each segment: if a node is lost, a worker that
    # stays could otherwise take the last processor, and the others would wait for it for ever. Where the other nodes
    # are too small for some worker anyway, nothing is kept back: the run is then planned anew after a loss.
    single = [demand.segment.resources.cpus for demand in demands if demand.stays] + ([passing] if passing else [])
    rest = sorted(nodes)[:-1]
    if max(rest, default=0.0) < max(single, default=0.0):
        rest = []
    scale = min(1.0, total / sum(asked)) if sum(asked) else 1.0
    held = sum(asked) - passing
    # Ray places workers where it likes. However it does, some node must have room for a task that passes.
    if passing and held:
        scale = min(scale, total / (held + passing * sum(cpus > 0 for cpus in nodes)))
    while scale > 1e-4 and not (
        packs([_scaled(cpus, scale) for cpus in asked], nodes)
        and (not rest or packs([_scaled(cpus, scale) for cpus in single], rest))
    ):
        scale *= _STEP
    note = None
    if scale < 1:
        note = (
            f"The workers of this plan ask for {sum(asked):g} CPUs at once and there are {total:g} on {len(nodes)} "
            f"node(s){', one of which may be lost' if rest else ''}: each is booked with {scale:.0%} of its request, "
            "and they take turns."
        )
    shares = []
    for demand in demands:
        cpus = demand.segment.resources.cpus
        mine = _scaled(cpus, scale)
        device = max(_LEAST_GPUS, _countable(demand.segment.resources.gpus)) if demand.segment.resources.gpus else 0.0
        most = demand.workers if demand.workers is not None else _most(mine, device, total, gpus)
        least = (demand.workers or 1) if demand.stays else 0
        shares.append(Share(mine, device, least, max(1, most)))
    return shares, note


def packs(requests: Sequence[float], nodes: Sequence[float]) -> bool:
    """Whether workers of these sizes find a place on these nodes, the largest being placed first."""
    free = list(nodes)
    for request in sorted(requests, reverse=True):
        place = next((index for index, room in enumerate(free) if room + 1e-9 >= request), None)
        if place is None:
            return False
        free[place] -= request
    return True


def _most(cpus_each: float, gpus_each: float, cpus: float, gpus: float) -> int:
    if gpus_each:
        return int(1 / gpus_each + 1e-6) * int(gpus) if gpus_each < 1 else int(gpus / gpus_each)
    return int(cpus / cpus_each + 1e-6) if cpus_each else int(cpus)


def _scaled(cpus: float, scale: float) -> float:
    """The share that is booked, but never nothing."""
    return max(_LEAST_CPUS, _countable(cpus * scale)) if cpus else 0.0


def _countable(amount: float) -> float:
    """The amount rounded down to what Ray can count: rounded up, six workers of a sixth would not fit one device."""
    return int(amount * 10_000 + 1e-6) / 10_000
