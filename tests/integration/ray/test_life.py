"""The life of workers on Ray: what they hold, when they are replaced, and what remains when the driver dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.ray_actor_pool import RayActorPoolExecutor
from gristmill.backends.ray_data import RayDataExecutor
from gristmill.backends.ray_data.dataset import SegmentDataset
from gristmill.errors import ResourcesError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.observe.events import WorkerStopped
from gristmill.pipeline import Pipeline
from gristmill.stages.resources import Resources
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from tests.contract import stages
from tests.contract.executor_suite import InProcess, contents, make_input
from tests.integration.ray.ray_stages import Gpu, Hangs, Leaks, LeaksInTasks, Noted, SaysVariable, notes

pytestmark = [pytest.mark.ray, pytest.mark.slow]
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def source(ray_cluster: str, tmp_path: Path) -> Path:
    return make_input(tmp_path / "in")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


def _pipeline(source: Path, output: Path | None, *middle: Any) -> Pipeline:
    ends = [] if output is None else [JsonlWriter(str(output))]
    return Pipeline("life", stages=[JsonlReader(str(source), files_per_partition=1), *middle, *ends])


def test_four_workers_share_a_gpu_and_others_hold_none(source: Path, folder: Path) -> None:
    fed, shared = Noted(folder, name="fed"), Gpu(folder, name="shared", seconds=0.1).with_(num_workers=4)
    _pipeline(source, None, stages.Stream(), fed, shared).run(executor=RayDataExecutor())
    set_up = notes(folder, "setup")
    assert [note["gpus"] for note in set_up if note["stage"] == "shared"] == [[0]] * 4
    assert {tuple(note["gpus"]) for note in set_up if note["stage"] == "fed"} == {()}
    assert {note["stage"]: note["visible"] for note in set_up} == {"shared": "0", "fed": ""}
    # They were there at the same time, not one after the other.
    mine = [note for note in set_up if note["stage"] == "shared"]
    gone = [note for note in notes(folder, "teardown") if note["stage"] == "shared"]
    assert len({note["pid"] for note in mine}) == 4
    assert max(note["at"] for note in mine) < min(note["at"] for note in gone)


def test_stages_without_a_gpu_see_none(source: Path) -> None:
    """As on a node with a GPU whose Ray leaves the variable alone, which is what it is told here."""
    leaves = {"CUDA_VISIBLE_DEVICES": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    executor = RayDataExecutor(config={"runtime_env": {"env_vars": leaves}})
    result = _pipeline(source, None, SaysVariable("CUDA_VISIBLE_DEVICES")).run(executor=executor)
    assert {text for task in result for text in task.column("said").to_pylist()} == {""}


def test_more_gpus_than_there_are_is_an_error_and_no_hang(source: Path, folder: Path) -> None:
    """Two stages that would each hold the only GPU, five quarters of it, and something that no node offers."""
    whole = Resources(cpus=0.1, gpus=1)
    both = [Gpu(folder, name=name).with_(resources=whole) for name in ("one", "two")]
    with pytest.raises(ResourcesError, match=r"one \(1 × 1\), two \(1 × 1\).*forever"):
        _pipeline(source, None, *both).run(executor=RayDataExecutor())
    with pytest.raises(ResourcesError, match=r"five \(5 × 0.25\)"):
        _pipeline(source, None, Gpu(folder, name="five").with_(num_workers=5)).run(executor=RayDataExecutor())
    licensed = stages.Shout().with_(ray_stage_spec={"ray_remote_args": {"resources": {"licence": 1}}})
    with pytest.raises(ResourcesError, match="1 of 'licence'"):
        _pipeline(source, None, licensed).run(executor=RayDataExecutor())
    assert not notes(folder, "setup")


@pytest.mark.cluster
def test_stages_that_run_one_after_the_other_can_each_have_the_gpu(source: Path, folder: Path) -> None:
    whole = Resources(cpus=0.1, gpus=1)
    both = [Gpu(folder, name=name).with_(resources=whole) for name in ("one", "two")]
    _pipeline(source, None, *both).run(executor=RayActorPoolExecutor())
    assert [note["gpus"] for note in notes(folder, "setup")] == [[0], [0]]


def _alarms(text: str) -> list[str]:
    """Lines that would frighten a user."""
    return [line for line in text.splitlines() if any(word in line for word in ("died", "killed", "fail", "retried"))]


def test_workers_are_replaced_when_they_are_old(
    source: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of that looks like a fault; and Ray shows its operators by the names of the stages."""
    build = SegmentDataset._dataset

    def build_and_print(self: SegmentDataset) -> Any:
        dataset = build(self)
        print(repr(dataset))
        return dataset

    monkeypatch.setattr(SegmentDataset, "_dataset", build_and_print)
    spec = {"worker_max_lifetime_m": 0.001, "worker_restart_interval_m": 0.0}
    old = Noted(folder, seconds=0.1).with_(xenna_stage_spec=spec, num_workers=1)
    events: list[Any] = []
    _pipeline(source, tmp_path / "out", stages.Stream(), old).run(
        executor=RayDataExecutor(config={"batches_per_call": 8}), listeners=[events.append]
    )
    stopped = [event.cause for event in events if isinstance(event, WorkerStopped)]
    assert "recycled" in stopped
    assert not [event for event in events if isinstance(event, WorkerStopped) and not event.expected]
    workers = [note["pid"] for note in notes(folder, "setup")]
    assert len(set(workers)) > 1
    assert sorted(workers) == sorted(note["pid"] for note in notes(folder, "teardown"))
    assert len(notes(folder, "node")) == 1
    other = tmp_path / "other"
    other.mkdir()
    _pipeline(source, tmp_path / "here", stages.Stream(), Noted(other)).run(executor=InProcess())
    assert _same(tmp_path / "out", tmp_path / "here")
    time.sleep(1.0)  # what Ray has to say comes a little later
    said = capsys.readouterr()
    assert not _alarms(said.out + said.err)
    assert "MapBatches(jsonl_reader -> stream)" in said.out
    assert "MapBatches(noted)" in said.out


def test_workers_are_replaced_when_their_memory_grows(
    source: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gristmill.backends.ray.stage_specs.MOST_GROWTH_BYTES", 40_000_000)
    leaks = Leaks(folder, seconds=0.3).with_(num_workers=1)
    events: list[Any] = []
    executor = RayDataExecutor(config={"batches_per_call": 1})
    _pipeline(source, tmp_path / "out", leaks).run(executor=executor, listeners=[events.append])
    assert [event.cause for event in events if isinstance(event, WorkerStopped)] == ["recycled", "finished"]
    assert len(notes(folder, "call")) == 4, "no call is made again"


def test_processes_of_tasks_are_replaced_when_their_memory_grows(
    ray_cluster: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("gristmill.backends.ray.stage_specs.MOST_GROWTH_BYTES", 40_000_000)
    source = make_input(tmp_path / "in", files=9, rows=2)
    _pipeline(source, tmp_path / "out", LeaksInTasks(folder)).run(executor=RayDataExecutor())
    calls = Counter(path.name.partition("-")[0] for path in folder.iterdir())
    assert sum(calls.values()) == 9, "no call is made again"
    assert max(calls.values()) <= 3, calls
    said = capsys.readouterr()
    assert not _alarms(said.out + said.err)


@pytest.mark.cluster
@pytest.mark.parametrize("cause", ["age", "growth"])
def test_workers_on_xenna_are_replaced_and_nothing_is_done_again(
    source: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    cause: str,
) -> None:
    pytest.importorskip("cosmos_xenna")
    from gristmill.backends.xenna import XennaExecutor

    if cause == "age":
        spec = {"worker_max_lifetime_m": 0.01, "worker_restart_interval_m": 0.0}
        stage = Noted(folder, seconds=0.2).with_(xenna_stage_spec=spec, num_workers=1)
    else:
        monkeypatch.setattr("gristmill.backends.ray.stage_specs.MOST_GROWTH_BYTES", 100_000_000)
        stage = Leaks(folder, seconds=0.3, name="noted").with_(num_workers=1)
    events: list[Any] = []
    result = _pipeline(source, None, stages.Stream(), stage).run(
        executor=XennaExecutor(config={"cpu_allocation_percentage": 1.0}), listeners=[events.append]
    )
    assert sum(task.num_items for task in result) == 160
    assert len(notes(folder, "call")) == 4 * 6
    assert len(notes(folder, "setup")) == len(notes(folder, "teardown")) > 1
    assert "recycled" in [event.cause for event in events if isinstance(event, WorkerStopped)]
    said = capsys.readouterr()
    assert not _alarms(said.out + said.err)


def test_a_document_that_takes_too_long_is_set_aside(source: Path, tmp_path: Path) -> None:
    result = _pipeline(source, tmp_path / "out", Hangs(50)).run(executor=RayDataExecutor())
    assert {stage.name: dict(stage.quarantined) for stage in result.report.stages}["hangs"] == {"time limit": 1}
    assert result.report.rows_written == 159
    assert verify(str(tmp_path / "out")).ok


def test_after_the_driver_was_killed_the_next_run_resumes(ray_cluster: str, source: Path, tmp_path: Path) -> None:
    """It used a cluster at RAY_ADDRESS, which stays as it is; some of its workers held something."""
    out = tmp_path / "out"
    (tmp_path / "notes").mkdir()
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.contract import stages\n"
        "from tests.integration.ray.test_life import _pipeline\n"
        "from gristmill.observe.events import PartitionCommitted\n"
        "def say(event):\n"
        "    if isinstance(event, PartitionCommitted): print('committed', flush=True)\n"
        "from tests.integration.ray.ray_stages import Noted\n"
        "notes = Noted(Path(sys.argv[3]), seconds=1.0)\n"
        "pipeline = _pipeline(Path(sys.argv[1]), Path(sys.argv[2]), notes)\n"
        "pipeline.run(executor='ray_data', listeners=[say], progress=False)\n"
    )
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables = {**os.environ, "PYTHONPATH": path, "RAY_ADDRESS": ray_cluster}
    driver = subprocess.Popen(
        [sys.executable, "-W", "ignore", str(script), str(source), str(out), str(tmp_path / "notes")],
        stdout=subprocess.PIPE,
        env=variables,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == b"committed\n"
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    pipeline = _pipeline(source, out, Noted(tmp_path / "notes", seconds=1.0))
    deadline = time.monotonic() + 60
    while True:
        try:
            result = pipeline.run(executor=RayDataExecutor())
            break
        except UsageError:  # the lock of a driver that is just being reaped
            assert time.monotonic() < deadline
            time.sleep(0.5)
    assert 1 <= result.report.partitions_done_before < 4
    _pipeline(source, tmp_path / "here", Noted(tmp_path / "notes")).run(executor=InProcess())
    assert _same(out, tmp_path / "here")
    assert verify(str(out)).ok


def test_the_environment_reaches_the_workers(source: Path) -> None:
    """That of the executor, and that of a stage, which comes first; also where the caller is already connected."""
    executor = RayDataExecutor(config={"runtime_env": {"env_vars": {"GRISTMILL_TEST_SAYS": "executor"}}})
    result = _pipeline(source, None, SaysVariable()).run(executor=executor)
    assert {text for task in result for text in task.column("said").to_pylist()} == {"executor"}
    mine = SaysVariable().with_(runtime_env={"env_vars": {"GRISTMILL_TEST_SAYS": "stage"}})
    result = _pipeline(source, None, mine).run(executor=executor)
    assert {text for task in result for text in task.column("said").to_pylist()} == {"stage"}


def test_a_folder_cannot_be_sent_through_a_connection_that_is_there(source: Path) -> None:
    executor = RayDataExecutor(config={"runtime_env": {"working_dir": "."}})
    with pytest.raises(UsageError, match=r"working_dir.*ray\.init"):
        _pipeline(source, None, stages.Shout()).run(executor=executor)


def test_a_wrong_token_is_explained(ray_cluster: str, tmp_path: Path) -> None:
    script = "from gristmill.backends.ray_data import RayDataExecutor; RayDataExecutor().capacity()"
    variables = {**os.environ, "RAY_ADDRESS": ray_cluster, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=240, check=False)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "RAY_AUTH_TOKEN" in last
    assert "ray get-auth-token" in last


def _same(one: Path, other: Path) -> bool:
    """Whether all files are the same, besides the plan, which names folders and seconds."""
    first, second = contents(one), contents(other)
    first.pop("record/plan.json"), second.pop("record/plan.json")
    return first == second
