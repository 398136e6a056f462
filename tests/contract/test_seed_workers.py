"""What the seeds say about workers, by the number of the checklist: 84, 110, 113 and 114, on real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.ledger.prove.verify import verify
from gristmill.observe.events import WorkerStarted, WorkerStopped
from gristmill.pipeline import Pipeline
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from tests.contract.executor_suite import make_input
from tests.contract.stages import Diary

FILES, ROWS = 12, 5


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return make_input(tmp_path / "in", files=FILES, rows=ROWS)


def _run(
    source: Path, stages: list[Any], *, rows: int = FILES * ROWS, **config: Any
) -> tuple[list[dict[str, Any]], list[Any]]:
    """What the stages wrote down, in order of time, and the events of the run."""
    folder = source.parent
    events: list[Any] = []
    reader = JsonlReader(str(source), files_per_partition=1)
    report = (
        Pipeline("workers", stages=[reader, *stages, JsonlWriter(str(folder / "out"))])
        .run(executor=LocalExecutor(config=config), listeners=[events.append], progress=False)
        .report
    )
    assert report.rows_written == rows
    assert verify(str(folder / "out")).ok
    lines = [line for path in (folder / "notes").iterdir() for line in path.read_text().splitlines()]
    return sorted((json.loads(line) for line in lines), key=lambda line: line["time"]), events


def _pids(notes: list[dict[str, Any]], stage: str) -> set[int]:
    return {note["pid"] for note in notes if note["stage"] == stage}


def test_084_cpu_stages_do_not_block_gpus(source: Path) -> None:
    folder = source.parent / "notes"
    # However long the GPU's worker takes to come: it is there before the others are through.
    stages = [Diary(folder, name="cpu", seconds=0.05, ahead="gpu"), Diary(folder, name="gpu", gpus=1)]
    notes, _ = _run(source, stages, num_cpus=3, num_gpus=1)
    given = {note["pid"]: note["gpus"] for note in notes if note["what"] == "setup"}
    assert all(given[pid] == [] for pid in _pids(notes, "cpu")), "a stage without a GPU must not hold one"
    assert all(len(given[pid]) == 1 for pid in _pids(notes, "gpu"))
    assert not _pids(notes, "cpu") & _pids(notes, "gpu")
    first = min(note["time"] for note in notes if note["stage"] == "gpu" and note["what"] == "process")
    last = max(note["begun"] for note in notes if note["stage"] == "cpu" and note["what"] == "process")
    assert first < last, "the GPU worked while CPU stages had still work to begin"


@pytest.mark.parametrize("files", [1, FILES])
def test_110_the_number_of_workers_follows_the_workload(source: Path, files: int) -> None:
    folder = source.parent / "notes"
    for path in sorted(source.iterdir())[files:]:
        path.unlink()
    stages = [Diary(folder, name="light"), Diary(folder, name="heavy", seconds=0.3, crew=2)]
    notes, events = _run(source, stages, rows=files * ROWS, num_cpus=4)
    if files == 1:
        assert len(_pids(notes, "heavy")) == 1, "for one batch one worker is enough"
        return
    heavy = 2  # the number of its segment
    changes = [
        (event.segment, 1 if isinstance(event, WorkerStarted) else -1)
        for event in events
        if isinstance(event, WorkerStarted | WorkerStopped)
    ]
    alive = {segment: 0 for segment, _ in changes}
    steps: list[dict[int, int]] = []
    for segment, change in changes:
        alive[segment] += change
        steps.append(dict(alive))
    most = max(step[heavy] for step in steps)
    assert most > 1
    assert any(step[heavy] == 1 for step in steps[: next(i for i, step in enumerate(steps) if step[heavy] == most)])
    assert any(step[heavy] > 1 and step[0] < max(other[0] for other in steps) for step in steps), "others shrink"
    busy = {note["pid"] for note in notes if note["stage"] == "heavy" and note["what"] == "process"}
    assert len(busy) > 1, "they share the work"


def test_113_every_worker_is_a_process_of_its_own(source: Path) -> None:
    folder = source.parent / "notes"
    notes, _ = _run(source, [Diary(folder, name="alone", seconds=0.05, crew=2)], num_cpus=3)
    pids = _pids(notes, "alone")
    assert len(pids) > 1
    assert Diary.seen == [], "nothing that a worker does is seen by the process that started it"
    for pid in pids:
        mine = [note["seen"] for note in notes if note["pid"] == pid and note["what"] == "process"]
        assert mine == list(range(1, len(mine) + 1)), "nor by another worker"


@pytest.mark.parametrize("where", ["executor", "stage"])
def test_114_workers_are_replaced_by_age_and_torn_down(source: Path, where: str) -> None:
    folder = source.parent / "notes"
    stage = Diary(folder, name="ageing", seconds=0.05)
    ages = {"worker_max_lifetime_m": 0.001, "worker_restart_interval_m": 0.0}
    config = {"num_cpus": 2, "max_workers_per_stage": 1, **(ages if where == "executor" else {})}
    notes, events = _run(source, [stage if where == "executor" else stage.with_(xenna_stage_spec=ages)], **config)
    pids = _pids(notes, "ageing")
    assert len(pids) > 3
    for what in ("setup", "teardown"):
        assert sorted(note["pid"] for note in notes if note["what"] == what) == sorted(pids)
    stopped = [event for event in events if isinstance(event, WorkerStopped)]
    assert all(event.expected for event in stopped)
    tasks = [note["task"] for note in notes if note["what"] == "process"]
    assert len(tasks) == len(set(tasks)), "no batch is done twice for it"
