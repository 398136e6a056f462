"""What the scheduler knows: plain values that only the engine changes, so that testing a decision needs no process."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum


class Life(Enum):
    """Where a worker is in its life."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(slots=True)
class Queued:
    """A task that waits: its number, its size in memory, and whether it must be alone in a fresh worker."""

    number: int
    nbytes: int
    alone: bool = False


@dataclass(slots=True)
class Worker:
    """A worker as the scheduler sees it.

    Attributes:
        hands: Groups of task numbers that it has been given and not finished; the first one is being worked on.
        blocked: It waits for room in the next queue, and uses no processor.
        fresh: It has not been given anything yet.
        due: It should be replaced as soon as it has nothing to do.
    """

    number: int
    segment: int
    gpus: tuple[int, ...] = ()
    life: Life = Life.STARTING
    hands: deque[tuple[int, ...]] = field(default_factory=deque)
    blocked: bool = False
    fresh: bool = True
    alone: bool = False
    due: bool = False
    started_at: float = 0.0
    idle_since: float = 0.0

    @property
    def working(self) -> bool:
        """Whether it uses its processors now."""
        return self.life is Life.STARTING or (bool(self.hands) and not self.blocked)


@dataclass(slots=True)
class SegmentState:
    """One segment: what waits before it and what it may have."""

    index: int
    cpus: float
    gpus: float
    batch_size: int
    fixed_workers: int | None
    max_workers: int
    queue: deque[Queued] = field(default_factory=deque)
    queued_bytes: int = 0
    queue_limit: int = 1 << 62
    prefetch: int = 1
    warm: bool = False
    node_ready: bool = False
    last_recycled_at: float = float("-inf")

    def put(self, item: Queued, *, first: bool = False) -> None:
        """Add a task to the queue."""
        if first:
            self.queue.appendleft(item)
        else:
            self.queue.append(item)
        self.queued_bytes += item.nbytes

    def pop(self) -> Queued:
        """Take the next task from the queue."""
        item = self.queue.popleft()
        self.queued_bytes -= item.nbytes
        return item

    @property
    def full(self) -> bool:
        """Whether nothing more should be produced for this segment now."""
        return bool(self.queue) and self.queued_bytes >= self.queue_limit


@dataclass(slots=True)
class State:
    """Everything a scheduling decision depends on.

    Attributes:
        source_left: Whether more root tasks can be had for the first segment.
        batch_mode: One segment at a time.
        memory: Measured bytes of all processes and of segments that nobody maps.
        budget: What `memory` must stay below.
        free_gpus: The free share of every device.
    """

    segments: list[SegmentState]
    workers: dict[int, Worker] = field(default_factory=dict)
    cpus: float = 1.0
    free_gpus: list[float] = field(default_factory=list)
    source_left: bool = True
    batch_mode: bool = False
    memory: int = 0
    budget: int = 1 << 62
    now: float = 0.0
    max_lifetime_s: float | None = None
    restart_interval_s: float = 60.0

    def of(self, segment: int) -> list[Worker]:
        """The workers of a segment that are not leaving."""
        return [w for w in self.workers.values() if w.segment == segment and w.life is not Life.LEAVING]

    @property
    def cpus_used(self) -> float:
        """Processors of the workers that work now; segments with a fixed number of workers are not counted."""
        return sum(
            self.segments[w.segment].cpus
            for w in self.workers.values()
            if w.working and self.segments[w.segment].fixed_workers is None
        )

    @property
    def memory_is_short(self) -> bool:
        """Whether nothing new should be read now."""
        return self.memory > 0.8 * self.budget

    def upstream_done(self, segment: int) -> bool:
        """Whether nothing more can arrive at `segment`."""
        if self.source_left:
            return False
        return all(not s.queue for s in self.segments[:segment]) and all(
            not w.hands for w in self.workers.values() if w.segment < segment
        )

    @property
    def finished(self) -> bool:
        """Whether all work is done."""
        return (
            not self.source_left
            and all(not segment.queue for segment in self.segments)
            and all(not worker.hands for worker in self.workers.values())
        )
