"""A machine on paper: workers share its processors, messages take a moment, time passes; no process, no clock.

Shows what a schedule costs in seconds, which the random worlds of `test_scheduler.py` cannot: there only order counts.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

from gristmill.backends.local.scheduler import Give, Start, Stop, Unblock, next_action
from gristmill.backends.local.state import Queued, SegmentState, State, Worker


@dataclass
class Busy:
    """A worker's process: what it has received, and how much of its present work is left."""

    arrived: deque[int] = field(default_factory=deque)
    group: int | None = None
    left_s: float = 0.0


class Machine:
    """Runs `tasks` tasks through stages that need `costs` CPU seconds each.

    Args:
        state: The scheduler's state.
        costs: CPU seconds for one task of each segment.
        tasks: How many tasks there are.
        latency_s: How long a message is on its way, either way.
        start_s: How long a worker takes to start.
        changed_at: After so many tasks of a segment, other costs.
    """

    def __init__(
        self,
        state: State,
        costs: list[float],
        tasks: int,
        *,
        latency_s: float = 0.0015,
        start_s: float = 0.05,
        changed_at: tuple[int, list[float]] | None = None,
    ) -> None:
        self.state = state
        self.costs = costs
        self.tasks = tasks
        self.latency_s = latency_s
        self.start_s = start_s
        self.changed_at = changed_at
        self.now = 0.0
        self.busy: dict[int, Busy] = {}
        self.mail: list[tuple[float, int, str, int, int]] = []
        self.order = itertools.count()
        self.numbers = itertools.count()
        self.groups = itertools.count()
        self.held: dict[int, tuple[Queued, ...]] = {}
        self.done = [0] * len(costs)
        self.first_at: float | None = None
        self.spans: dict[int, list[tuple[float, float]]] = {}
        self.segment_of: dict[int, int] = {}
        self.most_running = 0
        self.most_queued = [0] * len(costs)

    def run(self) -> float:
        """The seconds from the first task that is handed out to the last that is done."""
        self._decide()
        while not self.state.finished:
            self._step()
            self._decide()
        assert self.first_at is not None
        return self.now - self.first_at

    def _decide(self) -> None:
        self.state.now = self.now
        while True:
            self._refill()
            action = next_action(self.state)
            if action is None:
                return
            if isinstance(action, Start):
                number = next(self.numbers)
                self.state.started(Worker(number, action.segment, action.gpus, warm=action.warm))
                self.busy[number] = Busy()
                self.segment_of[number] = action.segment
                self._post(self.start_s, "ready", number)
            elif isinstance(action, Give):
                group = next(self.groups)
                self.held[group] = self.state.given(action.worker, group, action.count, alone=action.alone)
                self.first_at = self.now if self.first_at is None else self.first_at
                self._post(self.latency_s, "arrives", action.worker, group)
            elif isinstance(action, Unblock):
                self.state.unblocked(action.worker)
            elif isinstance(action, Stop):
                self.state.leaves(action.worker, recycled=action.recycled)
                self._post(self.latency_s, "gone", action.worker)

    def _refill(self) -> None:
        first = self.state.segments[0]
        while self.tasks and len(first.queue) < first.batch_size * (first.max_workers + 1) * (1 + first.prefetch):
            self.tasks -= 1
            first.put(Queued(next(self.numbers), 1))
        self.state.source_left = self.tasks > 0

    def _post(self, delay_s: float, what: str, worker: int, group: int = -1) -> None:
        heapq.heappush(self.mail, (self.now + delay_s, next(self.order), what, worker, group))

    def _step(self) -> None:
        """Let time pass until something happens."""
        running = [one for one in self.busy.values() if one.group is not None]
        self.most_running = max(self.most_running, len(running))
        rate = min(1.0, self.state.cpus / len(running)) if running else 1.0
        soonest = min((one.left_s / rate for one in running), default=float("inf"))
        mail = self.mail[0][0] - self.now if self.mail else float("inf")
        passed = max(0.0, min(soonest, mail))
        assert passed < float("inf"), f"nothing can happen any more: {self.state}"
        self.now += passed
        for one in running:
            one.left_s -= passed * rate
        for number, one in list(self.busy.items()):
            if one.group is not None and one.left_s <= 1e-12:
                self._post(self.latency_s, "done", number, one.group)
                self.spans[number][-1] = (self.spans[number][-1][0], self.now)
                one.group = None
                self._begin(number)
        while self.mail and self.mail[0][0] <= self.now:
            _, _, what, number, group = heapq.heappop(self.mail)
            self._happen(what, number, group)

    def _happen(self, what: str, number: int, group: int) -> None:
        if what == "ready":
            self.state.is_ready(number)
        elif what == "gone":
            self.state.ended(number)
            del self.busy[number]
        elif what == "arrives":
            self.busy[number].arrived.append(group)
            self._begin(number)
        else:
            segment = self.state.workers[number].segment
            items = self.held.pop(group)
            if segment + 1 < len(self.state.segments):
                following = self.state.segments[segment + 1]
                for _ in items:
                    following.put(Queued(next(self.numbers), 1))
                    self.state.sent(number)
                self.most_queued[segment + 1] = max(self.most_queued[segment + 1], len(following.queue))
            self.state.done(number, group, seconds=len(items) * self._cost(segment))
            self.done[segment] += len(items)

    def _begin(self, number: int) -> None:
        one = self.busy[number]
        if one.group is None and one.arrived:
            one.group = one.arrived.popleft()
            segment = self.state.workers[number].segment
            one.left_s = len(self.held[one.group]) * self._cost(segment)
            self.spans.setdefault(number, []).append((self.now, self.now))

    def _cost(self, segment: int) -> float:
        if self.changed_at is not None and self.done[segment] >= self.changed_at[0]:
            return self.changed_at[1][segment]
        return self.costs[segment]


def machine(
    costs: list[float],
    tasks: int,
    *,
    cpus: float = 2.0,
    overlap: float = 2.0,
    workers: list[int] | None = None,
    gpus: list[float] | None = None,
    **options: object,
) -> Machine:
    """A machine as the executor would set it up; with a fixed number of workers where `workers` are given."""
    segments = [
        SegmentState(
            index,
            cpus=1.0 if gpus is None or not gpus[index] else 0.1,
            gpus=0.0 if gpus is None else gpus[index],
            batch_size=1,
            fixed_workers=None if workers is None else workers[index],
            max_workers=int(cpus) if workers is None else workers[index],
            prefetch=1,
            warm=index > 0,
        )
        for index in range(len(costs))
    ]
    if gpus is not None:
        for segment in segments:
            segment.max_workers = 1 if segment.gpus else segment.max_workers
    state = State(segments, cpus=cpus, overlap=overlap, free_gpus=[1.0] if gpus is not None else [])
    return Machine(state, costs, tasks, **options)  # type: ignore[arg-type]
