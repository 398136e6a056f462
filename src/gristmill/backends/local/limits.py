"""Stops workers that take too long for a document, or use more memory than the run may have.

A stage without its own time limit gets a whole batch at once, and may take any time for it. Exceeding the default limit
therefore first only means that the batch must be processed in small pieces; a piece that exceeds it is searched for the
document.

A process can allocate gigabytes within a second. A separate thread therefore checks the memory of each worker, more
often the closer it is to its limit, using a figure that costs the kernel nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gristmill.backends.local.fork_server import server_pid
from gristmill.backends.local.jobs import AssignedWork
from gristmill.backends.local.messages import WorkerStatus, read_status
from gristmill.backends.plan import Segment
from gristmill.errors import WorkerError
from gristmill.execution.recovery import Hints
from gristmill.execution.stage_call import default_limit
from gristmill.figures import format_size
from gristmill.observe.memory import private_bytes

OVER_TIME = "time limit"
OVER_MEMORY = "memory budget"

_FIRST_CALL = 2
"""The first call of a stage in a worker may take this many times the limit: it may compile or load something."""
_FASTEST = 16 << 30
"""Upper bound of the bytes that a process can allocate in a second."""
_SHORTEST_S, _LONGEST_S = 0.01, 0.25


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Time and memory limits of a worker.

    Attributes:
        time_s: Maximum seconds per document in a stage without its own time limit; None for no limit.
        memory: Memory limit of the run; a worker that reaches it alone is stopped.
        on_memory: What then happens to its documents: the one that needs too much memory is found and quarantined, or
            the run fails.
    """

    time_s: float | None
    memory: int
    on_memory: Literal["quarantine", "fail"] = "quarantine"


class TimeLimits:
    """The time limits of one segment, those of its stages and the default one.

    Args:
        segment: The stages.
        default_s: Limit of stages that have none and hold no model; None for no limit.
    """

    def __init__(self, segment: Segment, default_s: float | None) -> None:
        self._own = [stage.time_limit_s for stage in segment.stages]
        exempt = default_s is None or bool(segment.resources.gpus)
        self._default = [
            None if exempt or stage.needs_own_worker else default_limit(stage, default_s) for stage in segment.stages
        ]
        self._slow: dict[int, float] = {}

    def hints(self, found: Hints) -> Hints:
        """The attempts of a task, with the stages that receive its documents in small pieces from now on."""
        return Hints(found.slices, found.poison, dict(self._slow))

    def enforce(self, assigned: AssignedWork) -> None:
        """Stop a worker that has been busy with the same documents for too long."""
        status = read_status(assigned.process.page)
        if assigned.over_limit or status.task not in assigned.groups or not 0 <= status.stage < len(self._own):
            return
        own, default = self._own[status.stage], self._default[status.stage]
        if own is not None:
            assigned.over_limit = status.running_s > own
        elif default is not None and status.hi > status.lo and self._is_over(assigned, status, default):
            known = status.stage in assigned.slow_stages.get(status.task, ()) or status.hi - status.lo == 1
            assigned.over_limit, assigned.innocent = True, not known
            self._slow[status.stage] = default
        if assigned.over_limit:
            assigned.process.kill()

    @staticmethod
    def _is_over(assigned: AssignedWork, status: WorkerStatus, limit_s: float) -> bool:
        first = assigned.first_calls.setdefault(status.stage, status.started_ns)
        return status.running_s > limit_s * (_FIRST_CALL if status.started_ns == first else 1)


def why_stopped(assigned: AssignedWork) -> str | None:
    """The limit that a worker exceeded, as it appears in the record; None if it was not stopped."""
    return OVER_TIME if assigned.over_limit else OVER_MEMORY if assigned.over_memory else None


def took_too_much(segment: Segment, status: WorkerStatus, limits: WorkerLimits, *, alone: bool) -> WorkerError | str:
    """The message about a worker that was stopped for its memory, raised as an error if that is configured.

    Only a worker that processed a single task in its lifetime shows that the stage needs that much at once rather than
    accumulating it.
    """
    name = f"Stage {segment.stages[status.stage].name!r}" if 0 <= status.stage < len(segment.stages) else segment.name
    said = f"{name} alone used more memory than this run is allowed ({format_size(limits.memory)})"
    if not alone or limits.on_memory == "quarantine":
        return f"{said} and was stopped; its documents are retried, in smaller pieces if needed."
    return WorkerError(
        f"{said}. Use smaller batches (batch_bytes of the reader), raise --memory-budget (memory_budget), or "
        "quarantine such documents with on_memory='quarantine'. Run the same command again to resume.",
        cause=OVER_MEMORY,
    )


class MemoryGuard:
    """Stops every worker that exceeds the memory limit by itself.

    Args:
        workers: Returns the workers; called in the thread.
        limit: Returns the maximum private memory of a worker; called in the thread.
    """

    def __init__(self, workers: Callable[[], Iterable[AssignedWork]], limit: Callable[[], int]) -> None:
        self._workers = workers
        self._limit = limit
        self._over = threading.Event()
        threading.Thread(target=self._watch, daemon=True, name="memory-guard").start()

    def close(self) -> None:
        """Stop enforcing limits; returns at once."""
        self._over.set()

    def _watch(self) -> None:
        shared, measured_at, pause = 0, float("-inf"), 0.0
        while not self._over.wait(pause):
            if time.monotonic() - measured_at > 1:
                shared, measured_at = private_bytes(server_pid() or 0), time.monotonic()
            limit, room = self._limit(), _FASTEST
            for assigned in self._workers():
                held = private_bytes(assigned.process.pid) - shared
                began = read_status(assigned.process.page).started_ns
                if began != assigned.call_began:
                    assigned.call_began, assigned.held_before = began, min(held, assigned.held)
                assigned.held = held
                if held > limit and not assigned.over_memory:
                    assigned.over_memory, assigned.leaks = True, assigned.held_before > limit / 2
                    assigned.process.kill()
                room = min(room, limit - held)
            pause = min(max(room / _FASTEST, _SHORTEST_S), _LONGEST_S)
