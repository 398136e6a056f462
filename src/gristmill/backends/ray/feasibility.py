"""Whether the workers of a plan can ever find a place on the cluster; if not, the run ends before it begins.

Ray itself waits for ever: the missing node could still join. Processors are booked so that they fit (see `shares`);
GPUs and what nodes offer by name are given exactly as asked, so it is here that too much of them is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gristmill.backends.ray.cluster import Node
from gristmill.errors import ResourcesError

_TINY = 1e-6


@dataclass(frozen=True, slots=True)
class Request:
    """What each worker of a segment holds, and how many of them there must be at once.

    Attributes:
        name: The stages of the segment.
        cpus: Processors.
        gpus: GPUs, or a share of one.
        others: What nodes offer by name, memory in bytes among it.
        workers: How many there are at the least.
    """

    name: str
    cpus: float
    gpus: float
    others: Mapping[str, float] = field(default_factory=dict)
    workers: int = 1

    def words(self) -> str:
        """The request as a user reads it."""
        parts = [f"{self.cpus:g} CPUs"]
        if self.gpus:
            parts.append(f"{self.gpus:g} GPUs")
        parts.extend(f"{amount:g} of {name!r}" for name, amount in self.others.items())
        return ", ".join(parts)


def check(requests: Sequence[Request], nodes: Sequence[Node], *, at_once: bool) -> None:
    """Refuse a plan whose workers find no place.

    Args:
        requests: One for each segment.
        nodes: Where work can go.
        at_once: Whether the workers of all segments are there at the same time.

    Raises:
        ResourcesError: No node can hold a worker, or the GPUs are not enough for all that must be there.

    Example:
        >>> check([Request("embed", 1.0, 2.0)], [Node("a", 8.0, 1.0, is_head=True)], at_once=True)
        Traceback (most recent call last):
        gristmill.errors.ResourcesError: embed: a worker asks for 1 CPUs, 2 GPUs, and no node ...
    """
    for request in requests:
        if not any(_holds(node, request) for node in nodes):
            found = "; ".join(sorted({_offer(node, request) for node in nodes}))
            raise ResourcesError(
                f"{request.name}: a worker asks for {request.words()}, and no node of the cluster has all of it. The "
                f"nodes have {found}. Ask for less, or add a node that has it before the run.",
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
    advice = "Lower num_workers, or give each worker a share of a device: .with_(resources=Resources(gpus=0.5))."
    if together and len(group) > 1:
        advice += " Or let the stages run one after the other, with executor='ray_actor_pool'."
    raise ResourcesError(
        f"The workers of {listed} must all hold their GPUs at once, and the cluster has "
        f"{sum(node.gpus for node in nodes):g} on {sum(node.gpus > 0 for node in nodes)} node(s): they would wait for "
        f"each other for ever. {advice}",
        stage=group[0].name,
        asked=sum(wanted),
    )


def place_on_devices(wanted: Sequence[float], devices: Sequence[int]) -> bool:
    """Whether workers with these numbers or shares of GPUs find a place on nodes with so many devices.

    A share lies on one device; whole devices lie on one node.
    """
    free = [[1.0] * count for count in devices]
    for request in sorted(wanted, reverse=True):
        for node in free:
            if request >= 1:
                whole = [index for index, room in enumerate(node) if room > 1 - _TINY]
                if len(whole) >= request:
                    for index in whole[: int(request)]:
                        node[index] = 0.0
                    break
            else:
                # The fullest device on which it fits, so that whole ones stay whole.
                fitting = [index for index, room in enumerate(node) if room + _TINY >= request]
                if fitting:
                    node[min(fitting, key=lambda index: node[index])] -= request
                    break
        else:
            return False
    return True


def _holds(node: Node, request: Request) -> bool:
    enough = all(node.others.get(name, 0.0) + _TINY >= amount for name, amount in request.others.items())
    return enough and node.cpus + _TINY >= request.cpus and node.gpus + _TINY >= request.gpus


def _offer(node: Node, request: Request) -> str:
    return Request("", node.cpus, node.gpus, {name: node.others.get(name, 0.0) for name in request.others}).words()
