"""`run.json` is built from events and the manifest, and raises alarms."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gristmill.ledger.record import run_record
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.run_record import AlarmLimits, RunRecorder, find_alarms, read_run
from gristmill.ledger.record.trail import StageCount, StageTime
from gristmill.observe.events import (
    Notice,
    PartitionCommitted,
    RunFinished,
    RunStarted,
    Sample,
    SegmentPlan,
    TaskFinished,
    WorkerStarted,
    WorkerStopped,
)
from tests.unit.ledger.making import STAGES, make_run, make_trail, record


def _started(output: str | None) -> RunStarted:
    segments = (SegmentPlan(0, STAGES[:3], 1.0, 0.0, 1, 2), SegmentPlan(1, STAGES[3:], 1.0, 0.0, 1, None))
    return RunStarted("small", "local", STAGES, segments, 2, 1, 1234, output, at=1000.0)


def test_a_resumed_run_counts_all_partitions_and_times_its_own(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    recorder = RunRecorder(folder)
    recorder(_started(folder.path))
    running = read_run(folder)
    assert running is not None
    assert running["status"] == "running"
    counts = make_trail().counts
    counts["words"].bytes_in = 77
    times = {"words": StageTime(2, 1.5, 10, {"tokens": 3.0, "odd": float("nan")})}
    recorder(WorkerStarted(1, 0, 11))
    recorder(WorkerStarted(2, 0, 12))
    recorder(WorkerStopped(2, 0, 12, "SIGKILL", False))
    recorder(WorkerStarted(3, 0, 13))
    recorder(TaskFinished("part-1", 1, 0, 1, 0.5, counts, times))
    recorder(PartitionCommitted(1, "part-1", 7, 99, ("part-1.jsonl",), at=1002.0))
    recorder(Sample(500, 10, (0, 0), (0, 0), (2, 1), (1, 0)))
    recorder(Sample(400, 10, (0, 0), (0, 0), (1, 1), (1, 0)))
    recorder(Notice("fine"))
    recorder(Notice("look", level="warning"))
    recorder(RunFinished("done", at=1004.5))
    run = read_run(folder)
    assert run is not None
    assert run.pop("seal")
    assert list(run.pop("sealed")) == ["plan.json"]
    assert run == json.loads(json.dumps(recorder.record()))
    assert (run["status"], run["pipeline"], run["executor"]) == ("done", "small", "local")
    assert (run["wall_seconds"], run["time_to_first_output_seconds"], run["peak_memory_bytes"]) == (4.5, 2.0, 500)
    assert (run["started"], run["finished"]) == ("1970-01-01T00:16:40.000+00:00", "1970-01-01T00:16:44.500+00:00")
    assert (run["rows_read"], run["rows_written"], run["rows_dropped"], run["rows_quarantined"]) == (24, 14, 8, 2)
    assert run["output_bytes"] == sum(path.stat().st_size for path in tmp_path.glob("*.jsonl"))
    assert [stage["stage"] for stage in run["stages"]] == list(STAGES)
    words = run["stages"][2]
    assert (words["rows_in"], words["rows_out"], words["dropped"]) == (22, 16, {"too_few_words": 6})
    assert (words["busy_seconds"], words["calls"], words["workers"], words["bytes_in"]) == (1.5, 2, 2, 77)
    assert words["custom"] == {"tokens": 3.0}
    assert run["stages"][3]["workers"] == 1
    assert run["worker_deaths"] == {"SIGKILL": 1}
    assert run["notices"] == [{"level": "warning", "message": "look"}]


def test_without_a_folder_the_counts_of_the_tasks_are_the_record() -> None:
    recorder = RunRecorder(None)
    recorder(_started(None))
    for number in range(2):
        recorder(TaskFinished(f"t{number}", number, 0, 0, 0.1, make_trail().counts, {}))
    recorder(RunFinished("failed", error="it broke", at=1001.0))
    run = recorder.record()
    assert (run["status"], run["error"], run["rows_read"], run["rows_written"]) == ("failed", "it broke", 24, 14)
    assert run["stages"][0]["workers"] == 1


def test_a_shrunken_input_is_an_alarm(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 2)
    first = record(folder, 2)
    assert first["alarms"] == []
    # A run that resumes reads less, which is no alarm; what counts is the input of all partitions.
    again = record(folder, 2, input_bytes=0)
    assert again["alarms"] == []
    assert again["source_bytes"] == first["source_bytes"] > 0
    entries = Manifest(folder).ordered()
    Manifest(folder).add(replace(entries[0], source=({**entries[0].source[0], "size": 1, "whole": True},)))
    [alarm] = record(folder, 2)["alarms"]
    assert alarm.startswith("The input shrank since the last run: ")
    assert alarm.endswith(f"bytes instead of {first['source_bytes']}.")


def test_stages_without_effect_or_with_too_much_are_alarms() -> None:
    stages = {
        "read": StageCount(created=20_000, rows_out=20_000),
        "idle": StageCount(rows_in=20_000, rows_out=20_000),
        "adds": StageCount(rows_in=20_000, rows_out=20_000),
        "clean": StageCount(rows_in=20_000, rows_out=20_000, changed=1),
        "harsh": StageCount(rows_in=20_000, rows_out=1_000, dropped={"short": 18_000, "odd": 1_000}),
        "fair": StageCount(rows_in=1_000, rows_out=100, dropped={"x": 900}),
        "write": StageCount(rows_in=100, rows_out=100),
    }
    found = find_alarms(stages, quiet_stages=frozenset(["adds"]))
    assert len(found) == 2
    assert found[0].startswith("Stage 'harsh' dropped 95.0% of 20000 rows, mostly as 'short' (18000)")
    assert found[1].startswith("Stage 'idle' had no effect on 20000 rows. Check")
    assert find_alarms(stages)[1].startswith("Stages 'idle', 'adds' had no effect on 20000 rows or more. Check their")
    stages |= {f"idle_{number}": StageCount(rows_in=15_000, rows_out=15_000) for number in range(9)}
    stages["last"] = StageCount(rows_in=100, rows_out=100)
    assert "'idle', 'adds', 'idle_0' and 8 more had no effect on 15000 rows or more." in find_alarms(stages)[1]
    assert find_alarms(stages, limits=AlarmLimits(max_dropped_share=None, no_effect_rows=None)) == []
    assert len(find_alarms(stages, limits=AlarmLimits(max_dropped_share=0.0))) == 3


def test_an_input_of_which_nothing_can_be_read_raises_an_alarm() -> None:
    stages = {"reader": StageCount(created=3, quarantined={"not_an_object": 2, "nul_byte": 1}), "writer": StageCount()}
    assert find_alarms(stages) == ["Stage 'reader' could not read anything: all 3 records are in quarantine."]


@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_record_is_renewed_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """So that a run that was killed tells where it was; not with every event, and on an object store less often."""
    folder = RunFolder(str(tmp_path) if place == "local" else f"memory://{tmp_path.name}")
    mine, other = ("_RENEW_S", "_RENEW_REMOTE_S") if place == "local" else ("_RENEW_REMOTE_S", "_RENEW_S")
    assert run_record._RENEW_REMOTE_S > run_record._RENEW_S >= 1
    recorder = RunRecorder(folder)
    recorder(_started(folder.path))
    event = TaskFinished("part-1", 1, 0, 1, 0.5, make_trail().counts, {})
    monkeypatch.setattr(run_record, other, 0.0)
    recorder(event)
    recorder(PartitionCommitted(1, "part-1", 7, 99, ("part-1.jsonl",), at=1002.0))
    recorder(Sample(500, 10, (0, 0), (0, 0), (2, 1), (1, 0)))
    assert _now(folder)["partitions_committed"] == 0, "written again too soon"
    monkeypatch.setattr(run_record, mine, 0.0)
    recorder(Sample(400, 10, (0, 0), (0, 0), (1, 1), (1, 0)))
    run = _now(folder)
    assert (run["status"], run["finished"], run["partitions"], run["partitions_committed"]) == ("running", None, 2, 1)
    assert (run["rows_read"], run["rows_written"], run["rows_dropped"]) == (12, 7, 4)
    assert run["updated"] > run["started"]
    assert run["seal"] == run_record.checksum(run)


def _now(folder: RunFolder) -> dict[str, Any]:
    run = read_run(folder)
    assert run is not None
    return run
