"""The events of a run. The runner and the executors emit them; display, report and metrics only listen.

Nothing else measures: every figure shown anywhere comes from one of these events.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gristmill.ledger.record.trail import StageCount, StageTime


@dataclass(frozen=True, slots=True)
class SegmentPlan:
    """One segment as listeners see it."""

    index: int
    stages: tuple[str, ...]
    cpus: float
    gpus: float
    batch_size: int
    workers: int | None


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The plan is ready and the run starts."""

    pipeline: str
    executor: str
    stages: tuple[str, ...]
    segments: tuple[SegmentPlan, ...]
    partitions: int
    partitions_done_before: int
    input_bytes: int
    output: str | None
    at: float = field(default_factory=time.time)
    input_format: str = ""


@dataclass(frozen=True, slots=True)
class TaskStarted:
    """A worker started a task."""

    task_id: str
    partition: int
    segment: int
    worker: int


@dataclass(frozen=True, slots=True)
class TaskFinished:
    """A segment finished a task; counts and times are those of this task alone, by stage name.

    `attempt` is above 1 if earlier attempts were lost, with their worker or by Ray.
    """

    task_id: str
    partition: int
    segment: int
    worker: int
    seconds: float
    counts: Mapping[str, StageCount]
    times: Mapping[str, StageTime]
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class RecordsQuarantined:
    """Some records could not be processed."""

    partition: int
    stage: str
    cause: str
    records: int


@dataclass(frozen=True, slots=True)
class PartitionCommitted:
    """The output of a partition is final."""

    partition: int
    partition_id: str
    rows: int
    bytes: int
    files: tuple[str, ...]
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class PartitionFailed:
    """A stage returned a `FailedTask` for a partition, which is left for the next run."""

    partition: int
    partition_id: str
    stage: str


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process started."""

    worker: int
    segment: int
    pid: int
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerStopped:
    """A worker ended; `cause` is `finished`, `recycled`, or how it died (`SIGKILL`, `out of memory`, …)."""

    worker: int
    segment: int
    pid: int
    cause: str
    expected: bool


@dataclass(frozen=True, slots=True)
class Sample:
    """A snapshot: memory of the process tree, queues and workers by segment.

    Attributes:
        memory_bytes: Memory of all processes of the run.
        shared_bytes: Memory of batches between workers.
        queued: Number of waiting tasks, by segment.
        queued_bytes: Their size.
        workers: Number of workers, by segment.
        busy: Number of these that are working.
        worker_bytes: By segment, the memory of each worker including its child processes.
        starved_s: By segment, worker-seconds without input since the previous sample.
        blocked_s: The same for workers with input that are not allowed to start or have no room for results.
        starting_s: The same for setup.
        running: Custom metrics of calls that have not returned yet, by name.
        at: Time of the snapshot.
    """

    memory_bytes: int
    shared_bytes: int
    queued: tuple[int, ...]
    queued_bytes: tuple[int, ...]
    workers: tuple[int, ...]
    busy: tuple[int, ...]
    worker_bytes: tuple[Mapping[int, int], ...] = ()
    starved_s: tuple[float, ...] = ()
    blocked_s: tuple[float, ...] = ()
    starting_s: tuple[float, ...] = ()
    running: Mapping[str, float] = field(default_factory=dict)
    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Notice:
    """A message for the user: a warning, or a line that explains a decision of the executor.

    A display shows a notice with `once` only once, even if several pipelines in a row emit it.
    """

    message: str
    level: str = "info"
    once: bool = False


@dataclass(frozen=True, slots=True)
class KernelCompiling:
    """A kernel is about to be compiled, which takes seconds and happens once per machine."""

    name: str


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is over; `status` is `done`, `failed` or `interrupted`."""

    status: str
    error: str | None = None
    at: float = field(default_factory=time.time)


Event: TypeAlias = (
    RunStarted
    | TaskStarted
    | TaskFinished
    | RecordsQuarantined
    | PartitionCommitted
    | PartitionFailed
    | WorkerStarted
    | WorkerStopped
    | Sample
    | Notice
    | KernelCompiling
    | RunFinished
)

Listener: TypeAlias = Callable[[Event], None]


@dataclass(slots=True)
class EventStream:
    """Passes every event to every listener, in order, in the driver process.

    Attributes:
        listeners: The listeners; a new one receives all later events.

    Example:
        >>> seen = []
        >>> stream = EventStream([seen.append])
        >>> stream.emit(Notice("hello"))
        >>> seen[0].message
        'hello'
    """

    listeners: list[Listener] = field(default_factory=list)

    def emit(self, event: Event) -> None:
        """Pass the event to all listeners."""
        for listener in self.listeners:
            listener(event)
