"""The nursery with real processes: births, deaths, interrupts, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from gristmill.backends.local.channel import Channel, ChannelClosed
from gristmill.backends.local.nursery import RECEIVED_FUNCTION_ENTRY, Nursery, WorkerProcess, shared_nursery
from gristmill.backends.local.processes import stop_workers
from gristmill.backends.local.shared_files import SharedFolder, sweep
from gristmill.backends.local.status import Phase, StatusWriter
from gristmill.errors import UsageError, WorkerError
from gristmill.observe.memory import measure_tree, process_start_time, process_tree

# Workers cannot import this file; what they are to do is sent by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Function = Callable[[Channel, StatusWriter], object]
SOURCE = str(Path(__file__).parents[2] / "src")
PATIENCE_S = 600.0
"""How long a test waits for what must happen, on a machine however busy."""


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery.start() as made:
        yield made


@pytest.fixture
def launch(nursery: Nursery) -> Iterator[Callable[..., WorkerProcess]]:
    made: list[WorkerProcess] = []

    def start(function: Function, **options: Any) -> WorkerProcess:
        worker = nursery.fork(entry=RECEIVED_FUNCTION_ENTRY, **options)
        made.append(worker)
        worker.channel.send(cloudpickle.dumps(function))
        return worker

    yield start
    for worker in made:
        worker.kill()
        if nursery.alive:
            worker.wait(timeout_s=PATIENCE_S)
        worker.close()


def receive(worker: WorkerProcess) -> Any:
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        messages = worker.channel.receive(at_most=1)
        if messages:
            return messages[0]
        select.select([worker.channel], [], [], 0.5)
    raise AssertionError(f"{worker} sent nothing: {worker.wait(timeout_s=0)}")


def ask(worker: WorkerProcess, message: object) -> Any:
    worker.channel.send(message)
    return receive(worker)


def echo(channel: Channel, status: StatusWriter) -> None:
    status.idle()
    while (message := channel.recv()) != "stop":
        channel.send(message)


def busy(channel: Channel, status: StatusWriter) -> None:
    channel.send("busy")
    while True:
        pass


def left_of(pids: list[int]) -> list[int]:
    """The processes that do not end."""
    give_up = time.monotonic() + PATIENCE_S
    while pids and time.monotonic() < give_up:
        pids = [pid for pid in pids if process_start_time(pid) is not None]
        time.sleep(0.005)
    return pids


def test_it_forks_without_threads_and_with_everything_imported(
    nursery: Nursery, launch: Callable[..., WorkerProcess]
) -> None:
    report = nursery.wait_ready()
    assert report["threads"] == []
    nursery.preload(["polars", "gristmill.stages.text.filters:WordCountFilter"])

    def look(channel: Channel, status: StatusWriter) -> None:
        before = set(sys.modules)
        import numba
        import polars as pl
        import pyarrow.parquet

        from gristmill.stages.text.filters import WordCountFilter

        threads = os.listdir("/proc/self/task")
        frame = pl.DataFrame({"a": [3, 1, 2]}).lazy().sort("a").collect(engine="streaming")
        new = len(set(sys.modules) - before)
        channel.send((new, len(threads), frame["a"].to_list(), os.environ["POLARS_MAX_THREADS"]))
        del numba, pyarrow, WordCountFilter

    new_modules, threads, values, polars_threads = receive(launch(look))
    assert new_modules < 20
    assert (threads, values, polars_threads) == (1, [1, 2, 3], "1")


def test_pandas_and_scipy_wait_until_they_are_wanted(nursery: Nursery, launch: Callable[..., WorkerProcess]) -> None:
    def loaded(channel: Channel, status: StatusWriter) -> None:
        channel.send([name for name in ("pandas", "scipy") if name in sys.modules])

    def from_frame(channel: Channel, status: StatusWriter) -> None:
        import pandas as pd
        import pyarrow as pa

        # PyArrow takes a missing value of a series for null only if it knows pandas.
        channel.send(pa.array(pd.Series([1.0, float("nan")])).null_count)

    assert receive(launch(loaded)) == []
    nursery.preload(["pandas"])
    assert receive(launch(from_frame)) == 1


def test_twenty_workers_of_which_some_are_killed(nursery: Nursery, launch: Callable[..., WorkerProcess]) -> None:
    workers = [launch(echo) for _ in range(20)]
    assert len({worker.pid for worker in workers}) == 20
    for number, worker in enumerate(workers):
        assert ask(worker, number) == number
    victims, others = workers[::4], [worker for worker in workers if worker not in workers[::4]]
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    for victim in victims:
        cause = victim.wait(timeout_s=PATIENCE_S)
        assert cause is not None
        assert (cause.kind, cause.requested, str(cause)) == ("signal", False, "signal SIGKILL")
        assert cause.peak_rss_bytes > 1 << 20
        with pytest.raises(ChannelClosed):
            victim.channel.receive()
    assert {worker.number for worker in nursery.poll()} >= {victim.number for victim in victims}
    for number, worker in enumerate(others):
        assert ask(worker, ("still", number)) == ("still", number)
    sample = measure_tree([nursery.pid, *(worker.pid for worker in others)])
    assert len(sample.per_pid) == 16
    assert set(process_tree(nursery.pid)) >= {worker.pid for worker in others}
    # Forked pages are shared: a worker that has done nothing holds little of its own.
    assert all(sample.per_pid[worker.pid] < 40 << 20 for worker in others)


def test_a_new_worker_is_quick(launch: Callable[..., WorkerProcess]) -> None:
    """About 10 ms on an idle machine; a fresh interpreter takes about half a second to import as much."""
    fork_s = fresh_s = float("inf")
    for _ in range(10):
        for _ in range(3):
            began = time.perf_counter()
            worker = launch(echo)
            assert ask(worker, 1) == 1
            fork_s = min(fork_s, time.perf_counter() - began)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import numba, polars, pyarrow.parquet"], check=True)
        fresh_s = min(fresh_s, time.perf_counter() - began)
        if fork_s < fresh_s / 4:
            break
    assert fork_s < fresh_s / 4


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (lambda channel, status: None, "exit code 0"),
        (lambda channel, status: sys.exit(7), "exit code 7"),
        (lambda channel, status: sys.exit("why"), "exit code 1"),
        (lambda channel, status: os._exit(9), "exit code 9"),
        (lambda channel, status: os.kill(os.getpid(), signal.SIGSEGV), "signal SIGSEGV"),
        (lambda channel, status: os.kill(os.getpid(), signal.SIGTERM), "signal SIGTERM"),
        (lambda channel, status: 1 / 0, "exit code 1"),
    ],
)
def test_every_end_has_its_cause(
    launch: Callable[..., WorkerProcess], capfd: pytest.CaptureFixture[str], end: Function, expected: str
) -> None:
    assert str(launch(end).wait(timeout_s=PATIENCE_S)) == expected


def test_killing_is_told_from_being_killed(launch: Callable[..., WorkerProcess]) -> None:
    worker = launch(echo)
    assert ask(worker, 1) == 1
    assert worker.wait(timeout_s=0) is None
    worker.kill()
    cause = worker.wait(timeout_s=PATIENCE_S)
    assert cause is not None
    assert (cause.requested, cause.signal_name, cause.clean) == (True, "SIGKILL", False)
    worker.kill()


def test_what_a_stage_started_dies_with_its_worker(launch: Callable[..., WorkerProcess]) -> None:
    def parent(channel: Channel, status: StatusWriter) -> None:
        channel.send(subprocess.Popen(["sleep", "1800"]).pid)
        channel.recv()
        os._exit(3)

    for end in ("killed", "exited"):
        worker = launch(parent)
        child = receive(worker)
        if end == "killed":
            os.kill(worker.pid, signal.SIGKILL)
        else:
            worker.channel.send("go")
        assert worker.wait(timeout_s=PATIENCE_S) is not None
        assert left_of([child]) == []


def test_status_is_readable_after_kill_9(launch: Callable[..., WorkerProcess]) -> None:
    def work(channel: Channel, status: StatusWriter) -> None:
        status.update(phase=Phase.PROCESSING, task=41, batch=2, stage=3, rows=(100, 200), restart_clock=True)
        status.note_memory()
        channel.send("working")
        while True:
            status.beat()

    began = time.monotonic()
    worker = launch(work)
    receive(worker)
    seen = [worker.status().beats for _ in range(2000)]
    assert seen == sorted(seen)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(timeout_s=PATIENCE_S)
    status = worker.status()
    assert (status.task, status.batch, status.stage, status.lo, status.hi) == (41, 2, 3, 100, 200)
    assert (status.phase, status.beats >= seen[-1]) == (Phase.PROCESSING, True)
    assert 0 < status.running_s < time.monotonic() - began
    assert status.rss_bytes > 1 << 20


def test_folder_path_and_environment_are_the_driver_s(
    launch: Callable[..., WorkerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("value = 12")
    monkeypatch.setenv("GRISTMILL_TEST_LATER", "set after the nursery started")
    monkeypatch.setenv("POLARS_MAX_THREADS", "64")
    monkeypatch.delenv("HOME", raising=False)

    def look(channel: Channel, status: StatusWriter) -> None:
        import only_here  # type: ignore[import-not-found]

        names = ("CUDA_VISIBLE_DEVICES", "GRISTMILL_TEST_LATER", "POLARS_MAX_THREADS", "HOME", "PATH")
        channel.send((only_here.value, os.getcwd(), [os.environ.get(name) for name in names]))

    worker = launch(
        look, sys_path=[*sys.path, str(tmp_path)], cwd=tmp_path, env={"CUDA_VISIBLE_DEVICES": "0,3", "PATH": None}
    )
    assert receive(worker) == (
        12,
        str(tmp_path),
        ["0,3", "set after the nursery started", "1", None, None],
    )


def test_workers_do_not_share_their_random_numbers(launch: Callable[..., WorkerProcess]) -> None:
    def draw(channel: Channel, status: StatusWriter) -> None:
        import random

        import numpy as np

        channel.send((random.random(), np.random.random()))

    first, second = receive(launch(draw)), receive(launch(draw))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_only_known_entries_run(nursery: Nursery) -> None:
    with pytest.raises(UsageError, match="can begin with"):
        nursery.fork(entry="os:abort")


def test_stopping_asks_first_and_kills_in_time(
    nursery: Nursery, launch: Callable[..., WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(channel: Channel, status: StatusWriter) -> None:
        channel.send("here")
        channel.recv()
        channel.send("torn down")

    def choke(channel: Channel, status: StatusWriter) -> None:
        channel.send("here")
        channel.send(bytes(30 << 20))
        assert channel.recv() == "stop"

    # On a busy machine even a polite worker may not get its turn in time: then all are given more of it.
    for deadline_s in (1.5, 8.0, 40.0):
        monkeypatch.setattr("gristmill.backends.local.processes._KILL_S", deadline_s / 5)
        polite, choking, stubborn = launch(tell), launch(choke), launch(busy)
        dead = launch(echo)
        for worker in (polite, choking, stubborn):
            receive(worker)
        dead.kill()
        dead.wait(timeout_s=PATIENCE_S)
        heard: list[tuple[int, int]] = []
        began = time.monotonic()
        report = stop_workers(
            nursery,
            [polite, choking, stubborn, dead],
            message="stop",
            deadline_s=deadline_s,
            on_message=lambda worker, message, heard=heard: heard.append((worker.number, len(message))),
        )
        took = time.monotonic() - began
        found = set(report.left), report.killed, report.remaining
        if took < deadline_s * 4 / 3 and found == ({polite, choking, dead}, (stubborn,), ()):
            break
    assert took < deadline_s * 4 / 3
    assert found == ({polite, choking, dead}, (stubborn,), ())
    assert polite.exit_cause is not None
    assert polite.exit_cause.clean
    assert set(heard) == {(polite.number, 9), (choking.number, 30 << 20)}
    assert stop_workers(nursery, [launch(busy)], message=None).left == ()


def test_a_worker_nobody_talks_to_ends(launch: Callable[..., WorkerProcess]) -> None:
    from gristmill.backends.local import nursery_main

    def watched(channel: Channel, status: StatusWriter) -> None:
        nursery_main.end_with_peer(channel.socket)
        channel.send("busy")
        while True:
            time.sleep(1)

    idle, occupied = launch(echo), launch(watched)
    assert ask(idle, 1) == 1
    receive(occupied)
    idle.channel.close()
    occupied.channel.close()
    assert str(idle.wait(timeout_s=PATIENCE_S)) == "exit code 0"
    assert str(occupied.wait(timeout_s=PATIENCE_S)) == "exit code 0"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_driver_that_forks_keeps_its_workers_to_itself(
    nursery: Nursery, launch: Callable[..., WorkerProcess]
) -> None:
    worker = launch(echo)
    assert ask(worker, 1) == 1
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            try:
                nursery.fork(entry=RECEIVED_FUNCTION_ENTRY)
            except WorkerError as error:
                os.write(write, str(error).encode())
            nursery.close()
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read) as file:
        assert "forked from the driver" in file.read()
    assert ask(worker, 2) == 2


def test_workers_can_be_forked_from_several_threads(launch: Callable[..., WorkerProcess]) -> None:
    made: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(ask(launch(echo), 5))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [5] * 6


def test_a_nursery_that_dies_takes_its_workers_and_is_replaced() -> None:
    first = shared_nursery()
    assert shared_nursery() is first
    worker = first.fork(entry=RECEIVED_FUNCTION_ENTRY)
    worker.channel.send(cloudpickle.dumps(busy))
    receive(worker)
    os.kill(first.pid, signal.SIGKILL)
    cause = worker.wait(timeout_s=PATIENCE_S)
    assert cause is not None
    assert cause.kind == "lost"
    assert left_of([worker.pid]) == []
    worker.close()
    with pytest.raises(WorkerError, match="SIGKILL"):
        first.fork()
    second = shared_nursery()
    assert second is not first
    first.close()
    assert shared_nursery() is second


def test_what_cannot_be_imported_is_reported_and_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no')")
    (tmp_path / "threaded_module.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with Nursery.start(["broken_module", "threaded_module", "no_such_module"]) as nursery:
        report = nursery.wait_ready()
    assert report["missing"] == ["no_such_module"]
    assert report["failed"] == {"broken_module": "RuntimeError('no')"}
    assert len(report["threads"]) == 1
    assert "has threads" in caplog.text


def test_closing_leaves_no_process() -> None:
    with Nursery.start([]) as nursery:
        worker = nursery.fork(entry=RECEIVED_FUNCTION_ENTRY)
        worker.channel.send(cloudpickle.dumps(busy))
        receive(worker)
        pids = [nursery.pid, worker.pid]
    assert left_of(pids) == []
    assert worker.exit_cause is not None
    worker.close()
    nursery.close()


DRIVER = """
import os, sys, time
import cloudpickle, select
import pyarrow as pa
from gristmill.backends.local.nursery import Nursery, RECEIVED_FUNCTION_ENTRY, shared_nursery
from gristmill.backends.local.shared_files import SharedFolder

def receive(worker):
    while True:
        for message in worker.channel.receive(at_most=1):
            return message
        select.select([worker.channel], [], [])

def launch(nursery, function):
    worker = nursery.fork(entry=RECEIVED_FUNCTION_ENTRY)
    worker.channel.send(cloudpickle.dumps(function))
    return worker

def say(*words):
    print(*words, flush=True)
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    running: list[subprocess.Popen[str]] = []

    def run(body: str) -> subprocess.Popen[str]:
        path = tmp_path / "driver_script.py"
        path.write_text(DRIVER + textwrap.dedent(body))
        process = subprocess.Popen(
            [sys.executable, "-W", "error::DeprecationWarning", str(path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": SOURCE, "TMPDIR": str(tmp_path)},
            start_new_session=True,
        )
        running.append(process)
        return process

    yield run
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline().strip()
    assert text, "the script ended early"
    return text


@pytest.mark.parametrize("where", ["main thread", "other thread"])
def test_everything_ends_with_a_killed_driver_and_is_swept(
    script: Callable[[str], subprocess.Popen[str]], tmp_path: Path, where: str
) -> None:
    driver = script(
        f"""
        import pathlib, threading
        def busy(channel, status):
            channel.send("busy")
            while True:
                pass
        def idle(channel, status):
            channel.send("idle")
            channel.recv()
        def main():
            nursery = shared_nursery()
            workers = [launch(nursery, function) for function in (busy, idle, idle)]
            for worker in workers:
                receive(worker)
            folder = SharedFolder.create("doomed", base=pathlib.Path({str(tmp_path)!r}))
            folder.write_table(pa.table({{"a": [1]}}), "left")
            say(folder.paths[0], nursery.pid, *(worker.pid for worker in workers))
            return folder, workers
        if {where!r} == "main thread":
            kept = main()
        else:
            kept = []
            thread = threading.Thread(target=lambda: kept.append(main()))
            thread.start()
            thread.join()
            # The nursery must outlive the thread that started it.
            time.sleep(0.2)
            say(len(kept[0][1]), launch(shared_nursery(), idle).pid > 0)
        time.sleep(1800)
        """
    )
    words = line(driver).split()
    folder, pids = Path(words[0]), [int(word) for word in words[1:]]
    if where == "other thread":
        assert line(driver) == "3 True"
    assert len(pids) == 4
    with SharedFolder.create("living", base=tmp_path) as living:
        living.write_table(pa.table({"a": [1]}), "kept")
        assert sweep(bases=[tmp_path]) == []
        driver.kill()
        driver.wait()
        assert left_of(pids) == []
        assert (folder / "left").exists()
        assert sweep(bases=[tmp_path]) == [folder]
        assert sorted(path.name for path in folder.parent.iterdir()) == [Path(living.paths[0]).name]


def test_a_terminal_s_interrupt_does_not_reach_workers(script: Callable[[str], subprocess.Popen[str]]) -> None:
    driver = script(
        """
        def echo(channel, status):
            while True:
                channel.send(channel.recv())
        nursery = shared_nursery()
        workers = [launch(nursery, echo) for _ in range(3)]
        for worker in workers:
            worker.channel.send(1)
            receive(worker)
        try:
            say("waiting", nursery.pid, *(worker.pid for worker in workers))
            time.sleep(1800)
        except KeyboardInterrupt:
            for worker in workers:
                worker.channel.send("alive")
            say(*(receive(worker) for worker in workers))
            launch(nursery, echo)
            say("forked")
        """
    )
    pids = [int(word) for word in line(driver).split()[1:]]
    # Not even one that is sent to them directly.
    for pid in pids:
        os.kill(pid, signal.SIGINT)
    os.killpg(driver.pid, signal.SIGINT)
    assert line(driver) == "alive alive alive"
    assert line(driver) == "forked"
    assert driver.wait(timeout=PATIENCE_S) == 0
    assert left_of(pids) == []


def test_code_of_a_script_runs_in_workers_without_running_the_script_again(
    script: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    driver = script(
        """
        # No guard: a second run of this file would start processes without end.
        with open("runs.txt", "a") as file:
            file.write("run\\n")
        FACTOR = 3
        class Stage:
            def __init__(self, add):
                self.add = add
            def process(self, value):
                return scale(value) + self.add
        def scale(value):
            return value * FACTOR
        stage = Stage(1)
        def work(channel, status):
            channel.send(stage.process(channel.recv()))
            # Nothing of the process it was forked from is to be found under the script's name.
            names = [name for name in vars(sys.modules["__main__"]) if not name.startswith("__")]
            channel.send(f"{Stage.__module__}{names}")
        workers = [launch(shared_nursery(), work) for _ in range(2)]
        for worker in workers:
            worker.channel.send(7)
        say(*(receive(worker) for worker in workers), *(receive(worker) for worker in workers))
        """
    )
    assert line(driver) == "22 22 __main__[] __main__[]"
    assert driver.wait(timeout=PATIENCE_S) == 0
    assert (tmp_path / "runs.txt").read_text() == "run\n"


def test_a_driver_that_ends_with_workers_at_work_leaves_nothing(script: Callable[[str], subprocess.Popen[str]]) -> None:
    driver = script(
        """
        def busy(channel, status):
            channel.send("busy")
            while True:
                pass
        worker = launch(shared_nursery(), busy)
        receive(worker)
        say(shared_nursery().pid, worker.pid)
        sys.exit(5)
        """
    )
    pids = [int(word) for word in line(driver).split()]
    assert driver.wait(timeout=PATIENCE_S) == 5
    assert left_of(pids) == []


def test_a_file_in_the_current_folder_does_not_disturb(
    script: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    cwd = tmp_path / "project"
    cwd.mkdir()
    (cwd / "numba.py").write_text("raise RuntimeError('not this one')")
    driver = script(
        f"""
        os.chdir({str(cwd)!r})
        def work(channel, status):
            channel.send(os.getcwd())
        worker = launch(shared_nursery(), work)
        say(receive(worker), shared_nursery().report["failed"].get("numba"))
        """
    )
    assert line(driver) == f"{cwd} None"
    assert driver.wait(timeout=PATIENCE_S) == 0
