"""Computes the number of workers per segment and their resources, and checks that they fit the cluster.

CPUs are scaled down so that the whole plan fits at once. GPUs and custom resources are reserved exactly as requested,
so a plan that requests too many is rejected before it runs: Ray itself would wait forever, since the missing node could
still join.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gristmill.backends.plan import Segment
from gristmill.errors import ResourcesError

if TYPE_CHECKING:
    from gristmill.backends.ray.cluster import Node

_LEAST_CPUS = 0.01
"""Ray counts resources in ten-thousandths; a worker with less than this would be meaningless."""
_LEAST_GPUS = 0.0001
_TINY = 1e-6
_STEP = 0.95
"""Factor by which shares shrink per attempt when their sum fits but the individual workers do not."""


@dataclass(frozen=True, slots=True)
class Share:
    """The resources of the workers of one segment.

    Attributes:
        cpus: CPU cores per worker.
        gpus: GPUs per worker.
        least: Minimum number of workers; 0 for segments that run as stateless tasks.
        most: Maximum number of workers.
    """

    cpus: float
    gpus: float
    least: int
    most: int


@dataclass(frozen=True, slots=True)
class Demand:
    """The request of a segment.

    Attributes:
        segment: The segment.
        stays: Whether its workers hold their CPU cores all the time.
        workers: A fixed number of workers, or None.
    """

    segment: Segment
    stays: bool
    workers: int | None = None


def fit(demands: Sequence[Demand], nodes: Sequence[float], *, gpus: float) -> tuple[list[Share], str | None]:
    """The shares of all segments, and a line that explains what had to be scaled, if anything.

    All long-lived workers must fit at the same time, along with one task of each other segment. If they do not, every
    worker reserves a proportionally smaller share of the CPUs, so that nothing waits forever.

    Args:
        demands: The requests of the segments.
        nodes: CPU cores of each node.
        gpus: Number of GPUs of all nodes.

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
    # Without its largest node the cluster must still fit one worker of each segment: after the loss of a node, a
    # long-lived worker could otherwise take the last CPU and the others would wait for it forever. If the other nodes
    # are too small for some worker anyway, nothing is held back: the run is then planned again after a loss.
    single = [demand.segment.resources.cpus for demand in demands if demand.stays] + ([passing] if passing else [])
    rest = sorted(nodes)[:-1]
    if max(rest, default=0.0) < max(single, default=0.0):
        rest = []
    scale = min(1.0, total / sum(asked)) if sum(asked) else 1.0
    held = sum(asked) - passing
    # Ray chooses where to place workers. Wherever it does, some node must have room for a short-lived task.
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
            f"The workers of this plan request {sum(asked):g} CPUs at once and there are {total:g} on {len(nodes)} "
            f"node(s){', one of which may be lost' if rest else ''}: each reserves {scale:.0%} of its request, and "
            "they share the CPUs."
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
    """Whether workers of these sizes fit on these nodes, placing the largest first."""
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
    """The share to reserve, never zero."""
    return max(_LEAST_CPUS, _countable(cpus * scale)) if cpus else 0.0


def _countable(amount: float) -> float:
    """The amount rounded down to Ray's resolution: rounded up, six workers of a sixth would not fit one device."""
    return int(amount * 10_000 + 1e-6) / 10_000


@dataclass(frozen=True, slots=True)
class Request:
    """The resources of each worker of a segment, and the minimum number of concurrent workers.

    Attributes:
        name: The stages of the segment.
        cpus: CPU cores.
        gpus: GPUs, or a fraction of one.
        others: Custom resources by name, including memory in bytes.
        workers: Minimum number of workers.
    """

    name: str
    cpus: float
    gpus: float
    others: Mapping[str, float] = field(default_factory=dict)
    workers: int = 1

    def words(self) -> str:
        """The request in words, for messages."""
        parts = [f"{self.cpus:g} CPUs"]
        if self.gpus:
            parts.append(f"{self.gpus:g} GPUs")
        parts.extend(f"{amount:g} of {name!r}" for name, amount in self.others.items())
        return ", ".join(parts)


def check(requests: Sequence[Request], nodes: Sequence[Node], *, at_once: bool) -> None:
    """Reject a plan whose workers do not fit on the nodes.

    Args:
        requests: One for each segment.
        nodes: Nodes that can run work.
        at_once: Whether the workers of all segments exist at the same time.

    Raises:
        ResourcesError: No node can hold a worker, or there are not enough GPUs for all workers.

    Example:
        >>> check([Request("embed", 1.0, 2.0)], [Node("a", 8.0, 1.0)], at_once=True)
        Traceback (most recent call last):
        gristmill.errors.ResourcesError: embed: a worker requests 1 CPUs, 2 GPUs, and no node ...
    """
    for request in requests:
        if not any(_holds(node, request) for node in nodes):
            found = "; ".join(sorted({_offer(node, request) for node in nodes}))
            raise ResourcesError(
                f"{request.name}: a worker requests {request.words()}, but no node of the cluster has all of it. The "
                f"nodes have {found}. Request less, or add such a node before the run.",
                stage=request.name,
                nodes=len(nodes),
            )
    groups = [list(requests)] if at_once else [[request] for request in requests]
    for group in groups:
        _check_devices([request for request in group if request.gpus], nodes, together=at_once)


def _check_devices(group: Sequence[Request], nodes: Sequence[Node], *, together: bool) -> None:
    wanted = [request.gpus for request in group for _ in range(request.workers)]
    if place_on_devices(wanted, [int(node.gpus) for node in nodes]):
        return
    listed = ", ".join(f"{request.name} ({request.workers} × {request.gpus:g})" for request in group)
    advice = "Lower num_workers, or let workers share a device: .with_(resources=Resources(gpus=0.5))."
    if together and len(group) > 1:
        advice += " Or run the stages one after the other, with executor='ray_actor_pool'."
    raise ResourcesError(
        f"The workers of {listed} must all hold their GPUs at once, and the cluster has "
        f"{sum(node.gpus for node in nodes):g} on {sum(node.gpus > 0 for node in nodes)} node(s): they would wait for "
        f"each other forever. {advice}",
        stage=group[0].name,
        asked=sum(wanted),
    )


def place_on_devices(wanted: Sequence[float], devices: Sequence[int]) -> bool:
    """Whether workers with these GPU requests fit on nodes with these numbers of devices.

    A fraction must come from a single device, and whole devices from a single node.
    """
    free = [[1.0] * count for count in devices]
    for request in sorted(wanted, reverse=True):
        for node in free:
            each = min(1.0, request)
            # Try the fullest devices first, so that unused devices stay whole.
            fitting = sorted((room, index) for index, room in enumerate(node) if room + _TINY >= each)
            if fitting and len(fitting) >= request:
                for _, index in fitting[: max(1, int(request))]:
                    node[index] -= each
                break
        else:
            return False
    return True


def _holds(node: Node, request: Request) -> bool:
    enough = all(node.others.get(name, 0.0) + _TINY >= amount for name, amount in request.others.items())
    return enough and node.cpus + _TINY >= request.cpus and node.gpus + _TINY >= request.gpus


def _offer(node: Node, request: Request) -> str:
    return Request("", node.cpus, node.gpus, {name: node.others.get(name, 0.0) for name in request.others}).words()
