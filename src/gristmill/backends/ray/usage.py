"""Resource use of workers on Ray: what each reports about itself, and the samples derived from it."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import psutil

from gristmill.observe.events import Event, EventStream, Sample, WorkerStopped

_SAMPLE_S = 1.0
_SILENT_S = 60.0
"""Seconds without a report after which a stateless process is considered ended."""

Queues: TypeAlias = Callable[[], tuple[Sequence[int], Sequence[int]]]
"""Yields the tasks and bytes queued before each segment."""


@dataclass(frozen=True, slots=True)
class WorkerUsage:
    """A worker's activity between the end of one group of tasks and the end of the next.

    Attributes:
        worker: Its name.
        number: Its number; -1 if it is stateless and has none.
        segment: Number of its segment.
        memory: Its memory in bytes, including child processes; 0 if not measured.
        idle_s: Seconds without work.
        blocked_s: Seconds spent waiting for a result to be collected.
        starting_s: Seconds of its setup; 0 if reported before.
        taken: Number of tasks in the group.
        taken_bytes: Their size.
        given: Number of tasks for the next segment.
        given_bytes: Their size.
    """

    worker: str
    number: int
    segment: int
    memory: int = 0
    idle_s: float = 0.0
    blocked_s: float = 0.0
    starting_s: float = 0.0
    taken: int = 0
    taken_bytes: int = 0
    given: int = 0
    given_bytes: int = 0


@dataclass(slots=True)
class _Seen:
    """The last known state of a worker."""

    number: int
    segment: int
    memory: int = 0
    at: float = 0.0


class Sampler:
    """Emits a `Sample` with the first report and then about once a second, from what workers report about themselves.

    Args:
        events: The events of the run; listened to, to notice workers that end.
        segments: Number of segments of its plan.
        partitions: Number of tasks of its first segment.
        queues: Returns the tasks and bytes queued before each segment, if reports arrive too late.
    """

    def __init__(
        self, events: EventStream, segments: int, *, partitions: int = 0, queues: Queues | None = None
    ) -> None:
        self._events = events
        self._segments = range(segments)
        self._queues = queues or self._waiting
        self._workers: dict[tuple[str, int], _Seen] = {}
        self._active: set[tuple[str, int]] = set()
        self._ended: set[int] = set()
        self._arrived = [partitions] + [0] * (segments - 1)
        self._arrived_bytes = [0] * segments
        self._starved, self._blocked, self._starting = ([0.0] * segments for _ in range(3))
        self._nameless = itertools.count(-1, -1)
        self._sampled_at = float("-inf")
        events.listeners.append(self)

    def __call__(self, event: Event) -> None:
        """Forget a worker that has ended."""
        if isinstance(event, WorkerStopped):
            self._ended.add(event.worker)
            for name in [name for name, worker in self._workers.items() if worker.number == event.worker]:
                del self._workers[name]
                self._active.discard(name)

    def take(self, usages: Iterable[WorkerUsage]) -> None:
        """Record the reports of workers."""
        now = time.monotonic()
        for usage in usages:
            segment = usage.segment
            if usage.number not in self._ended:  # its earlier reports may still be on their way
                self._note(usage, now)
            self._arrived[segment] -= usage.taken
            self._arrived_bytes[segment] -= usage.taken_bytes if segment else 0
            if usage.given:
                self._arrived[segment + 1] += usage.given
                self._arrived_bytes[segment + 1] += usage.given_bytes
            waits = self._blocked if self._queues()[0][segment] else self._starved
            waits[segment] += usage.idle_s
            self._blocked[segment] += usage.blocked_s
            self._starting[segment] += usage.starting_s
        if self._active and now - self._sampled_at >= _SAMPLE_S:
            self._sample()

    def _note(self, usage: WorkerUsage, now: float) -> None:
        # A stateless process may work for several segments.
        name = (usage.worker, usage.segment)
        worker = self._workers.get(name)
        if worker is None or (worker.number != usage.number and usage.number >= 0):
            number = usage.number if usage.number >= 0 else next(self._nameless)
            worker = self._workers[name] = _Seen(number, usage.segment)
        worker.memory, worker.at = usage.memory or worker.memory, now
        self._active.add(name)

    def close(self) -> None:
        """Emit what has not been emitted yet."""
        if self._active:
            self._sample()
        self._events.listeners.remove(self)

    def _waiting(self) -> tuple[Sequence[int], Sequence[int]]:
        """Tasks passed to each segment and not finished there, with their size."""
        return [max(0, tasks) for tasks in self._arrived], [max(0, size) for size in self._arrived_bytes]

    def _sample(self) -> None:
        now = time.monotonic()
        for name, worker in list(self._workers.items()):
            if worker.number < 0 and now - worker.at > _SILENT_S:  # nothing reports when a task process ends
                del self._workers[name]
        held: list[dict[int, int]] = [{} for _ in self._segments]
        per_process: dict[str, int] = {}
        for (process, segment), worker in self._workers.items():
            held[segment][worker.number] = worker.memory
            per_process[process] = max(worker.memory, per_process.get(process, 0))
        busy = Counter(self._workers[name].segment for name in self._active if name in self._workers)
        queued, queued_bytes = self._queues()
        self._events.emit(
            Sample(
                memory_bytes=own_memory() + sum(per_process.values()),
                shared_bytes=0,
                queued=tuple(queued),
                queued_bytes=tuple(queued_bytes),
                workers=tuple(map(len, held)),
                busy=tuple(busy[segment] for segment in self._segments),
                worker_bytes=tuple(held),
                starved_s=tuple(self._starved),
                blocked_s=tuple(self._blocked),
                starting_s=tuple(self._starting),
            )
        )
        self._starved, self._blocked, self._starting = ([0.0] * len(self._segments) for _ in range(3))
        self._active.clear()
        self._sampled_at = now


def own_memory(pid: int | None = None) -> int:
    """The private memory of a process, in bytes: what is in Ray's object store belongs to the node.

    Exact figures would cost the kernel a walk over the whole object store, many milliseconds each time.
    """
    try:
        found = psutil.Process(pid).memory_info()
    except psutil.Error:  # it has ended
        return 0
    return int(found.rss - getattr(found, "shared", 0))
