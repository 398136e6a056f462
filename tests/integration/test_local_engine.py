"""The local engine with real processes: the same bytes whatever happens, and nothing left behind."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import (
    OutputError,
    PlanningError,
    StageFailedError,
    UnknownNameError,
    UsageError,
    WorkerError,
)
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.ledger.record.run_record import read_run
from gristmill.observe.events import Sample, TaskFinished, TaskStarted, WorkerStarted, WorkerStopped
from gristmill.observe.memory import measure_tree
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.tasks import DocumentBatch
from tests.outputs import record_of
from tests.pace import slowness

# Workers cannot import this file; its stages are sent by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SOURCE = str(Path(__file__).parents[2] / "src")
SHARED = Path(f"/dev/shm/gristmill-{os.getuid()}")
PATIENCE_S = 600.0
"""How long a test waits for what must happen, on a machine however busy."""


# --- stages ---


class Upper(ProcessingStage):
    name = "upper"

    def process(self, task):
        frame = task.to_pandas()
        frame["text"] = frame["text"].str.upper()
        return task


class Even(ProcessingStage):
    """Drops odd documents, several tasks at a time, through Polars, where no labels tell rows apart."""

    name = "even"
    batch_size = 3

    def process_batch(self, tasks):
        return [self.process(task) for task in tasks]

    def process(self, task):
        import polars as pl

        return DocumentBatch(data=task.to_polars().filter(pl.col("n") % 2 == 0))


class Halves(ProcessingStage):
    """Returns two batches for each one."""

    name = "halves"
    resources = Resources(cpus=0.5)

    def process(self, task):
        middle = task.num_items // 2
        return [task.slice(0, middle), task.slice(middle, task.num_items - middle)]


class Nothing(ProcessingStage):
    name = "nothing"

    def process(self, task):
        return None


class Fixed(ProcessingStage):
    name = "fixed"

    def num_workers(self):
        return 2

    def process(self, task):
        return task


class UnsendableError(Exception):
    """Cannot be pickled, and could not be built again from its arguments."""

    def __init__(self, text: str, lock: Any) -> None:
        super().__init__(f"{text} holds a lock")
        self.lock = lock


class Trap(ProcessingStage):
    """Does something terrible to the documents it is told about."""

    name = "trap"

    def __init__(self, deeds: dict[str, str]) -> None:
        self.deeds = deeds

    def process(self, task):
        for text in task.column("id").to_pylist():
            deed = self.deeds.get(text)
            if deed == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif deed == "segfault":
                ctypes.string_at(0)
            elif deed == "hang":
                time.sleep(3600)
            elif deed == "raise":
                raise ValueError(f"cannot digest {text}")
            elif deed == "unsendable":
                raise UnsendableError(text, threading.Lock())
            elif deed == "exit":
                sys.exit(f"no {text}")
            elif deed == "leave":
                os._exit(0)
            elif deed == "close":
                os.closerange(3, 256)
        return task


class Slow(ProcessingStage):
    """Takes a moment for each batch, so that there is something to disturb."""

    name = "slow"

    def __init__(self, seconds: float = 0.02) -> None:
        self.seconds = seconds

    def process(self, task):
        time.sleep(self.seconds)
        return task


class Diary(ProcessingStage):
    """Writes down when its hooks are called and in which process; works once `crew` workers have set up."""

    name = "diary"

    def __init__(self, folder: str, *, crew: int = 1, fail_on: str | None = None) -> None:
        self.folder = folder
        self.crew = crew
        self.fail_on = fail_on

    def _note(self, what: str) -> None:
        with open(os.path.join(self.folder, what), "a") as file:
            file.write(f"{os.getpid()} {os.environ.get('CUDA_VISIBLE_DEVICES')}\n")

    def setup_on_node(self, node_info=None, worker_metadata=None):
        self._note("node")

    def setup(self, worker_metadata=None):
        self._note("setup")

    def teardown(self):
        self._note("teardown")

    def process(self, task):
        wait_until(lambda: len(notes(Path(self.folder), "setup")) >= self.crew)
        if self.fail_on in task.column("id").to_pylist():
            raise RuntimeError("no more")
        return task


class OfOneThread(ProcessingStage):
    """Holds what may only be used in the thread that made it, as a stage with a device does."""

    name = "of_one_thread"
    resources = Resources(cpus=0.1, gpus=1)

    def __init__(self, fail_on: str | None = None) -> None:
        self.fail_on = fail_on

    def setup(self, worker_metadata=None):
        import sqlite3

        self.base = sqlite3.connect(":memory:")
        self.base.execute("create table seen (id text)")

    def process(self, task):
        names = task.column("id").to_pylist()
        self.base.executemany("insert into seen values (?)", [(name,) for name in names])
        if self.fail_on in names:
            raise ValueError("not this one")
        middle = task.num_items // 2
        yield task.slice(0, middle)
        self.base.execute("select count(*) from seen")
        yield task.slice(middle, task.num_items - middle)

    def teardown(self):
        self.base.close()


class Leak(ProcessingStage):
    name = "leak"
    resources = Resources(cpus=0.5)
    hoard: list[bytearray] | None = None

    def process(self, task):
        if self.hoard is None:
            self.hoard = []
        self.hoard.append(bytearray(os.urandom(1 << 20) * 50))
        return task


# --- tools ---


def lines(folder: Path, *, files: int = 4, rows: int = 60) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        with open(folder / f"part{file}.jsonl", "w") as out:
            for row in range(rows):
                record = {"id": f"{file}-{row}", "n": row, "text": f"document {row} of {file} " * (row % 7 + 1)}
                out.write(json.dumps(record) + "\n")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return lines(tmp_path / "in")


def pipeline(source: Path, out: Path, *stages: ProcessingStage, **options: Any) -> Pipeline:
    reader = JsonlReader(str(source), **{"read_kwargs": {"batch_bytes": "1KB"}, **options})
    return Pipeline("test", stages=[reader, *stages, JsonlWriter(str(out))])


def run(made: Pipeline, *, listeners: Any = (), options: dict[str, Any] | None = None, **config: Any) -> Any:
    config = {"num_cpus": 2, **config}
    return made.run(LocalExecutor(config), listeners=list(listeners), **(options or {}))


def committed(out: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(out.iterdir()) if file.is_file()}


def ids(out: Path) -> set[str]:
    return {json.loads(line)["id"] for file in out.glob("*.jsonl") for line in file.read_text().splitlines()}


def ledger(out: Path) -> dict[str, Any]:
    from gristmill.ledger.record.manifest import Manifest

    entries = Manifest(RunFolder(str(out))).load()
    return {
        name: {
            stage: {key: value for key, value in asdict(count).items() if not key.startswith("bytes")}
            for stage, count in entry.stages.items()
        }
        for name, entry in entries.items()
    }


def set_aside(out: Path) -> dict[str, str]:
    return {json.loads(entry.record.raw)["id"]: entry.record.cause for entry in read_quarantine(str(out))}


def notes(folder: Path, what: str) -> list[list[str]]:
    path = folder / what
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def wait_until(condition: Callable[[], object]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def processes_under(pid: int) -> list[int]:
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    left = list(SHARED.glob(f"*-{os.getpid()}-*")) if SHARED.exists() else []
    assert not left


# --- the same bytes ---

PIPELINES: dict[str, Callable[[], list[ProcessingStage]]] = {
    "one segment": lambda: [Upper()],
    "segments of different sizes": lambda: [Upper().with_(resources=Resources(cpus=0.5)), Even(), Fixed()],
    "fan-out": lambda: [Halves(), Upper()],
    "everything dropped": lambda: [Upper(), Nothing().with_(resources=Resources(cpus=0.5))],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_output_and_ledger_do_not_depend_on_workers_or_mode(name: str, source: Path, tmp_path: Path) -> None:
    wanted = None
    for number, config in enumerate(
        [{"num_cpus": 0}, {"num_cpus": 1}, {"num_cpus": 2}, {"num_cpus": 4}, {"execution_mode": "batch"}]
    ):
        out = tmp_path / f"out{number}"
        run(pipeline(source, out, *PIPELINES[name](), blocksize="3KB"), **config)
        found = committed(out), ledger(out)
        wanted = wanted or found
        assert found == wanted, config
    assert len(wanted[1]) > 4


def test_parquet_is_the_same_too(source: Path, tmp_path: Path) -> None:
    Pipeline("p", stages=[JsonlReader(str(source)), ParquetWriter(str(tmp_path / "pq"))]).run()
    wanted = None
    for number, config in enumerate([{"num_cpus": 0}, {"num_cpus": 2}, {"execution_mode": "batch"}]):
        out = tmp_path / f"out{number}"
        stages = [ParquetReader(str(tmp_path / "pq")), Halves(), Even(), ParquetWriter(str(out))]
        run(Pipeline("p", stages=stages), **config)
        wanted = wanted or committed(out)
        assert committed(out) == wanted
    assert len(wanted) == 4


def test_results_without_a_writer_come_in_order(source: Path) -> None:
    made = Pipeline("test", stages=[JsonlReader(str(source), read_kwargs={"batch_bytes": "1KB"}), Even(), Halves()])
    found = [list(run(made, num_cpus=count)) for count in (0, 2)]
    here, there = [[task.column("id").to_pylist() for task in tasks] for tasks in found]
    assert here == there
    assert sum(map(len, here)) == 120


def test_initial_tasks_pass_through_workers() -> None:
    import pyarrow as pa

    batches = [DocumentBatch(data=pa.table({"n": [i, i + 1], "text": ["a", "b"]})) for i in range(10)]
    result = run(Pipeline("test", stages=[Upper(), Even()]), options={"initial_tasks": batches})
    assert [task.column("n").to_pylist() for task in result] == [[i + i % 2] for i in range(10)]


class Counted(DocumentBatch):
    """A batch with something of its own."""

    seen = 0


class Count(ProcessingStage):
    """Counts the workers that a batch has passed, on the batch itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def process(self, task: DocumentBatch) -> DocumentBatch:
        batch = task if isinstance(task, Counted) else Counted(data=task.to_pyarrow())
        batch.seen += 1
        return batch


def test_a_subclass_of_a_batch_arrives_with_its_attributes(source: Path) -> None:
    stages = [Count("first").with_(resources=Resources(cpus=0.5)), Count("second")]
    result = run(Pipeline("counted", stages=[JsonlReader(str(source)), *stages]))
    assert result
    assert all(isinstance(batch, Counted) and batch.seen == 2 for batch in result)


# --- deaths ---


class Assassin:
    """Repeatedly kills a random busy worker during a run, each time after some tasks were finished.

    It comes at random moments; at the latest when as many tasks again are finished, however fast the run is.
    """

    def __init__(self, every: int) -> None:
        self.every = every
        self.finished = 0
        self.living: dict[int, int] = {}
        self.busy: set[int] = set()
        self.killed = 0
        self._chance = random.Random(1)
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __call__(self, event: Any) -> None:
        if isinstance(event, WorkerStarted):
            self.living[event.worker] = event.pid
        elif isinstance(event, TaskStarted):
            self.busy.add(event.worker)
        elif isinstance(event, TaskFinished):
            self.finished += 1
            self._strike(self.every)
        elif isinstance(event, WorkerStopped):
            self.living.pop(event.worker, None)

    def __enter__(self) -> Assassin:
        threading.Thread(target=self._work, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _work(self) -> None:
        while not self._over.wait(0.01 + self._chance.random() / 20):
            self._strike(0)

    def _strike(self, overdue: int) -> None:
        with self._lock:
            pids = [pid for worker, pid in list(self.living.items()) if worker in self.busy]
            if pids and self.finished >= self.every * self.killed + overdue:
                with contextlib.suppress(ProcessLookupError):  # it may have ended since it was last heard of
                    os.kill(self._chance.choice(pids), signal.SIGKILL)
                    self.killed += 1


@pytest.mark.parametrize("stages", [[Slow], [Slow, Even, Halves]], ids=["one segment", "three segments"])
def test_killed_workers_change_nothing(stages: list[type[ProcessingStage]], source: Path, tmp_path: Path) -> None:
    run(pipeline(source, tmp_path / "here", *(stage() for stage in stages), blocksize="3KB"), num_cpus=0)
    with Assassin(3) as assassin:
        run(pipeline(source, tmp_path / "there", *(s() for s in stages), blocksize="3KB"), listeners=[assassin])
    assert assassin.killed > 2
    assert committed(tmp_path / "there") == committed(tmp_path / "here")
    assert ledger(tmp_path / "there") == ledger(tmp_path / "here")


def test_documents_that_kill_hang_and_crash_are_found_and_the_rest_is_there(source: Path, tmp_path: Path) -> None:
    deeds = {"0-7": "kill", "0-8": "hang", "1-30": "segfault", "2-0": "hang", "3-59": "kill"}
    causes = {"kill": "SIGKILL", "hang": "time limit", "segfault": "SIGSEGV"}
    wanted = {name: causes[deed] for name, deed in deeds.items()}
    # On a busy machine a worker may stand still for so long that it seems to hang: then it gets more time.
    for limit_s in (0.6, 3.0, 15.0):
        out = tmp_path / f"out{limit_s}"
        trap = Trap(deeds).with_(time_limit_s=limit_s)
        run(pipeline(source, out, trap, read_kwargs={"batch_bytes": "4KB"}))
        if set_aside(out) == wanted:
            break
    assert set_aside(out) == wanted
    assert ids(out) == {f"{file}-{row}" for file in range(4) for row in range(60)} - set(deeds)


def test_killers_are_found_behind_a_process_border_and_in_groups(source: Path, tmp_path: Path) -> None:
    deeds = {"0-7": "kill", "0-9": "segfault", "2-33": "kill"}
    out = tmp_path / "out"
    trap = Trap(deeds).with_(resources=Resources(cpus=0.5), batch_size=4)
    run(pipeline(source, out, trap, Upper().with_(batch_size=2), read_kwargs={"batch_bytes": "4KB"}))
    assert set_aside(out) == {"0-7": "SIGKILL", "0-9": "SIGSEGV", "2-33": "SIGKILL"}
    assert len(ids(out)) == 237


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_killers_are_found_in_a_stage_with_a_gpu(mode: str, source: Path, tmp_path: Path) -> None:
    """There the documents of two groups are in the worker's hands at a time, and only one of them is to blame."""
    deeds = {"0-7": "kill", "2-33": "segfault"}
    out = tmp_path / "out"
    trap = Trap(deeds).with_(resources=Resources(cpus=0.1, gpus=1))
    run(pipeline(source, out, Slow(0), trap), num_gpus=1, execution_mode=mode)
    assert set_aside(out) == {"0-7": "SIGKILL", "2-33": "SIGSEGV"}
    assert len(ids(out)) == 238


# --- exceptions ---


def test_an_exception_names_stage_file_and_row_and_leaves_what_is_committed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StageFailedError) as caught:
        run(pipeline(source, tmp_path / "out", Trap({"2-41": "raise"})))
    message = str(caught.value)
    assert "'trap'" in message
    assert "part2.jsonl" in message
    assert (caught.value.stage, caught.value.row) == ("trap", 41)
    assert "ValueError: cannot digest 2-41" in message
    trace = message[message.index("Traceback") :]
    assert "test_local_engine.py" in trace.splitlines()[1]
    assert "gristmill/backends" not in trace
    run(
        pipeline(
            source,
            tmp_path / "out",
            Trap({"2-41": "raise"}),
        ),
        options={"ignore_failures": True},
    )
    assert set_aside(tmp_path / "out") == {"2-41": "ValueError"}
    assert len(ids(tmp_path / "out")) == 239


def test_exceptions_are_set_aside_when_asked(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(pipeline(source, out, Trap({"0-0": "raise", "3-5": "raise", "3-6": "raise"})), ignore_failures=True)
    assert set_aside(out) == dict.fromkeys(["0-0", "3-5", "3-6"], "ValueError")
    assert len(ids(out)) == 237


@pytest.mark.parametrize("count", [0, 2])
@pytest.mark.parametrize(
    ("deed", "told", "cause"),
    [("unsendable", "1-7 holds a lock", "UnsendableError"), ("exit", r"called sys.exit\('no 1-7'\)", "RuntimeError")],
)
def test_whatever_a_stage_raises_is_told_with_stage_and_row(
    deed: str, told: str, cause: str, count: int, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(StageFailedError, match=told) as caught:
        run(pipeline(source, tmp_path / "a", Trap({"1-7": deed})), num_cpus=count)
    assert (caught.value.stage, caught.value.row) == ("trap", 7)
    assert "test_local_engine.py" in str(caught.value.traceback)
    run(pipeline(source, tmp_path / "b", Trap({"1-7": deed})), num_cpus=count, ignore_failures=True)
    assert set_aside(tmp_path / "b") == {"1-7": cause}


def test_a_stage_that_ends_its_process_or_closes_its_channel_does_not_hang_the_run(
    source: Path, tmp_path: Path
) -> None:
    run(pipeline(source, tmp_path / "a", Trap({"1-7": "leave"})))
    assert set_aside(tmp_path / "a") == {"1-7": "exit code 0"}
    # The worker goes on for a moment after it, so no document can be blamed.
    with pytest.raises(WorkerError, match="no single document could be identified"):
        run(pipeline(source, tmp_path / "b", Trap({"1-7": "close"})))


class BadSetup(ProcessingStage):
    name = "bad_setup"

    def __init__(self, deed: str) -> None:
        self.deed = deed

    def setup(self, worker_metadata=None):
        if self.deed == "raise":
            raise RuntimeError("no model here")
        os.kill(os.getpid(), signal.SIGKILL)

    def process(self, task):
        return task


def test_setup_that_raises_or_dies_ends_the_run(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StageFailedError, match=r"'bad_setup' failed in setup\(\).*no model here"):
        run(pipeline(source, tmp_path / "a", BadSetup("raise")))
    with pytest.raises(WorkerError, match="during setup"):
        run(pipeline(source, tmp_path / "b", BadSetup("die")))


class Holder(ProcessingStage):
    name = "holder"

    def __init__(self) -> None:
        self.settings = {"lock": threading.Lock()}

    def process(self, task):
        return task


def test_what_cannot_be_sent_is_named(source: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanningError, match=r"settings.*'lock'.*setup\(\)"):
        run(pipeline(source, tmp_path / "out", Holder()))


# --- the life of workers ---


def test_hooks_are_called_once_per_node_and_once_per_worker(source: Path, tmp_path: Path) -> None:
    stages = [Diary(str(tmp_path), crew=3).with_(num_workers=3), Upper()]
    run(pipeline(source, tmp_path / "out", *stages, blocksize="2KB"))
    assert len(notes(tmp_path, "node")) == 1
    assert len(notes(tmp_path, "setup")) == 3
    assert sorted(notes(tmp_path, "teardown")) == sorted(notes(tmp_path, "setup"))


class Stubborn(ProcessingStage):
    """Fails on a document as soon as another worker has been given one that nothing interrupts."""

    name = "stubborn"

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if task.column("id")[0].as_py().startswith("0-"):
            wait_until(lambda: notes(Path(self.folder), "stubborn"))
            raise ValueError("no")
        with open(f"{self.folder}/stubborn", "a") as file:
            file.write(f"{os.getpid()}\n")
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(PATIENCE_S)


def test_a_worker_that_does_not_leave_is_killed(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StageFailedError, match="stubborn"):
        run(pipeline(source, tmp_path / "out", Stubborn(tmp_path)))
    wait_until(lambda: all(is_gone(int(pid)) for (pid,) in notes(tmp_path, "stubborn")))


def test_teardown_is_called_after_an_error(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gristmill.backends.local.engine._STOP_S", PATIENCE_S)
    stages = [Diary(str(tmp_path), crew=2, fail_on="1-50").with_(num_workers=2)]
    with pytest.raises(StageFailedError, match="no more"):
        run(pipeline(source, tmp_path / "out", *stages, blocksize="2KB"))
    assert sorted(notes(tmp_path, "teardown")) == sorted(notes(tmp_path, "setup"))


def test_gpu_slots_are_shared_and_named(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    quarter, pair = tmp_path / "quarter", tmp_path / "pair"
    quarter.mkdir()
    pair.mkdir()
    small = Diary(str(quarter), crew=4).with_(resources=Resources(cpus=0.1, gpus=0.25))
    run(pipeline(source, tmp_path / "a", small, blocksize="1KB"), num_gpus=1)
    assert len(notes(quarter, "setup")) == 4
    assert {devices for _, devices in notes(quarter, "setup")} == {"0"}
    large = Diary(str(pair)).with_(resources=Resources(cpus=0.1, gpus=2))
    run(pipeline(source, tmp_path / "b", large, blocksize="1KB"), num_gpus=2)
    assert [devices for _, devices in notes(pair, "setup")] == ["0,1"]
    none = tmp_path / "none"
    none.mkdir()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # one that the executor is told not to use
    run(pipeline(source, tmp_path / "c", Diary(str(none)), blocksize="1KB"), num_gpus=0)
    assert {tuple(devices) for _, *devices in notes(none, "setup")} == {()}


def test_a_stage_with_a_gpu_is_called_in_the_thread_that_set_it_up(source: Path, tmp_path: Path) -> None:
    found = []
    for number, config in enumerate([{"num_cpus": 0}, {}, {"execution_mode": "batch"}]):
        out = tmp_path / str(number)
        run(pipeline(source, out, Slow(0), OfOneThread()), num_gpus=1, **config)
        found.append((committed(out), ledger(out)))
    assert found[0] == found[1] == found[2]
    with pytest.raises(StageFailedError) as caught:
        run(pipeline(source, tmp_path / "out", OfOneThread("2-41")), num_gpus=1)
    assert (caught.value.stage, caught.value.row) == ("of_one_thread", 41)
    assert "gristmill/backends" not in str(caught.value)
    run(pipeline(source, tmp_path / "out", OfOneThread("2-41")), num_gpus=1, ignore_failures=True)
    assert set_aside(tmp_path / "out") == {"2-41": "ValueError"}


def test_two_segments_that_need_the_only_gpu_take_turns(source: Path, tmp_path: Path) -> None:
    stages = [Upper().with_(resources=Resources(gpus=1)), Even().with_(resources=Resources(gpus=1))]
    run(pipeline(source, tmp_path / "out", *stages), num_gpus=1)
    assert len(ids(tmp_path / "out")) == 120


WATCHED = """
    import json
    import os
    import pickle
    import sys

    from gristmill.backends.local import LocalExecutor
    from gristmill.observe.memory import measure_tree
    from gristmill.observe.events import Sample, WorkerStopped
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io.reader import JsonlReader
    from gristmill.stages.text.io.writer import JsonlWriter

    found = {"workers": 0, "recycled": 0}

    def watch(event):
        if isinstance(event, Sample):
            found["workers"] = max(found["workers"], *event.workers)
        elif isinstance(event, WorkerStopped):
            found["recycled"] += event.cause == "recycled"

    source, out, stage, room_mb = sys.argv[1:]
    with open(stage, "rb") as file:
        stages = [JsonlReader(source, blocksize="1KB"), pickle.load(file), JsonlWriter(out)]
    found["budget"] = measure_tree([os.getpid()]).pss_bytes + (int(room_mb) << 20)
    executor = LocalExecutor({"num_cpus": 2, "autoscale_interval_s": 0.2, "memory_budget": found["budget"]})
    Pipeline("watched", stages=stages).run(executor, listeners=[watch])
    print(json.dumps(found))
"""


def watched(source: Path, tmp_path: Path, stage: ProcessingStage, *, room_mb: int) -> dict[str, int]:
    """What a run in a fresh process took, whose budget is what that process has and `room_mb`.

    The driver counts for the budget; the process of all these tests is large, and its pages come and go. The memory is
    looked at from outside all the time: the run itself looks too seldom to see every peak.
    """
    script, given = tmp_path / "watched.py", tmp_path / "stage"
    script.write_text(textwrap.dedent(WATCHED))
    given.write_bytes(cloudpickle.dumps(stage))
    command = [sys.executable, script, source, tmp_path / "out", given, str(room_mb)]
    peak = 0
    with open(tmp_path / "said", "w+") as said, open(tmp_path / "errors", "w+") as errors:
        with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SOURCE}, stdout=said, stderr=errors) as running:
            while running.poll() is None:
                peak = max(peak, measure_tree([running.pid, *processes_under(running.pid)]).pss_bytes)
                time.sleep(0.005)
        assert running.returncode == 0, Path(errors.name).read_text()
        found: dict[str, int] = json.loads(Path(said.name).read_text().splitlines()[-1])
    return {**found, "peak": peak}


@pytest.mark.parametrize("room_mb", [600, 800])
def test_a_leaking_stage_stays_within_its_budget(room_mb: int, source: Path, tmp_path: Path) -> None:
    found = watched(source, tmp_path, Leak(), room_mb=room_mb)
    assert found["recycled"] >= 3
    assert found["peak"] < found["budget"]
    assert len(ids(tmp_path / "out")) == 240


def test_old_workers_are_replaced_and_no_stage_gets_more_than_it_may(source: Path, tmp_path: Path) -> None:
    recycled = most = 0

    def watch(event: Any) -> None:
        nonlocal recycled, most
        if isinstance(event, WorkerStopped):
            recycled += event.cause == "recycled"
        elif isinstance(event, Sample):
            most = max(most, *event.workers)

    run(
        pipeline(source, tmp_path / "out", Slow(0.05), blocksize="1KB"),
        listeners=[watch],
        worker_max_lifetime_m=0.3 / 60,
        worker_restart_interval_m=0.0,
        max_workers_per_stage=1,
    )
    assert recycled >= 2
    assert most == 1
    assert len(ids(tmp_path / "out")) == 240


class Hungry(ProcessingStage):
    """Needs 150 MB for every batch, and releases them."""

    name = "hungry"

    def process(self, task):
        needed = bytearray(os.urandom(1 << 20)) * 150
        time.sleep(0.02)
        del needed
        return task


@pytest.mark.parametrize(("room_mb", "workers"), [(400, 1), (900, 2)])
def test_as_many_workers_as_the_budget_has_room_for(room_mb: int, workers: int, source: Path, tmp_path: Path) -> None:
    found = watched(source, tmp_path, Hungry(), room_mb=room_mb)
    assert found["workers"] == workers
    assert found["peak"] < found["budget"]
    assert len(ids(tmp_path / "out")) == 240


# --- settings ---


def test_settings_that_cannot_work_are_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="num_cpus"):
        LocalExecutor({"num_cpu": 2})
    with pytest.raises(UsageError, match="streaming"):
        LocalExecutor({"execution_mode": "stream"})
    with pytest.raises(PlanningError, match=r"idle footprint of this run \(about .*[MG]B\)") as caught:
        run(pipeline(source, tmp_path / "out", Upper()), memory_budget="50MB")
    assert caught.value.floor > 50 << 20
    with pytest.raises(PlanningError, match="time limit"):
        run(pipeline(source, tmp_path / "out", Upper().with_(time_limit_s=1.0)), num_cpus=0)


# --- whole programs ---

SCRIPT = """
    import sys, time, os
    from gristmill.backends.local import LocalExecutor, engine
    from gristmill.ledger.record import run_record
    from gristmill.pipeline import Pipeline
    from gristmill.stages.base import ProcessingStage
    from gristmill.stages.text.io.reader import JsonlReader
    from gristmill.stages.text.io.writer import JsonlWriter

    def made_here(text, shout=str.upper):
        return shout(text)

    class Mine(ProcessingStage):
        name = "mine"

        def __init__(self, how):
            self.how = how

        def setup(self, worker_metadata=None):
            open(os.path.join(sys_folder, f"setup-{os.getpid()}"), "w").close()

        def teardown(self):
            open(os.path.join(sys_folder, f"teardown-{os.getpid()}"), "w").close()

        def process(self, task):
            time.sleep(float(os.environ["SECONDS"]))
            while any(text.startswith(os.environ["HOLD"]) for text in task.column("id").to_pylist()):
                time.sleep(1)
            frame = task.to_pandas()
            frame["text"] = [self.how(text) for text in frame["text"]]
            return task

    source, out, sys_folder, cpus, mode = sys.argv[1:]
    engine._STOP_S *= float(os.environ["PATIENCE"])
    run_record._RENEW_S = 0.05
    suffix = "!"
    stages = [
        JsonlReader(source, blocksize="2KB", read_kwargs={"batch_bytes": "1KB"}),
        Mine(lambda text: made_here(text) + suffix),
        JsonlWriter(out),
    ]
    if __name__ == "__main__":
        pipeline = Pipeline("script", stages=stages)
        pipeline.run(LocalExecutor({"num_cpus": int(cpus), "execution_mode": mode}))
"""


class Program(subprocess.Popen[bytes]):
    """The script in a process of its own.

    Args:
        tmp_path: Where the script and its notes lie.
        source: Its input.
        out: Its output.
        seconds: How long it works on a batch.
        hold: It never gets through with documents whose id begins so.
        patience: How many times longer than others its workers may take to leave.
        cpus: Its number of workers.
        mode: Its mode of execution.
    """

    def __init__(
        self,
        tmp_path: Path,
        source: Path,
        out: Path,
        *,
        seconds: float = 0,
        hold: str = "none",
        patience: float = 1,
        cpus: int = 2,
        mode: str = "streaming",
    ) -> None:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(SCRIPT))
        (tmp_path / "notes").mkdir(exist_ok=True)
        self.stderr_file = tmp_path / "errors"
        with open(self.stderr_file, "wb") as errors:
            command = [sys.executable, script, source, out, tmp_path / "notes", str(cpus), mode]
            settings = {"SECONDS": str(seconds), "HOLD": hold, "PATIENCE": str(patience)}
            super().__init__(command, env={**os.environ, "PYTHONPATH": SOURCE, **settings}, stderr=errors)


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    made: list[Program] = []

    def start(source: Path, out: Path, **options: Any) -> Program:
        made.append(Program(tmp_path, source, out, **options))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.wait()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def test_stages_of_the_main_script_with_closures_and_lambdas(source: Path, tmp_path: Path, program: Any) -> None:
    found = []
    for count in (0, 2):
        out = tmp_path / f"out{count}"
        made = program(source, out, cpus=count)
        assert made.wait(PATIENCE_S) == 0, made.stderr_file.read_text()
        found.append(committed(out))
    assert found[0] == found[1]
    assert b"DOCUMENT 3 OF 0" in found[0]["part0.b0000.jsonl"]


def _interrupted(made: Program, pids: list[int]) -> float:
    """Seconds from Ctrl-C until the program and all its workers are gone."""
    begun = time.monotonic()
    made.send_signal(signal.SIGINT)
    made.wait(PATIENCE_S)
    wait_until(lambda: all(is_gone(pid) for pid in pids))
    return time.monotonic() - begun


@pytest.mark.parametrize("seconds", [0.05, 600], ids=["between batches", "in a long call"])
def test_an_interrupt_ends_everything_in_two_seconds(seconds: float, tmp_path: Path, program: Any) -> None:
    """Two seconds on an idle machine; as many times more as programs take longer to start and to end just then."""
    source = lines(tmp_path / "long", rows=6000)
    notes = tmp_path / "notes"
    spent: list[tuple[float, float]] = []
    torn_down = False
    # Another program may take the processors for a while, hardly every time; what is slow by itself is.
    while len(spent) < 4 and not (torn_down and spent[-1][0] < spent[-1][1]):
        for note in notes.glob("*"):
            note.unlink()
        patience = slowness() if spent else 1.0
        made = program(source, tmp_path / f"out{len(spent)}", seconds=seconds, patience=patience)
        wait_until(lambda: len(list(notes.glob("setup-*"))) == 2)
        time.sleep(0.2)
        pids = processes_under(made.pid)
        assert len(pids) >= 3  # the fork server and its workers
        spent.append((_interrupted(made, pids), 2.0 * max(patience, slowness())))
        assert "KeyboardInterrupt" in made.stderr_file.read_text()
        assert not list(SHARED.glob(f"*-{made.pid}-*"))
        torn_down = {p.name[9:] for p in notes.glob("teardown-*")} == {p.name[6:] for p in notes.glob("setup-*")}
    assert spent[-1][0] < spent[-1][1], spent
    assert torn_down


def test_an_interrupt_is_heard_while_workers_are_still_to_come(source: Path, tmp_path: Path, program: Any) -> None:
    """From the moment there is a fork server until the first worker is set up; at whatever moment it comes."""
    spent = []
    for delay_s in (0.0, 0.1, 0.3):
        made = program(source, tmp_path / f"out{delay_s}", seconds=600)
        wait_until(lambda: processes_under(made.pid))  # noqa: B023 (called at once)
        time.sleep(delay_s)
        pids = processes_under(made.pid)
        spent.append(_interrupted(made, pids) / slowness())
        assert made.returncode == -signal.SIGINT, made.stderr_file.read_text()
        assert not list(SHARED.glob(f"*-{made.pid}-*"))
    assert min(spent) < 2.0, spent


@pytest.mark.parametrize("mode", ["streaming", "batch"])
def test_a_killed_driver_takes_its_workers_along_and_the_next_run_goes_on(
    mode: str, source: Path, tmp_path: Path, program: Any
) -> None:
    whole = program(source, tmp_path / "whole", cpus=0)
    assert whole.wait(PATIENCE_S) == 0
    out = tmp_path / "out"
    made = program(source, out, seconds=0.05, hold="3-", mode=mode)
    staging = record_of(out) / "staging"
    record = RunFolder(str(out))
    if mode == "streaming":
        wait_until(lambda: (read_run(record) or {"partitions_committed": 0})["partitions_committed"] >= 2)
    else:
        wait_until(lambda: len(list(staging.glob("*/*/w*"))) >= 2)
    pids = processes_under(made.pid)
    assert pids
    made.kill()
    made.wait()
    if mode == "streaming":
        told = read_run(record)
        assert told is not None
        assert told["status"] == "running"
        assert 2 <= told["partitions_committed"] < told["partitions"]
        assert told["rows_written"] > 0
    wait_until(lambda: all(is_gone(pid) for pid in pids))
    before = set(committed(out))
    assert len(before) < len(committed(tmp_path / "whole"))
    again = program(source, out, mode=mode)
    assert again.wait(PATIENCE_S) == 0
    assert committed(out) == committed(tmp_path / "whole")
    assert not list(SHARED.glob(f"*-{made.pid}-*"))
    assert not list(staging.glob("*"))


def test_a_full_disk_ends_the_run_with_a_clear_error_and_intact_output(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", disk], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("needs to mount a small file system")
    try:
        source = lines(tmp_path / "big", files=20, rows=1000)
        out = disk / "out"
        with pytest.raises(OutputError, match=r"disk is full|No space|no room"):
            run(pipeline(source, out, Slow(0), read_kwargs={}))
        before = committed(out)
        assert 0 < len(before) < 20
        subprocess.run(["mount", "-o", "remount,size=100m", disk], check=True)
        run(pipeline(source, out, Slow(0), read_kwargs={}))
        after = committed(out)
        assert before.items() <= after.items()
        run(pipeline(source, tmp_path / "whole", Slow(0), read_kwargs={}), num_cpus=0)
        assert after == committed(tmp_path / "whole")
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
