"""The history of a run: points over time that never become too many, and what its workers waited for."""

from __future__ import annotations

import itertools
from pathlib import Path

from gristmill.ledger.record import run_record
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_history import MOST_POINTS, RunHistory
from gristmill.ledger.record.run_record import RunRecorder, read_run
from gristmill.ledger.record.trail import StageCount
from gristmill.observe.events import (
    PartitionFailed,
    RunFinished,
    RunStarted,
    Sample,
    SegmentPlan,
    TaskFinished,
    WorkerStarted,
    WorkerStopped,
)

_SEGMENTS = (SegmentPlan(0, ("read", "words"), 1.0, 0.0, 1, None), SegmentPlan(1, ("write",), 1.0, 0.0, 1, None))


def _sample(at: float, *, memory: int = 1, busy: tuple[int, int] = (1, 0)) -> Sample:
    return Sample(
        memory_bytes=memory,
        shared_bytes=0,
        queued=(3, 1),
        queued_bytes=(30, 10),
        workers=(2, 1),
        busy=busy,
        worker_bytes=({1: 70, 2: 90}, {3: 50}),
        starved_s=(0.0, 0.5),
        blocked_s=(0.25, 0.0),
        starting_s=(0.0, 0.125),
        at=at,
    )


def test_a_long_run_keeps_points_from_its_beginning_to_its_end() -> None:
    history = RunHistory(1000.0)
    history.begin(_SEGMENTS)
    for number in range(4 * 3600 * 4):  # four hours of four samples a second
        history.add(_sample(1000.0 + number / 4), number, number // 2)
    found = history.record()
    seconds = found["seconds"]
    assert MOST_POINTS // 2 <= len(seconds) <= MOST_POINTS
    assert seconds[0] == 0.0
    assert seconds[-1] > 4 * 3600 - 200
    gaps = {round(after - before, 3) for before, after in itertools.pairwise(seconds)}
    assert max(gaps) <= 2 * min(gaps), "points are evenly spread, but for the last thinning"
    for segment in found["segments"]:
        assert {len(segment[name]) for name in ("workers", "busy", "queued", "queued_bytes")} == {len(seconds)}
    assert len(found["rows_read"]) == len(found["rows_written"]) == len(found["memory_bytes"]) == len(seconds)


def test_segments_of_earlier_steps_are_zero_elsewhere() -> None:
    history = RunHistory(0.0)
    history.begin((SegmentPlan(0, ("hash",), 1.0, 0.0, 1, None),))
    history.add(Sample(5, 0, (7,), (70,), (4,), (4,), ({0: 1},), at=1.0), 0, 0)
    history.begin(_SEGMENTS)
    history.add(_sample(2.0), 10, 5)
    segments = {tuple(one["stages"]): one for one in history.record()["segments"]}
    assert segments["hash",]["workers"] == [4, 0]
    assert segments["read", "words"]["workers"] == [0, 2]
    assert segments["write",]["queued_bytes"] == [0, 10]


def _started(recorder: RunRecorder) -> None:
    recorder(RunStarted("small", "local", ("read", "words", "write"), _SEGMENTS, 2, 0, 10, None, at=1000.0))


def test_the_record_tells_what_stages_waited_for() -> None:
    recorder = RunRecorder()
    _started(recorder)
    recorder(WorkerStarted(1, 0, 11))
    recorder(_sample(1001.0, memory=500))
    counts = {"read": StageCount(created=8, rows_out=8), "write": StageCount(rows_in=8, rows_out=8)}
    recorder(TaskFinished("a", 0, 0, 1, 0.5, counts, {}, attempt=3))
    recorder(WorkerStopped(1, 0, 11, "SIGKILL", expected=False))
    recorder(WorkerStopped(2, 0, 12, "recycled", expected=True))
    recorder(PartitionFailed(1, "b", "words"))
    recorder(_sample(1002.0, memory=400))
    recorder(RunFinished("done", at=1003.0))
    record = recorder.record()
    assert record["history"]["seconds"] == [1.0, 2.0, 3.0]
    assert record["history"]["rows_read"] == [0, 8, 8]
    assert record["history"]["rows_written"] == [0, 8, 8]
    assert record["history"]["memory_bytes"] == [500, 400, 400]
    stages = {stage["stage"]: stage for stage in record["stages"]}
    keys = ("starved_seconds", "blocked_seconds", "starting_seconds", "peak_memory_bytes")
    assert [stages["read"][key] for key in keys] == [0.0, 0.5, 0.0, 90]
    assert [stages["write"][key] for key in keys] == [1.0, 0.0, 0.25, 50]
    keys = ("retries", "crashes", "recycles")
    assert [stages["read"][key] for key in keys] == [2, 1, 1]
    assert [stages["write"][key] for key in keys] == [0, 0, 0]


def test_a_failed_partition_is_a_failure_of_its_stage() -> None:
    recorder = RunRecorder()
    _started(recorder)
    recorder(TaskFinished("a", 0, 0, 1, 0.5, {"words": StageCount(rows_in=1, rows_out=1)}, {}))
    recorder(PartitionFailed(1, "b", "words"))
    assert [stage["failures"] for stage in recorder.record()["stages"]] == [1]


def test_a_short_run_in_one_process_has_an_empty_history() -> None:
    recorder = RunRecorder()
    _started(recorder)
    recorder(TaskFinished("a", 0, 0, 0, 0.5, {"read": StageCount(created=1, rows_out=1)}, {}))
    recorder(Sample(700, 0, (0, 0), (0, 0), (1, 1), (0, 0)))
    recorder(RunFinished("done", at=1000.1))
    record = recorder.record()
    assert set(record["history"]) == {"seconds", "rows_read", "rows_written", "memory_bytes", "segments"}
    assert not any(record["history"].values())
    assert record["stages"][0]["peak_memory_bytes"] == 700


def test_the_history_is_on_disk_while_the_run_goes_on(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "out"))
    recorder = RunRecorder(folder)
    _started(recorder)
    recorder(_sample(1001.0))
    recorder._written_at = float("-inf")  # five seconds later
    recorder(_sample(1006.0))
    record = read_run(folder)
    assert record is not None
    assert record["status"] == run_record.RUNNING
    assert record["history"]["seconds"] == [1.0]
