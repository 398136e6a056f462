"""What Ray Data calls in its workers: a segment as a function or, if its workers have state, as an actor.

Every value that is passed on is a separate block. The number of blocks that a call returns therefore depends only on
its input, which lets Ray repeat a call after a loss without losing or duplicating anything.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import ray

from gristmill.backends.ray.ray_internals import leave_after_call, task_attempt
from gristmill.backends.ray.worker import SegmentWorker, WorkerReport, WorkerSpec
from gristmill.backends.ray_data.background import StageThread
from gristmill.execution.packed_task import PackedTask

COLUMN = "item"
_HANDED_ON_S = 3.0
"""Time limit for Ray to pass on the end of a call."""
_KILLED_S = 60.0
"""Time limit for Ray to stop a worker that has asked for it."""
_TEARDOWN_S = 60.0
"""Time limit for the teardown of a worker's stages."""

_workers: dict[tuple[str, int], SegmentWorker] = {}
"""Stateless workers of this process; they cost nothing to keep."""


def block(items: list[Any]) -> pd.DataFrame:
    """Values as rows of a block."""
    column = pd.Series([None] * len(items), dtype=object)
    for place, item in enumerate(items):
        column.iat[place] = item
    return pd.DataFrame({COLUMN: column})


class SegmentActor:
    """A long-lived worker: set up once, torn down when Ray releases it.

    Ray makes several calls at once, each in its own thread. Their work is done one after the other in the stage thread,
    so the input of the next call is already there while the results of the last one are still being passed on.
    """

    def __init__(self, spec: WorkerSpec, restart_interval_s: float) -> None:
        self._interval = restart_interval_s
        self._calls = 0
        self._active = 0
        self._turn = threading.Condition()
        self._ending = False
        self._worker = SegmentWorker(spec)
        self._stage_thread = StageThread()
        gpus = tuple(ray.get_gpu_ids())
        self._stage_thread.call(lambda: self._worker.start(gpus))

    def __call__(self, frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
        self._begin()
        try:
            yield from _run(self._worker, frame, self._stage_thread)
        finally:
            with self._turn:
                self._active -= 1
                self._turn.notify_all()

    def _begin(self) -> None:
        """Begin a call, or stop this process if it is old or has grown; in that case nothing of the call was done.

        Ray restarts the actor and passes it the unfinished calls.
        """
        worker = self._worker
        with self._turn:
            # After at least one call: otherwise nothing would ever be done if the lifetime is too short.
            if not self._calls or not (self._ending or worker.may_be_replaced(self._interval)):
                self._calls += 1
                self._active += 1
                return
            self._ending = True
            self._turn.wait_for(lambda: self._active == 0)
            self._stage_thread.call(lambda: worker.end("recycled"))
            # The results of the last call are still on their way; if they were lost, the call would be repeated.
            time.sleep(_HANDED_ON_S)
            _start_anew()

    def __del__(self) -> None:
        worker, stage_thread = getattr(self, "_worker", None), getattr(self, "_stage_thread", None)
        if worker is not None and stage_thread is not None:
            with contextlib.suppress(TimeoutError):
                stage_thread.call(worker.end, timeout_s=_TEARDOWN_S)
            stage_thread.stop()


def _start_anew() -> None:
    """Have Ray stop this process and restart the actor in another one.

    If the process exited by itself, Ray would print that a worker died.
    """
    ray.kill(ray.get_runtime_context().current_actor, no_restart=False)
    time.sleep(_KILLED_S)
    os._exit(0)


def named_actor(name: str) -> type[SegmentActor]:
    """`SegmentActor` with the name that Ray shows for one segment."""
    return type(name, (SegmentActor,), {})


def named_call(name: str) -> Callable[[pd.DataFrame, WorkerSpec], Iterator[pd.DataFrame]]:
    """`run_segment` with the name that Ray shows for one segment."""

    def call(frame: pd.DataFrame, spec: WorkerSpec) -> Iterator[pd.DataFrame]:
        yield from run_segment(frame, spec)

    call.__name__ = call.__qualname__ = name
    return call


def run_segment(frame: pd.DataFrame, spec: WorkerSpec) -> Iterator[pd.DataFrame]:
    """A call for a segment without state between calls."""
    key = (spec.run, spec.index)
    if key not in _workers:
        for other in [known for known in _workers if known[0] != spec.run]:
            del _workers[other]
        _workers[key] = SegmentWorker(spec)
    yield from _run(_workers[key], frame)
    if _workers[key].has_grown:
        leave_after_call()


def _run(worker: SegmentWorker, frame: pd.DataFrame, stage_thread: StageThread | None = None) -> Iterator[pd.DataFrame]:
    items = list(frame[COLUMN])
    report = WorkerReport()
    for item in items:
        if isinstance(item, WorkerReport):
            report.add(item)
    tasks = [item for item in items if isinstance(item, PackedTask)]
    results = worker.run(tasks, careful=task_attempt() > 0, attempt=1 + task_attempt())
    for given in results if stage_thread is None else stage_thread.iterate(lambda: results):
        if isinstance(given, PackedTask) or worker.spec.last or given.error is not None:
            yield block([given])
        else:
            report.add(given)
    yield block([report])
