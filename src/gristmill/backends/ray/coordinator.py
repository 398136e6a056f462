"""The watch of a run: one small actor that remembers what dying workers cannot tell.

It knows which tasks killed their workers and how far those had come, which nodes are set up, and which workers there
are. Workers ask it only when something has gone wrong, when they start and when they end.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from gristmill.errors import GristmillError, WorkerError
from gristmill.execution.recovery import Attempts, Hints, Place
from gristmill.observe.events import WorkerStarted, WorkerStopped

_DIED = "worker died"
_OVERDUE = "time limit"


@dataclass(slots=True)
class _Case:
    """A task that is being watched."""

    attempts: Attempts = field(default_factory=Attempts)
    running: bool = False
    place: Place | None = None
    overdue: bool = False
    hopeless: bool = False


@dataclass(slots=True)
class _Hand:
    """A worker, from its start to its end."""

    number: int
    segment: int
    pid: int
    handle: Any


class Watch:
    """The state of the watch; every method is quick and none waits."""

    def __init__(self) -> None:
        self._cases: dict[str, _Case] = {}
        self._nodes: dict[tuple[str, int], tuple[str, int]] = {}
        self._hands: dict[str, _Hand] = {}
        self._numbers = 0
        self._events: list[WorkerStarted | WorkerStopped] = []
        self._problems: list[GristmillError] = []
        self._retired_at: dict[int, float] = {}
        self.node_setups: list[tuple[str, int]] = []

    def ping(self) -> bool:
        """Whether the watch is up."""
        return True

    # --- tasks ---

    def begin(self, key: str) -> Hints | GristmillError:
        """A worker takes up the task `key` alone; what it should know, or the error that ends the run.

        A task that is begun again without having been ended has killed its worker.
        """
        case = self._cases.setdefault(key, _Case())
        if case.running or case.overdue:
            cause = _OVERDUE if case.overdue else _DIED
            again = case.attempts.died(case.place, cause, was_alone=case.running, certain=case.overdue)
            case.hopeless = case.hopeless or not again
        case.running, case.place, case.overdue = True, None, False
        if case.hopeless:
            return WorkerError(
                f"{key} has killed its worker {case.attempts.deaths} times, and no single document could be found to "
                "be the cause. Committed output is intact; run again to go on after the cause is removed.",
                task=key,
                cause=_DIED,
            )
        return case.attempts.hints

    def at(self, key: str, place: Place) -> None:
        """The worker that has `key` is now at `place`."""
        case = self._cases.setdefault(key, _Case())
        case.place = place

    def overdue(self, key: str, place: Place) -> None:
        """The worker that has `key` gives up, because a document takes longer than its time limit."""
        case = self._cases.setdefault(key, _Case())
        case.place, case.overdue = place, True

    def end(self, key: str) -> None:
        """The task `key` is done."""
        self._cases.pop(key, None)

    def release(self, key: str) -> None:
        """The worker of `key` was ended from outside: that is not the task's fault."""
        case = self._cases.get(key)
        if case is not None:
            case.running = False

    def release_all(self) -> None:
        """All workers were ended from outside: no task is to blame."""
        for case in self._cases.values():
            case.running = False

    # --- nodes ---

    def node(self, node: str, segment: int, worker: str) -> str:
        """Whether `worker` shall set up `node` for a segment (`go`), wait for another (`wait`), or nothing (`done`)."""
        state = self._nodes.get((node, segment))
        if state is None:
            self._nodes[node, segment] = (worker, 0)
            return "go"
        owner, done = state
        if done:
            return "done"
        return "go" if owner == worker else f"wait {owner}"

    def node_done(self, node: str, segment: int) -> None:
        """The node is set up for the segment."""
        self._nodes[node, segment] = ("", 1)
        self.node_setups.append((node, segment))

    def node_failed(self, node: str, segment: int) -> None:
        """The worker that was to set up the node is gone or has failed; somebody else shall try."""
        if self._nodes.get((node, segment), ("", 1))[1] == 0:
            del self._nodes[node, segment]

    # --- workers ---

    def hello(self, worker: str, segment: int, pid: int, gpus: tuple[int, ...], handle: Any) -> int:
        """A worker has started; gives its number."""
        before = self._hands.pop(worker, None)
        if before is not None:
            self._events.append(WorkerStopped(before.number, before.segment, before.pid, "died", expected=False))
        number = self._numbers
        self._numbers += 1
        self._hands[worker] = _Hand(number, segment, pid, handle)
        self._events.append(WorkerStarted(number, segment, pid, gpus))
        return number

    def bye(self, worker: str, cause: str, problem: GristmillError | None) -> None:
        """A worker has torn down and ends."""
        hand = self._hands.pop(worker, None)
        if problem is not None:
            self._problems.append(problem)
        if hand is not None:
            self._events.append(WorkerStopped(hand.number, hand.segment, hand.pid, cause, expected=True))

    def may_retire(self, segment: int, interval_s: float) -> bool:
        """Whether a worker of the segment may be replaced now; one at a time, with `interval_s` between them."""
        now = time.monotonic()
        if now - self._retired_at.get(segment, now - interval_s) < interval_s:
            return False
        self._retired_at[segment] = now
        return True

    def lost(self, worker: str) -> None:
        """A worker is gone without a word."""
        hand = self._hands.pop(worker, None)
        if hand is not None:
            self._events.append(WorkerStopped(hand.number, hand.segment, hand.pid, "died", expected=False))

    def workers(self) -> dict[str, Any]:
        """The workers that have not said goodbye, with their handles."""
        return {worker: hand.handle for worker, hand in self._hands.items()}

    def drain(self) -> tuple[list[Any], list[GristmillError], int]:
        """The events and errors since the last call, and how many workers have not said goodbye."""
        events, self._events = self._events, []
        problems, self._problems = self._problems, []
        return events, problems, len(self._hands)
