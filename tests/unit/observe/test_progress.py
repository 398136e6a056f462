"""The state of a run, folded from its events."""

from __future__ import annotations

import pytest

from gristmill.observe.display import RATE_WINDOW_S, Progress
from gristmill.observe.events import RecordsQuarantined, RunFinished, WorkerStarted, WorkerStopped
from tests.unit.observe.events_of_a_run import Clock, committed, sample, started, task


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def progress(clock: Clock) -> Progress:
    return Progress(now=clock)


def test_rows_by_stage(progress: Progress) -> None:
    progress(started())
    progress(task(0))
    progress(task(1))
    words = progress.stages["words"]
    assert list(progress.stages) == ["read", "words", "write"]
    assert (words.rows_in, words.rows_out, words.dropped) == (200, 120, {"too_few_words": 80})
    assert progress.rows_read == 200


def test_a_stage_that_was_not_announced_is_shown_too(progress: Progress) -> None:
    progress(started(stages=("read",)))
    progress(task())
    assert list(progress.stages) == ["read", "words", "write"]


def test_time_left_counts_only_what_this_run_did(progress: Progress, clock: Clock) -> None:
    progress(started(partitions=10, before=4))
    assert progress.partitions_done == 4
    assert progress.seconds_left is None
    clock.time += 20
    progress(committed(4))
    progress(committed(5))
    assert progress.seconds_left == pytest.approx(40)
    assert progress.rows_written == 120


def test_the_rate_is_that_of_the_last_half_minute(progress: Progress, clock: Clock) -> None:
    progress(started())
    for _ in range(100):
        clock.time += 1
        progress(task(rows=100))
    assert progress.rate == pytest.approx(100, rel=0.05)
    for _ in range(int(RATE_WINDOW_S) + 2):
        clock.time += 1
        progress(task(rows=1, dropped=0))
    assert progress.rate == pytest.approx(1, rel=0.5)


def test_no_time_has_passed(progress: Progress) -> None:
    progress(started())
    progress(task())
    assert progress.rate == 0


def test_workers_memory_and_queue(progress: Progress) -> None:
    progress(started())
    progress(WorkerStarted(1, 0, 11))
    progress(WorkerStarted(2, 0, 12))
    assert progress.workers == 2
    progress(WorkerStopped(1, 0, 11, "SIGKILL", expected=False))
    progress(WorkerStopped(2, 0, 12, "finished", expected=True))
    assert (progress.workers, progress.workers_lost) == (0, 1)
    progress(sample(memory=7, workers=3, busy=2, queued=4))
    progress(sample(memory=5, workers=3, busy=2, queued=4))
    assert (progress.memory_bytes, progress.peak_memory_bytes) == (5, 7)
    assert (progress.workers, progress.busy, progress.queued, progress.queued_bytes) == (3, 2, 4, 4000)


def test_quarantine_and_end(progress: Progress) -> None:
    progress(started())
    progress(RecordsQuarantined(0, "read", "not_json", 3))
    assert progress.quarantined == 3
    assert progress.status == "running"
    progress(RunFinished("failed", "no luck"))
    assert progress.status == "failed"
