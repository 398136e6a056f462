"""The scheduler's state: plain values and how events change them, so that decisions can be tested without processes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

WINDOW = 2
"""How many results a worker may send before it must wait for more credit."""
SHORT_S = 1.0
"""For tasks shorter than this, the latency between driver and worker matters."""
UNKNOWN_BYTES = 1 << 30
"""With less free memory than this, wait for a worker's measured use before starting another one."""
_MOST_GROWTH_BYTES = 256 << 20
"""A worker that has grown by more than this is replaced even if there is enough memory."""
_FILLED_AT_MOST = 0.95
"""Fraction of the budget that workers may fill; the driver grows too, and is measured less often."""
_WORTH_A_START = 0.05
"""Replacing a worker that has grown by less than this fraction of the budget would gain little."""


class Life(Enum):
    """Lifecycle state of a worker."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"


@dataclass(slots=True)
class Queued:
    """A queued task: its number, its size in memory, and whether it must run alone in a fresh worker."""

    number: int
    nbytes: int
    alone: bool = False


@dataclass(slots=True)
class Worker:
    """A worker as the scheduler sees it.

    Attributes:
        assigned: Its unfinished groups, each as its number and its tasks; it works on the first one.
        owed: Number of results it has sent without credit for more.
        fresh: It has not received any work yet.
        alone: Its only work was assigned while it was fresh.
        due: It should be replaced as soon as it is idle.
        warm: It was started before there was any work, and its setup does not count as CPU use.
        groups: Number of groups it has finished.
        held: Its private memory between two groups.
        taken: Its peak private memory.
        first_held: Its private memory after its first group.
        first_taken: Its peak private memory at that time.
        expected: Its expected peak until all of its assigned work is done.
    """

    number: int
    segment: int
    gpus: tuple[int, ...] = ()
    life: Life = Life.STARTING
    assigned: deque[tuple[int, tuple[Queued, ...]]] = field(default_factory=deque)
    owed: int = 0
    fresh: bool = True
    alone: bool = False
    due: bool = False
    warm: bool = False
    started_at: float = 0.0
    idle_since: float = 0.0
    groups: int = 0
    held: int = 0
    taken: int = 0
    first_held: int = 0
    first_taken: int = 0
    expected: int = 0

    @property
    def blocked(self) -> bool:
        """Whether it waits for room in the next queue and uses no CPU."""
        return self.owed >= WINDOW

    @property
    def working(self) -> bool:
        """Whether it is using its CPUs."""
        if self.life is Life.STARTING:
            return not self.warm
        return bool(self.assigned) and not self.blocked

    @property
    def idle(self) -> bool:
        """Whether it could accept work now."""
        return self.life is Life.READY and not self.assigned


@dataclass(slots=True)
class SegmentState:
    """One segment: its queues, and its limits.

    Attributes:
        queue: Tasks that wait for any worker.
        alone: Tasks that wait for a fresh worker of their own.
        overlaps: Its workers begin the next group while they wait for the end of the current one.
        warm: A worker should be started before the first task arrives.
        node_ready: `setup_on_node` has been done, so that further workers may start.
        pace_s: Recent duration of a group of tasks; None before the first one is done.
        worker_bytes: Peak private memory of a worker; None before the first task is done.
        leak_bytes: Growth of a worker's memory from one group to the next; None before a second one is done.
    """

    index: int
    cpus: float
    gpus: float
    batch_size: int
    fixed_workers: int | None
    max_workers: int
    queue: deque[Queued] = field(default_factory=deque)
    alone: deque[Queued] = field(default_factory=deque)
    queued_bytes: int = 0
    queue_limit: int = 1 << 62
    prefetch: int = 1
    overlaps: bool = False
    warm: bool = False
    node_ready: bool = False
    max_lifetime_s: float | None = None
    restart_interval_s: float = 60.0
    last_recycled_at: float = float("-inf")
    pace_s: float | None = None
    worker_bytes: int | None = None
    leak_bytes: int | None = None

    def put(self, item: Queued, *, first: bool = False) -> None:
        """Add a task to its queue."""
        queue = self.alone if item.alone else self.queue
        if first:
            queue.appendleft(item)
        else:
            queue.append(item)
        self.queued_bytes += item.nbytes

    def pop(self, *, alone: bool = False) -> Queued:
        """Take the next task from its queue."""
        item = (self.alone if alone else self.queue).popleft()
        self.queued_bytes -= item.nbytes
        return item

    def took(self, seconds: float) -> None:
        """Record how long a group of tasks took."""
        self.pace_s = seconds if self.pace_s is None else 0.8 * self.pace_s + 0.2 * seconds

    @property
    def waiting(self) -> int:
        """Number of queued tasks."""
        return len(self.queue) + len(self.alone)

    @property
    def full(self) -> bool:
        """Whether its queue is full, so that nothing more should be produced for it."""
        return bool(self.waiting) and self.queued_bytes >= self.queue_limit

    @property
    def short(self) -> bool:
        """Whether its tasks are known to be short."""
        return self.pace_s is not None and self.pace_s < SHORT_S


@dataclass(slots=True)
class State:
    """Everything a scheduling decision depends on.

    Attributes:
        source_left: Whether there are more root tasks for the first segment.
        cpus: Number of CPU cores of the run.
        overlap: Number of additional cores that may be assigned to short tasks, because the kernel shares the real
            ones.
        batch_mode: One segment at a time.
        memory: Measured bytes of all processes and of segments that no process maps.
        budget: Limit of `memory`.
        expected: Expected peak of the workers until all of their assigned work is done.
        own: Measured bytes of the driver, and of the memory that workers share with the fork server.
        free_gpus: Free share of every device.
        moved_at: When a GPU was last taken from one segment for another.
    """

    segments: list[SegmentState]
    workers: dict[int, Worker] = field(default_factory=dict)
    cpus: float = 1.0
    overlap: float = 0.0
    free_gpus: list[float] = field(default_factory=list)
    source_left: bool = True
    batch_mode: bool = False
    memory: int = 0
    budget: int = 1 << 62
    own: int = 0
    expected: int = 0
    now: float = 0.0
    autoscale_interval_s: float = 180.0
    moved_at: float = 0.0

    # --- questions ---

    def of(self, segment: int) -> list[Worker]:
        """The workers of a segment that are not leaving."""
        return [w for w in self.workers.values() if w.segment == segment and w.life is not Life.LEAVING]

    def idle_workers(self, segment: SegmentState) -> tuple[int, int, int]:
        """How many workers of a segment lack input, have some but may not work, and are being set up."""
        starved = blocked = starting = 0
        for worker in self.of(segment.index):
            if worker.life is Life.STARTING:
                starting += 1
            elif worker.blocked or (worker.idle and segment.waiting):
                blocked += 1
            elif worker.idle:
                starved += 1
        return starved, blocked, starting

    @property
    def cpus_used(self) -> float:
        """CPUs in use by working workers; segments with a fixed number of workers are not counted."""
        return sum(
            self.segments[w.segment].cpus
            for w in self.workers.values()
            if w.working and self.segments[w.segment].fixed_workers is None
        )

    @property
    def memory_is_short(self) -> bool:
        """Whether nothing new should be read now."""
        return self.memory > 0.8 * self.budget

    @property
    def room(self) -> int:
        """What the budget leaves after the existing workers, each counted with the peak of its segment."""
        taken = sum(self.segments[worker.segment].worker_bytes or 0 for worker in self.workers.values())
        return self.budget - self.own - taken - self._queued_bytes

    def is_too_much_for(self, worker: Worker) -> bool:
        """Whether one more group for this worker might break the budget."""
        segment = self.segments[worker.segment]
        more = self._keeps(worker)
        if not worker.assigned:
            more += worker.taken - worker.held if worker.groups else segment.worker_bytes or 0
        return self.own + self._queued_bytes + self.expected + more > _FILLED_AT_MOST * self.budget

    def outgrows(self, worker: Worker) -> bool:
        """Whether one more group for this worker might break the budget, and stopping it would free memory."""
        return worker.held - worker.first_held >= _WORTH_A_START * self.budget and self.is_too_much_for(worker)

    @property
    def unmapped_bytes(self) -> int:
        """Bytes in memory between workers; whatever a worker has mapped counts as its own."""
        if self.batch_mode:
            return 0
        ahead = (items for worker in self.workers.values() for _, items in list(worker.assigned)[1:])
        return self._queued_bytes + sum(item.nbytes for items in ahead for item in items)

    @property
    def _queued_bytes(self) -> int:
        """Queued bytes in memory; in batch mode they are on disk, and before the first segment nothing is read."""
        return 0 if self.batch_mode else sum(segment.queued_bytes for segment in self.segments[1:])

    def upstream_done(self, segment: int) -> bool:
        """Whether nothing more can arrive at `segment`."""
        if self.source_left:
            return False
        return all(not s.waiting for s in self.segments[:segment]) and all(
            not w.assigned for w in self.workers.values() if w.segment < segment
        )

    @property
    def finished(self) -> bool:
        """Whether all work is done."""
        return self.upstream_done(len(self.segments))

    # --- events ---

    def started(self, worker: Worker) -> None:
        """Add a started worker; it holds its GPUs until it has ended."""
        worker.started_at = worker.idle_since = self.now
        share = self._gpu_share(worker)
        for device in worker.gpus:
            self.free_gpus[device] -= share
        self.workers[worker.number] = worker
        self._expect(worker)
        self.segments[worker.segment].warm = False

    def is_ready(self, number: int) -> None:
        """Mark a worker as set up."""
        worker = self.workers[number]
        if worker.life is Life.STARTING:
            worker.life = Life.READY
            worker.idle_since = self.now
        self.segments[worker.segment].node_ready = True

    def given(self, number: int, group: int, count: int, *, alone: bool) -> tuple[Queued, ...]:
        """Assign the next `count` tasks of the segment's queue to a worker as group number `group`."""
        worker = self.workers[number]
        segment = self.segments[worker.segment]
        items = tuple(segment.pop(alone=alone) for _ in range(count))
        worker.assigned.append((group, items))
        worker.alone = alone
        worker.fresh = False
        self._expect(worker)
        return items

    def sent(self, number: int) -> int:
        """Record a result sent to the next segment; returns how many more the worker may send right away."""
        worker = self.workers[number]
        worker.owed += 1
        return 0 if self.segments[worker.segment + 1].full else self.unblocked(number)

    def unblocked(self, number: int) -> int:
        """Grant a waiting worker more credit; returns how many results."""
        worker = self.workers[number]
        owed, worker.owed = worker.owed, 0
        return owed

    def done(
        self, number: int, group: int, *, seconds: float | None = None, held: int = 0, taken: int | None = None
    ) -> tuple[Queued, ...]:
        """Record that a worker finished a group in `seconds`, holding `held` bytes; returns the tasks of the group.

        `taken` is the worker's own peak since it was started.
        """
        worker = self.workers[number]
        segment = self.segments[worker.segment]
        if seconds is not None:
            segment.took(seconds)
        if taken is not None:
            self._note_memory(worker, segment, held, taken)
        worker.idle_since = self.now
        worker.alone = False
        found = next(((place, items) for place, (known, items) in enumerate(worker.assigned) if known == group), None)
        if found is None:
            return ()
        del worker.assigned[found[0]]
        self._expect(worker)
        return found[1]

    def _note_memory(self, worker: Worker, segment: SegmentState, held: int, taken: int) -> None:
        worker.groups += 1
        worker.held, worker.taken = held, taken
        segment.worker_bytes = max(taken, segment.worker_bytes or 0)
        if worker.groups == 1:
            worker.first_held, worker.first_taken = held, taken
            return
        if held - worker.first_held > min(_MOST_GROWTH_BYTES, self.budget / 4 / len(self.workers)):
            worker.due = True
        known, segment.leak_bytes = segment.leak_bytes, (taken - worker.first_taken) // (worker.groups - 1)
        if known is None or segment.leak_bytes > known:
            for other in self.of(segment.index):
                self._expect(other)

    def _keeps(self, worker: Worker) -> int:
        """Bytes that a worker may retain from its next group; while unknown, as much as it retained from its first."""
        known = self.segments[worker.segment].leak_bytes
        return worker.held if known is None else known

    def _expect(self, worker: Worker) -> None:
        """Update the estimates for a worker after an event."""
        segment = self.segments[worker.segment]
        if not worker.assigned:
            expected = worker.held
        elif not worker.groups:
            expected = segment.worker_bytes or 0
        else:
            expected = worker.taken + len(worker.assigned) * self._keeps(worker)
        self.expected += expected - worker.expected
        worker.expected = expected

    def leaves(self, number: int, *, recycled: bool) -> None:
        """Mark a worker as leaving."""
        worker = self.workers[number]
        worker.life = Life.LEAVING
        if recycled:
            self.segments[worker.segment].last_recycled_at = self.now
        if worker.gpus:
            self.moved_at = self.now

    def ended(self, number: int) -> Worker:
        """Remove a worker that has ended; the caller handles its assigned tasks."""
        worker = self.workers.pop(number)
        self.expected -= worker.expected
        share = self._gpu_share(worker)
        for device in worker.gpus:
            self.free_gpus[device] += share
        return worker

    def _gpu_share(self, worker: Worker) -> float:
        share = self.segments[worker.segment].gpus
        return share if share < 1 else 1.0
