"""The coordinator of a run: a small actor that keeps what dying workers can no longer report.

It knows which tasks killed their workers and how far they had got, which nodes are set up, and which workers exist.
Workers contact it only when something has gone wrong, when they start and when they end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gristmill.backends.ray.usage import WorkerUsage
from gristmill.errors import GristmillError, WorkerError
from gristmill.execution.recovery import Attempts, Hints, Place
from gristmill.observe.events import WorkerStarted, WorkerStopped

_DIED = "worker died"
_OVERDUE = "time limit"


@dataclass(slots=True)
class _TaskState:
    """A task that runs alone because an earlier attempt killed its worker."""

    attempts: Attempts = field(default_factory=Attempts)
    running: bool = False
    place: Place | None = None
    overdue: bool = False
    hopeless: bool = False


@dataclass(slots=True)
class _WorkerState:
    """A worker that has started and not yet ended."""

    number: int
    segment: int
    pid: int
    handle: Any


class Drained(NamedTuple):
    """The coordinator's reports to the driver: events, errors, and workers that are still running or have grown."""

    events: list[WorkerStarted | WorkerStopped]
    problems: list[GristmillError]
    workers: int
    grown: set[str]
    usages: list[WorkerUsage]


class Coordinator:
    """The state of the coordinator; its methods are quick and never block."""

    def __init__(self) -> None:
        self._tasks: dict[str, _TaskState] = {}
        self._nodes: dict[tuple[str, int], str | None] = {}
        self._workers: dict[str, _WorkerState] = {}
        self._started = 0
        self._events: list[WorkerStarted | WorkerStopped] = []
        self._problems: list[GristmillError] = []
        self._replaced_at: dict[int, float] = {}
        self._grown: set[str] = set()
        self._usages: list[WorkerUsage] = []

    # --- tasks ---

    def start_task(self, key: str) -> Hints | GristmillError:
        """Start the task `key` alone in a worker. Returns what is known about it, or the error that ends the run.

        A task that is started again without having finished has killed its worker.
        """
        task = self._tasks.setdefault(key, _TaskState())
        if task.running or task.overdue:
            cause = _OVERDUE if task.overdue else _DIED
            again = task.attempts.died(task.place, cause, was_alone=task.running, certain=task.overdue)
            task.hopeless = task.hopeless or not again
        task.running, task.place, task.overdue = True, None, False
        if task.hopeless:
            return WorkerError(
                f"{key} has killed its worker {task.attempts.deaths} times, and no single document could be identified "
                "as the cause. Committed output is intact; remove the cause and run the same command again to resume.",
                task=key,
                cause=_DIED,
            )
        return task.attempts.hints

    def report_place(self, key: str, place: Place) -> None:
        """The worker that runs `key` is now at `place`."""
        self._tasks.setdefault(key, _TaskState()).place = place

    def report_overdue(self, key: str, place: Place) -> None:
        """The worker that runs `key` stops because a document exceeded its time limit."""
        task = self._tasks.setdefault(key, _TaskState())
        task.place, task.overdue = place, True

    def finish_task(self, key: str) -> None:
        """The task `key` is done."""
        self._tasks.pop(key, None)

    def release_task(self, key: str) -> None:
        """The worker of `key` was stopped from outside: the task did not cause it."""
        if key in self._tasks:
            self._tasks[key].running = False

    def release_all_tasks(self) -> None:
        """All workers were stopped from outside: no task caused it."""
        for task in self._tasks.values():
            task.running = False

    # --- nodes ---

    def claim_node(self, node: str, segment: int, worker: str) -> str | None:
        """The worker that sets up `node` for a segment: the first one to ask; None once the node is set up."""
        return self._nodes.setdefault((node, segment), worker)

    def node_done(self, node: str, segment: int) -> None:
        """The node is set up for the segment."""
        self._nodes[node, segment] = None

    def node_failed(self, node: str, segment: int) -> None:
        """The worker that was setting up the node is gone or has failed; let another one try."""
        if self._nodes.get((node, segment)) is not None:
            del self._nodes[node, segment]

    # --- workers ---

    def worker_started(self, worker: str, segment: int, pid: int, gpus: tuple[int, ...], handle: Any) -> int:
        """A worker has started; returns its number."""
        self.worker_lost(worker)
        number = self._started
        self._started += 1
        self._workers[worker] = _WorkerState(number, segment, pid, handle)
        self._events.append(WorkerStarted(number, segment, pid, gpus))
        return number

    def worker_ended(self, worker: str, cause: str, problem: GristmillError | None) -> None:
        """A worker has torn down and is about to exit."""
        if problem is not None:
            self._problems.append(problem)
        self._remove(worker, cause, expected=True)

    def worker_lost(self, worker: str) -> None:
        """Remove a worker that ended without tearing down."""
        self._remove(worker, "died", expected=False)

    def _remove(self, worker: str, cause: str, *, expected: bool) -> None:
        state = self._workers.pop(worker, None)
        if state is not None:
            self._events.append(WorkerStopped(state.number, state.segment, state.pid, cause, expected=expected))

    def may_replace_worker(self, segment: int, interval_s: float) -> bool:
        """Whether a worker of the segment may be replaced now; one at a time, with `interval_s` between them."""
        now = time.monotonic()
        if now - self._replaced_at.get(segment, now - interval_s) < interval_s:
            return False
        self._replaced_at[segment] = now
        return True

    def workers(self) -> dict[str, Any]:
        """The workers that have started and not ended, with their handles."""
        return {worker: state.handle for worker, state in self._workers.items()}

    def worker_grew(self, worker: str) -> None:
        """Record that a worker's memory has grown so much that it should be replaced."""
        self._grown.add(worker)

    def note_usage(self, usage: WorkerUsage) -> None:
        """Record a worker's usage; the driver polls for it."""
        self._usages.append(usage)

    def drain(self) -> Drained:
        """Everything that happened since the last call."""
        drained = Drained(self._events, self._problems, len(self._workers), self._grown, self._usages)
        self._events, self._problems, self._usages = [], [], []
        return drained
