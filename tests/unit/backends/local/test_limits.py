"""When a worker is stopped for its time or its memory, and what is concluded about its documents."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gristmill.backends.local.jobs import AssignedWork
from gristmill.backends.local.limits import MemoryGuard, TimeLimits, WorkerLimits, took_too_much, why_stopped
from gristmill.backends.local.messages import StatusWriter, WorkerStatus
from gristmill.backends.plan import Segment
from gristmill.errors import WorkerError
from gristmill.execution.recovery import FEW, Hints, by_time
from gristmill.observe.memory import private_bytes
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources


class Stage(ProcessingStage):
    name = "stage"

    def process(self, task: Any) -> Any:
        return task


def segment(*stages: ProcessingStage, gpus: float = 0.0) -> Segment:
    return Segment(0, stages or (Stage(),), Resources(cpus=1.0, gpus=gpus), 1, None)


class FakeProcess:
    """A worker that is busy since some seconds; remembers whether it was killed."""

    def __init__(self, seconds: float = 0.0, *, stage: int = 0, rows: int = 100, pid: int = 0) -> None:
        self.page = bytearray(512)
        self.pid = pid
        self.killed = False
        self.busy(seconds, stage=stage, rows=rows)

    def busy(self, seconds: float, *, stage: int = 0, rows: int = 100) -> None:
        began = time.monotonic_ns() - int(seconds * 1e9)
        StatusWriter(self.page).write(WorkerStatus(7, 0, stage, 0, rows, began))

    def kill(self) -> None:
        self.killed = True


def worker(seconds: float, **options: Any) -> AssignedWork:
    process: Any = FakeProcess(seconds, **options)
    return AssignedWork(process, None, groups={7: (1,)})  # type: ignore[arg-type]


def was_killed(assigned: AssignedWork) -> bool:
    return bool(assigned.process.killed)  # type: ignore[attr-defined]


def test_a_batch_over_the_default_limit_proves_nothing_and_is_given_in_pieces_from_then_on() -> None:
    limits = TimeLimits(segment(), 300.0)
    assert not limits.hints(Hints()).slow
    slow = worker(0.0)
    limits.enforce(slow)  # its first call
    slow.process.busy(301.0)  # type: ignore[attr-defined]
    limits.enforce(slow)
    assert was_killed(slow)
    assert slow.innocent
    assert why_stopped(slow) == "time limit"
    assert limits.hints(Hints()).slow == {0: 300.0}


def test_a_piece_or_a_single_document_over_the_default_limit_is_to_blame() -> None:
    limits = TimeLimits(segment(), 300.0)
    for options in ({"rows": 1}, {"rows": 16}):
        found = worker(601.0, **options)
        found.slow_stages[7] = {0: 300.0} if options["rows"] > 1 else ()
        limits.enforce(found)
        assert was_killed(found)
        assert not found.innocent


@pytest.mark.parametrize("seconds", [301.0, 599.0])
def test_the_first_call_has_time_to_load_and_compile(seconds: float) -> None:
    first = worker(seconds)
    TimeLimits(segment(), 300.0).enforce(first)
    assert not was_killed(first)


def test_what_the_default_limit_is_not_for() -> None:
    model = Stage()
    model.needs_own_worker = True
    for made, default_s, options in (
        (segment(model), 300.0, {}),
        (segment(gpus=1.0), 300.0, {}),
        (segment(), None, {}),
        (segment(), 300.0, {"rows": 0}),  # a reader or a writer
        (segment(), 300.0, {"stage": -1}),
    ):
        patient = worker(10_000.0, **options)
        TimeLimits(made, default_s).enforce(patient)
        assert not was_killed(patient)


@pytest.mark.parametrize(
    ("default_s", "seconds", "over"), [(300.0, 61.0, True), (30.0, 31.0, True), (None, 61.0, False)]
)
def test_the_shorter_of_the_executors_and_the_stages_default_holds(
    default_s: float | None, seconds: float, over: bool
) -> None:
    stage = Stage()
    stage.default_time_limit_s = 60.0
    busy = worker(0.0, rows=1)
    limits = TimeLimits(segment(stage), default_s)
    limits.enforce(busy)  # its first call may take twice as long
    busy.process.busy(seconds, rows=1)  # type: ignore[attr-defined]
    limits.enforce(busy)
    assert was_killed(busy) == over


def test_a_limit_of_its_own_holds_as_it_is() -> None:
    for seconds, over in ((1.5, False), (2.5, True)):
        own = worker(seconds)
        TimeLimits(segment(Stage().with_(time_limit_s=2.0)), 300.0).enforce(own)
        assert (was_killed(own), own.over_limit, own.innocent) == (over, over, False)


def test_pieces_of_a_slow_stage_stay_small() -> None:
    pieces = list(by_time(0, 100, 300.0, FEW))
    assert pieces[0] == (0, 1)
    assert pieces[-1][1] == 100
    assert max(hi - lo for lo, hi in pieces) == FEW
    assert [hi for _, hi in pieces[:-1]] == [lo for lo, _ in pieces[1:]]


def test_memory_that_a_process_takes_is_seen_at_once() -> None:
    before = private_bytes(os.getpid())
    taken = np.ones(64 << 20, np.uint8)
    assert private_bytes(os.getpid()) - before > 60 << 20
    assert private_bytes(0) == 0
    del taken


@pytest.mark.parametrize(("held_before", "leaks"), [(0, False), (1 << 40, True)])
def test_the_guard_stops_a_worker_and_tells_a_leak_from_a_batch(held_before: int, leaks: bool) -> None:
    process: Any = FakeProcess(1.0, pid=os.getpid())
    large = AssignedWork(process, None, held=held_before)  # type: ignore[arg-type]
    small = AssignedWork(FakeProcess(1.0), None)  # type: ignore[arg-type]
    guard = MemoryGuard(lambda: [small, large], lambda: 1 << 20)
    try:
        until = time.monotonic() + 10
        while not process.killed and time.monotonic() < until:
            time.sleep(0.001)
    finally:
        guard.close()
    assert (large.over_memory, large.leaks, why_stopped(large)) == (True, leaks, "memory budget")
    assert not was_killed(small)
    assert why_stopped(small) is None


def test_what_is_said_about_memory_names_the_stage() -> None:
    status = SimpleNamespace(stage=0)
    for alone, on_memory, fails in (
        (True, "quarantine", False),
        (False, "fail", False),
        (True, "fail", True),
    ):
        limits = WorkerLimits(None, 10**9, on_memory)  # type: ignore[arg-type]
        told = took_too_much(segment(), status, limits, alone=alone)  # type: ignore[arg-type]
        assert isinstance(told, WorkerError) == fails
        assert "Stage 'stage' alone used more memory than this run is allowed (1.0 GB)" in str(told)
