"""Helpers of the engine in the driver: threads that deliver results and measure memory, and Ctrl-C handling."""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import FrameType, TracebackType
from typing import Any

from gristmill.backends.plan import ExecutionPlan
from gristmill.execution.driver import Work
from gristmill.execution.partition_output import TaskEnd
from gristmill.observe.events import EventStream
from gristmill.observe.memory import descendants, measure_tree
from gristmill.stages.base import FusedStage

_PERIOD_S = 0.25
_SHARE = 0.05
"""Maximum fraction of its time that the measuring thread may spend measuring."""


def compile_missing_kernels(plan: ExecutionPlan) -> None:
    """Compile missing kernels once, here, so that workers do not each compile their own.

    The first missing kernel makes `announced_compilation` start processes on the other cores to share the work.
    """
    from gristmill.kernels.ahead import compile_listed, missing, names_in

    jobs = missing(names_in([stage for segment in plan.segments for stage in segment.stages]))
    cached = not jobs
    if jobs:
        compile_listed(jobs)
        compile_listed(jobs, wait=True)  # for kernels that other processes are compiling
    for segment in plan.segments:
        for stage in segment.stages:
            members = stage.members if isinstance(stage, FusedStage) else (stage,)
            if not (cached and all(member.fork_safe for member in members)):
                stage.warm_up()


def compile_first_kernels(plan: ExecutionPlan, events: EventStream) -> None:
    """Do the same in a driver that has not loaded any kernels, on a machine that lacks compiled ones."""
    import gristmill.kernels.compiler  # noqa: F401 (which `announced_compilation` looks for)
    from gristmill.pipeline.run import announced_compilation

    with announced_compilation(events, plan):
        compile_missing_kernels(plan)


class Committer:
    """Passes ends of tasks to `Work` one after another; keeps the first error for the engine to raise."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._ends: queue.SimpleQueue[TaskEnd | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._abandoned = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="committer")
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether everything delivered so far has been processed."""
        return self._waiting == 0 or self.error is not None

    def deliver(self, end: TaskEnd) -> None:
        """Queue a result; returns immediately."""
        with self._lock:
            self._waiting += 1
        self._ends.put(end)

    def close(self) -> None:
        """Wait until everything is processed."""
        self._ends.put(None)
        self._thread.join()

    def abandon(self) -> None:
        """Stop processing; returns immediately."""
        self._abandoned = True
        self._ends.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the item that is being processed."""
        self._thread.join(timeout=timeout_s)

    def _run(self) -> None:
        while (end := self._ends.get()) is not None:
            if self._abandoned or self.error is not None:
                continue
            try:
                self._work.deliver(end)
            except Exception as error:
                self.error = error
            finally:
                with self._lock:
                    self._waiting -= 1


class MemoryMonitor:
    """The latest measurement of the memory of a run's processes, renewed a few times a second.

    The kernel walks page tables for it, which takes milliseconds for each process and much longer on a busy machine.

    Args:
        pids: Returns the processes to measure; called in the thread.
        workers: Returns those of them that are measured together with their child processes.

    Attributes:
        pss_bytes: Total memory.
        per_pid: Memory of each process.
    """

    def __init__(self, pids: Callable[[], Iterable[int]], workers: Callable[[], Iterable[int]]) -> None:
        self.pss_bytes = 0
        self.per_pid: dict[int, int] = {}
        self._pids = pids
        self._workers = workers
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True, name="memory-monitor")
        self._thread.start()

    def close(self) -> None:
        """Stop measuring; returns immediately."""
        self._over.set()

    def _measure(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            begun = time.monotonic()
            own = measure_tree(self._pids())
            trees = {pid: measure_tree([pid, *descendants(pid)]).pss_bytes for pid in self._workers()}
            self.pss_bytes, self.per_pid = own.pss_bytes + sum(trees.values()), {**own.per_pid, **trees}
            pause = max(_PERIOD_S, (time.monotonic() - begun) / _SHARE)


class Interrupts:
    """Turns Ctrl-C into a flag inside the context, to be checked between two steps.

    An exception in the middle of a message would break a connection. Only works in the main thread, and only if
    interrupts are not ignored; elsewhere the flag is never set.
    """

    def __init__(self) -> None:
        self.asked = False
        self._may_cut = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if before is not signal.SIG_IGN:
                self._before = before
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def may_cut(self, allowed: bool) -> Iterator[None]:
        """Let Ctrl-C raise immediately, if `allowed`; whatever it interrupts must not be used afterwards."""
        self._may_cut = allowed
        try:
            if allowed and self.asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_cut = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._may_cut:
            self._may_cut = False
            raise KeyboardInterrupt
