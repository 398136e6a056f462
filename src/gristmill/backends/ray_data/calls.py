"""What Ray Data calls in its workers: a segment as a function or, where workers hold something, as an actor.

Every value that is handed on is a block of its own. So the number of blocks a call gives follows from its input alone,
which Ray needs to do a call again after a loss without losing or doubling anything.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Iterator
from typing import Any

import pandas as pd
import ray

from gristmill.backends.ray.parcels import Parcel, Receipt
from gristmill.backends.ray.worker import Order, SegmentWorker
from gristmill.backends.ray_data.lane import Lane

COLUMN = "item"
_TEARDOWN_S = 60.0
"""How long the end of a worker waits for the teardown of its stages."""

_workers: dict[tuple[str, int], SegmentWorker] = {}
"""The workers of this process for segments that hold nothing; they cost nothing to keep."""


def block(items: list[Any]) -> pd.DataFrame:
    """Values as rows of a block."""
    column = pd.Series([None] * len(items), dtype=object)
    for place, item in enumerate(items):
        column.iat[place] = item
    return pd.DataFrame({COLUMN: column})


class SegmentActor:
    """A worker that stays: set up once, torn down when Ray lets go of it."""

    def __init__(self, order: Order, restart_interval_s: float) -> None:
        self._interval = restart_interval_s
        self._calls = 0
        self._worker = SegmentWorker(order)
        self._lane = Lane()
        gpus = tuple(ray.get_gpu_ids())
        self._lane.call(lambda: self._worker.start(allocation=gpus))

    def __call__(self, frame: pd.DataFrame) -> Iterator[pd.DataFrame]:
        worker = self._worker
        # After one call at least: else a lifetime that is too short would never let any be done.
        if self._calls and worker.is_old and worker.may_retire(self._interval):
            # Nothing of this call has been done yet: Ray starts the actor again and gives it the call.
            self._lane.call(lambda: worker.end("recycled"))
            os._exit(0)
        self._calls += 1
        yield from _pushed(worker, frame, self._lane)

    def __del__(self) -> None:
        worker, lane = getattr(self, "_worker", None), getattr(self, "_lane", None)
        if worker is not None and lane is not None:
            with contextlib.suppress(queue.Empty):
                lane.call(worker.end, timeout_s=_TEARDOWN_S)
            lane.stop()


def run_segment(frame: pd.DataFrame, order: Order) -> Iterator[pd.DataFrame]:
    """A call for a segment that holds nothing between its calls."""
    key = (order.run, order.index)
    if key not in _workers:
        for other in [known for known in _workers if known[0] != order.run]:
            del _workers[other]
        _workers[key] = SegmentWorker(order)
    yield from _pushed(_workers[key], frame)


def _pushed(worker: SegmentWorker, frame: pd.DataFrame, lane: Lane | None = None) -> Iterator[pd.DataFrame]:
    items = list(frame[COLUMN])
    receipt = Receipt()
    for item in items:
        if isinstance(item, Receipt):
            receipt.add(item)
    parcels = [item for item in items if isinstance(item, Parcel)]
    careful = _attempt() > 0
    results = worker.run(parcels, careful=careful)
    for given in results if lane is None else lane.each(lambda: results):
        if isinstance(given, Parcel) or worker.order.last or given.error is not None:
            yield block([given])
        else:
            receipt.add(given)
    yield block([receipt])


def _attempt() -> int:
    """How often Ray has already begun this call."""
    core = ray._private.worker.global_worker.core_worker
    return int(core.get_current_task_attempt_number())
