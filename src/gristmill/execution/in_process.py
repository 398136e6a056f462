"""Runs a plan in the calling process: no workers, nothing sent anywhere. For small inputs, debugging and tests."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.plan import ExecutionPlan
from gristmill.execution.driver import Work
from gristmill.execution.partition_output import TaskEnd
from gristmill.execution.runner import SegmentRunner, set_up_node
from gristmill.execution.stage_call import LimitedCalls, StepLog
from gristmill.observe.events import Sample, TaskFinished
from gristmill.observe.memory import measure_tree
from gristmill.tasks.base import Task
from gristmill.tracking.origins import lineage_of

_HERE = "0"
_SAMPLE_S = 5.0
"""Minimum seconds between two samples, taken when a task ends. A short run has one, at its end."""


def run_in_process(
    plan: ExecutionPlan,
    work: Work,
    *,
    time_limit_s: float | None = None,
    step_logs: Sequence[StepLog] | None = None,
) -> None:
    """Push one task after the other through all segments; a task's results are passed on before the next one starts.

    Args:
        plan: What to run.
        work: Where tasks come from and results go.
        time_limit_s: Time limit of a document in a stage, as far as it can be interrupted here (`LimitedCalls`).
        step_logs: The receiver of every step, for each segment that has one.
    """
    calls = LimitedCalls()
    whole = plan.whole_partitions
    runners = [
        SegmentRunner(
            segment,
            plan.settings,
            first=segment.index == 0,
            whole_partitions=whole,
            calls=calls,
            step_log=step_logs[segment.index] if step_logs else None,
        )
        for segment in plan.segments
    ]
    # Other threads cannot do this, and a program that uses the signal itself is left alone.
    in_main_thread = threading.get_ident() == threading.main_thread().ident
    if in_main_thread and signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
        calls.limit_s = time_limit_s
        signal.signal(signal.SIGALRM, calls.interrupt)
    started: list[SegmentRunner] = []
    failed = True
    highest = _highest_memory()
    try:
        for runner in runners:
            metadata = WorkerMetadata(_HERE, {"gpus": list(range(math.ceil(runner.segment.resources.gpus)))})
            for stage in runner.segment.stages:
                set_up_node(stage, NodeInfo(_HERE), metadata)
            runner.setup(metadata)
            started.append(runner)
        flow = _Flow(runners, work)
        for task in work.tasks():
            if flow.add(0, task):
                flow.run(0)
        for place in range(len(runners)):  # what is still queued, from the front
            flow.run(place)
        failed = False
    finally:
        if signal.getsignal(signal.SIGALRM) == calls.interrupt:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
        peak = _highest_memory()
        if peak <= highest:  # an earlier peak hides that of the run
            peak = measure_tree([os.getpid()]).pss_bytes
        none = (0,) * len(runners)
        work.events.emit(Sample(peak, 0, none, none, (1,) * len(runners), none))
        problem: Exception | None = None
        for runner in started:
            try:
                runner.teardown()
            except Exception as error:
                problem = problem or error
        if problem is not None and not failed:  # otherwise the user must see the first error
            raise problem


def _highest_memory() -> int:
    """Peak memory of this process, in bytes."""
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class _Flow:
    """Tasks between segments: each segment gets the number per call that it requests, and the rest at the end."""

    def __init__(self, runners: list[SegmentRunner], work: Work) -> None:
        self._runners = runners
        self._work = work
        self._waiting: dict[int, list[Task[Any]]] = defaultdict(list)
        self._below = 0.0
        self._sampled_at = time.monotonic()

    def add(self, place: int, task: Task[Any]) -> bool:
        """Queue a task for segment number `place`; returns whether it should run now."""
        self._waiting[place].append(task)
        return len(self._waiting[place]) >= self._runners[place].segment.batch_size

    def run(self, place: int) -> None:
        """Run segment number `place` on its queued tasks."""
        tasks = self._waiting.pop(place, [])
        if not tasks:
            return
        runner = self._runners[place]
        begun, before = time.perf_counter(), self._below
        for item in runner.run(tasks):
            handed_on, below = time.perf_counter(), self._below
            if isinstance(item, TaskEnd):
                self._work.deliver(item)
            elif place + 1 == len(self._runners):
                self._work.deliver(TaskEnd(lineage_of(item), task=item))
            elif self.add(place + 1, item):
                self.run(place + 1)
            self._below = below + time.perf_counter() - handed_on
        # Time taken by later segments is counted there.
        seconds = time.perf_counter() - begun - (self._below - before)
        self._work.events.emit(
            TaskFinished(
                tasks[0].task_id,
                tasks[0].partition,
                place,
                0,
                seconds,
                runner.call_counts.counts,
                runner.call_counts.times,
            )
        )
        if time.monotonic() - self._sampled_at >= _SAMPLE_S:
            self._sample(place)

    def _sample(self, place: int) -> None:
        """Report progress after segment number `place` has worked."""
        self._sampled_at = time.monotonic()
        held = measure_tree([os.getpid()]).pss_bytes
        every = range(len(self._runners))
        self._work.events.emit(
            Sample(
                memory_bytes=held,
                shared_bytes=0,
                queued=tuple(len(self._waiting[segment]) for segment in every),
                queued_bytes=(0,) * len(every),
                workers=(1,) * len(every),
                busy=tuple(int(segment == place) for segment in every),
                worker_bytes=({0: held},) * len(every),
            )
        )
