"""The state of a run as its events tell it: what a display shows, without a word about how it is shown."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from gristmill.ledger.record.trail import StageCount
from gristmill.observe.events import (
    Event,
    Notice,
    PartitionCommitted,
    RecordsQuarantined,
    RunFinished,
    RunStarted,
    Sample,
    TaskFinished,
    WorkerStarted,
    WorkerStopped,
)

RATE_WINDOW_S = 30.0
"""The rate is that of the last half minute: long enough to be steady, short enough to show a change."""


@dataclass(slots=True)
class StageProgress:
    """What one stage has done so far in this run."""

    name: str
    rows_in: int = 0
    rows_out: int = 0
    dropped: int = 0
    quarantined: int = 0
    busy_s: float = 0.0

    @property
    def share_dropped(self) -> float | None:
        """The share of its rows that it dropped; None before the first one."""
        return self.dropped / self.rows_in if self.rows_in else None

    def add(self, count: StageCount) -> None:
        """Add what one task brought."""
        self.rows_in += count.rows_in
        self.rows_out += count.rows_out
        self.dropped += sum(count.dropped.values())
        self.quarantined += sum(count.quarantined.values())


@dataclass
class Progress:
    """Folds events into the figures that a display needs.

    Attributes:
        now: The clock; tests give their own.
    """

    now: Callable[[], float] = time.monotonic
    pipeline: str = ""
    executor: str = ""
    output: str | None = None
    status: str = "starting"
    error: str | None = None
    stages: dict[str, StageProgress] = field(default_factory=dict)
    partitions: int = 0
    partitions_done: int = 0
    partitions_done_before: int = 0
    rows_written: int = 0
    bytes_written: int = 0
    rows_read: int = 0
    quarantined: int = 0
    workers: int = 0
    busy: int = 0
    queued: int = 0
    queued_bytes: int = 0
    memory_bytes: int = 0
    peak_memory_bytes: int = 0
    workers_lost: int = 0
    notices: list[Notice] = field(default_factory=list)
    _alive: set[int] = field(default_factory=set)
    _sampled: bool = False
    _recent: deque[tuple[float, int]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.started = self.now()
        self._recent.append((self.started, 0))

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, TaskFinished):
            self._task(event)
        elif isinstance(event, Sample):
            self._sampled = True
            self.memory_bytes = event.memory_bytes
            self.peak_memory_bytes = max(self.peak_memory_bytes, event.memory_bytes)
            self.queued, self.queued_bytes = sum(event.queued), sum(event.queued_bytes)
            self.workers, self.busy = sum(event.workers), sum(event.busy)
        elif isinstance(event, PartitionCommitted):
            self.partitions_done += 1
            self.rows_written += event.rows
            self.bytes_written += event.bytes
        elif isinstance(event, RecordsQuarantined):
            self.quarantined += event.records
        elif isinstance(event, WorkerStarted | WorkerStopped):
            self._worker(event)
        elif isinstance(event, Notice):
            self.notices.append(event)
        elif isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, RunFinished):
            self.status, self.error = event.status, event.error

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began."""
        return self.now() - self.started

    @property
    def rate(self) -> float:
        """Rows read per second, lately."""
        begin, rows = self._recent[0]
        seconds = self.now() - begin
        return (self.rows_read - rows) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """How long the rest will take at the speed so far; None while nothing tells."""
        done_now = self.partitions_done - self.partitions_done_before
        if done_now <= 0 or self.partitions <= 0:
            return None
        return self.elapsed_s / done_now * (self.partitions - self.partitions_done)

    def stage_rate(self, stage: StageProgress) -> float:
        """Rows per second that `stage` took in, over the whole run."""
        return stage.rows_in / self.elapsed_s if self.elapsed_s > 0 else 0.0

    def _start(self, event: RunStarted) -> None:
        self.pipeline, self.executor, self.output = event.pipeline, event.executor, event.output
        self.status = "running"
        self.partitions = event.partitions
        self.partitions_done = self.partitions_done_before = event.partitions_done_before
        self.stages = {name: StageProgress(name) for name in event.stages}
        self.started = self.now()
        self._recent = deque([(self.started, 0)])

    def _task(self, event: TaskFinished) -> None:
        for name, count in event.counts.items():
            stage = self.stages.setdefault(name, StageProgress(name))
            stage.add(count)
            # A source takes in nothing and creates its rows.
            if count.created and not count.rows_in:
                self.rows_read += count.created
        for name, spent in event.times.items():
            if name in self.stages:
                self.stages[name].busy_s += spent.busy_s
        moment = self.now()
        self._recent.append((moment, self.rows_read))
        while len(self._recent) > 2 and moment - self._recent[1][0] > RATE_WINDOW_S:
            self._recent.popleft()

    def _worker(self, event: WorkerStarted | WorkerStopped) -> None:
        if isinstance(event, WorkerStarted):
            self._alive.add(event.worker)
        else:
            self._alive.discard(event.worker)
            self.workers_lost += not event.expected
        if not self._sampled:
            self.workers = len(self._alive)
