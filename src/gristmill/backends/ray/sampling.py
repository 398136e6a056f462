"""How things stand in a run on Ray, as far as the receipts of its workers tell: memory, workers, who is busy."""

from __future__ import annotations

import time
from collections import Counter

import psutil

from gristmill.backends.ray.parcels import Receipt
from gristmill.observe.events import Event, EventStream, Sample, WorkerStopped

_EVERY_S = 1.0


class Levels:
    """Emits a `Sample` about once a second, and with the first receipt; listens to hear of workers that end.

    Args:
        events: The events of the run.
        segments: How many segments its plan has.
    """

    def __init__(self, events: EventStream, segments: int) -> None:
        self._events = events
        self._segments = range(segments)
        self._segment_of: dict[int, int] = {}
        self._held: dict[int, int] = {}
        self._heard: set[int] = set()
        self._told_at = float("-inf")
        events.listen(self)

    def __call__(self, event: Event) -> None:
        """Forget a worker that has ended."""
        if isinstance(event, WorkerStopped):
            self._segment_of.pop(event.worker, None)
            self._held.pop(event.worker, None)
            self._heard.discard(event.worker)

    def take(self, receipt: Receipt) -> None:
        """Note what a worker tells about itself."""
        for event in receipt.events:
            self._segment_of[event.worker] = event.segment
            self._heard.add(event.worker)
            if receipt.memory:
                self._held[event.worker] = receipt.memory
        if self._heard and time.monotonic() - self._told_at >= _EVERY_S:
            self._tell()

    def _tell(self) -> None:
        workers = Counter(self._segment_of.values())
        busy = Counter(self._segment_of[worker] for worker in self._heard)
        none = (0,) * len(self._segments)
        self._events.emit(
            Sample(
                memory_bytes=held_memory() + sum(self._held.values()),
                shared_bytes=0,
                queued=none,
                queued_bytes=none,
                workers=tuple(workers[segment] for segment in self._segments),
                busy=tuple(busy[segment] for segment in self._segments),
            )
        )
        self._heard.clear()
        self._told_at = time.monotonic()


def held_memory() -> int:
    """The memory that is this process's own, in bytes: what lies in Ray's object store belongs to the node.

    Exact figures would cost the kernel a walk over the whole object store, many milliseconds for each look.
    """
    found = psutil.Process().memory_info()
    return int(found.rss - getattr(found, "shared", 0))
