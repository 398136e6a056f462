"""Runs a plan in the calling process: no workers, nothing sent anywhere. For small inputs, debugging and tests."""

from __future__ import annotations

import itertools
import time
from typing import Any

from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.parts import Leaf
from gristmill.backends.plan import ExecutionPlan
from gristmill.backends.runner import SegmentRunner, set_up_node
from gristmill.backends.work import Work
from gristmill.observe.events import TaskFinished
from gristmill.tasks.base import Lineage, Task

_HERE = "0"


def run_in_process(plan: ExecutionPlan, work: Work) -> None:
    """Push one task after the other through all segments; a task's results go on before the next one is taken."""
    runners = [
        SegmentRunner(segment, plan.settings, first=segment.index == 0, whole_partitions=plan.whole_partitions)
        for segment in plan.segments
    ]
    started: list[SegmentRunner] = []
    failed = True
    try:
        for runner in runners:
            for stage in runner.segment.stages:
                set_up_node(stage, NodeInfo(_HERE), WorkerMetadata(_HERE))
            runner.setup(WorkerMetadata(_HERE))
            started.append(runner)
        size = plan.segments[0].batch_size
        tasks = work.tasks()
        while group := list(itertools.islice(tasks, size)):
            _push(group, 0, runners, work)
        failed = False
    finally:
        problem: Exception | None = None
        for runner in started:
            try:
                runner.teardown()
            except Exception as error:
                problem = problem or error
        if problem is not None and not failed:  # else what went wrong first is what the user must see
            raise problem


def _push(tasks: list[Task[Any]], place: int, runners: list[SegmentRunner], work: Work) -> None:
    if place == len(runners):
        for task in tasks:
            lineage = task._lineage
            assert lineage is not None
            work.deliver(_task_leaf(task, lineage))
        return
    runner = runners[place]
    begun = time.perf_counter()
    following: list[Task[Any]] = []
    size = runners[place + 1].segment.batch_size if place + 1 < len(runners) else 1
    for item in runner.run(tasks):
        if isinstance(item, Leaf):
            work.deliver(item)
            continue
        following.append(item)
        if len(following) >= size:
            spent = time.perf_counter()
            _push(following, place + 1, runners, work)
            begun += time.perf_counter() - spent
            following = []
    lineage = tasks[0]._lineage
    assert lineage is not None
    work.events.emit(
        TaskFinished(
            tasks[0].task_id,
            lineage.partition,
            place,
            0,
            time.perf_counter() - begun,
            runner.call_counts.counts,
            runner.call_counts.times,
        )
    )
    if following:
        _push(following, place + 1, runners, work)


def _task_leaf(task: Task[Any], lineage: Lineage) -> Leaf:
    return Leaf(lineage.partition, lineage.partition_id, lineage.path, lineage.trail, task=task)
