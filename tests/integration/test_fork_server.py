"""Workers from the fork server with real processes: births, deaths, interrupts, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest

from gristmill.backends.local.fork_server import (
    LOST,
    WorkerProcess,
    server_pid,
    start_server,
    start_worker,
    stop_server,
)
from gristmill.backends.local.messages import StatusWriter, read_status
from gristmill.backends.local.shared_files import SharedFolder, sweep
from gristmill.errors import WorkerError
from gristmill.observe.memory import measure_tree, process_start_time

# Workers cannot import this file; what they are to do is sent by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

Function = Callable[[Connection, Any], object]
SOURCE = str(Path(__file__).parents[2] / "src")
PATIENCE_S = 600.0
"""How long a test waits for what must happen, on a machine however busy."""


@pytest.fixture
def launch() -> Iterator[Callable[..., WorkerProcess]]:
    made: list[WorkerProcess] = []

    def start(function: Function, **options: Any) -> WorkerProcess:
        made.append(start_worker(function, **options))
        return made[-1]

    yield start
    for worker in made:
        worker.kill()
        worker.wait(PATIENCE_S)
        worker.close()


def receive(worker: WorkerProcess) -> Any:
    assert worker.connection.poll(PATIENCE_S), worker
    return worker.connection.recv()


def ask(worker: WorkerProcess, message: object) -> Any:
    worker.connection.send(message)
    return receive(worker)


def echo(connection: Connection, page: Any) -> None:
    while True:
        connection.send(connection.recv())


def busy(connection: Connection, page: Any) -> None:
    connection.send("busy")
    while True:
        pass


def left_of(pids: list[int]) -> list[int]:
    """The processes that do not end."""
    give_up = time.monotonic() + PATIENCE_S
    while pids and time.monotonic() < give_up:
        pids = [pid for pid in pids if process_start_time(pid) is not None]
        time.sleep(0.005)
    return pids


def test_everything_is_imported_before_and_no_thread_runs(launch: Callable[..., WorkerProcess]) -> None:
    stop_server()
    start_server(["polars", "gristmill.stages.text.filters:WordCountFilter"])

    def look(connection: Connection, page: Any) -> None:
        before = set(sys.modules)
        import numba
        import polars as pl
        import pyarrow.parquet

        from gristmill.stages.text.filters import WordCountFilter

        threads = os.listdir("/proc/self/task")
        frame = pl.DataFrame({"a": [3, 1, 2]}).lazy().sort("a").collect(engine="streaming")
        new = len(set(sys.modules) - before)
        connection.send((new, len(threads), frame["a"].to_list(), os.environ["POLARS_MAX_THREADS"]))
        del numba, pyarrow, WordCountFilter

    new_modules, threads, values, polars_threads = receive(launch(look))
    assert new_modules < 20
    assert (threads, values, polars_threads) == (1, [1, 2, 3], "1")
    names = {
        Path(f"/proc/{server_pid()}/task/{task}/comm").read_text().strip()
        for task in os.listdir(f"/proc/{server_pid()}/task")
    }
    assert names <= {"gm-forkserver", "polars-ooc-clea"}


def test_pandas_and_scipy_wait_until_they_are_wanted(script: Callable[[str], subprocess.Popen[str]]) -> None:
    driver = script(
        """
        from gristmill.backends.local.fork_server import start_server
        def loaded(connection, page):
            connection.send([name for name in ("pandas", "scipy") if name in sys.modules])
        def from_frame(connection, page):
            # PyArrow takes a missing value of a series for null only if it knows pandas.
            connection.send(pa.array(sys.modules["pandas"].Series([1.0, float("nan")])).null_count)
        worker = start_worker(loaded)
        say(receive(worker))
        worker.wait()
        start_server(packages=["pandas"])
        say(receive(start_worker(from_frame)))
        """
    )
    assert line(driver) == "[]"
    assert line(driver) == "1"
    assert driver.wait(timeout=PATIENCE_S) == 0


def test_twenty_workers_of_which_some_are_killed(launch: Callable[..., WorkerProcess]) -> None:
    workers = [launch(echo) for _ in range(20)]
    assert len({worker.pid for worker in workers}) == 20
    for number, worker in enumerate(workers):
        assert ask(worker, number) == number
    victims, others = workers[::4], [worker for worker in workers if worker not in workers[::4]]
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    for victim in victims:
        assert victim.wait(PATIENCE_S) == "SIGKILL"
        with pytest.raises((EOFError, ConnectionResetError)):
            victim.connection.recv()
    for number, worker in enumerate(others):
        assert ask(worker, ("still", number)) == ("still", number)
    sample = measure_tree([worker.pid for worker in others])
    # Forked pages are shared: a worker that has done nothing holds little of its own.
    assert len(sample.per_pid) == 15
    assert all(held < 40 << 20 for held in sample.per_pid.values())


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
        (lambda connection, page: None, "exit code 0"),
        (lambda connection, page: sys.exit(7), "exit code 7"),
        (lambda connection, page: sys.exit("why"), "exit code 1"),
        (lambda connection, page: os._exit(9), "exit code 9"),
        (lambda connection, page: os._exit(255), "exit code 255"),
        (lambda connection, page: os.kill(os.getpid(), signal.SIGSEGV), "SIGSEGV"),
        (lambda connection, page: os.kill(os.getpid(), signal.SIGTERM), "SIGTERM"),
        (lambda connection, page: 1 / 0, "exit code 1"),
    ],
)
def test_every_end_has_its_cause(
    launch: Callable[..., WorkerProcess], capfd: pytest.CaptureFixture[str], end: Function, expected: str
) -> None:
    assert launch(end).wait(PATIENCE_S) == expected


def test_a_kill_for_want_of_memory_is_told_from_others(
    launch: Callable[..., WorkerProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for by_us in (False, True):
        worker = launch(echo)
        assert ask(worker, 1) == 1
        assert worker.wait(0) is None
        monkeypatch.setattr("gristmill.backends.local.fork_server.OutOfMemoryCounter.rose", lambda self: True)
        if by_us:
            worker.kill()
        else:
            os.kill(worker.pid, signal.SIGKILL)
        ends.append(worker.wait(PATIENCE_S))
        worker.kill()
    assert ends == ["out of memory", "SIGKILL"]


def test_what_a_stage_started_dies_with_its_worker(launch: Callable[..., WorkerProcess]) -> None:
    def parent(connection: Connection, page: Any) -> None:
        connection.send(subprocess.Popen(["sleep", "1800"]).pid)
        connection.recv()
        os._exit(3)

    for end in ("killed", "exited"):
        worker = launch(parent)
        child = receive(worker)
        if end == "killed":
            os.kill(worker.pid, signal.SIGKILL)
        else:
            worker.connection.send("go")
        assert worker.wait(PATIENCE_S) is not None
        assert left_of([child]) == []


def test_a_stage_may_use_processes_of_its_own(launch: Callable[..., WorkerProcess]) -> None:
    def pool(connection: Connection, page: Any) -> None:
        import multiprocessing

        with multiprocessing.get_context("fork").Pool(2) as made:
            connection.send(made.map(abs, [-1, -2]))

    assert receive(launch(pool)) == [1, 2]


def test_status_is_readable_after_kill_9(launch: Callable[..., WorkerProcess]) -> None:
    def work(connection: Connection, page: Any) -> None:
        status = StatusWriter(page)
        status.begin(41, 2, 3, 100, 200)
        connection.send("working")
        hi = 200
        while True:
            hi += 1
            status.begin(41, 2, 3, 100, hi)

    began = time.monotonic()
    worker = launch(work)
    receive(worker)
    seen = [read_status(worker.page).hi for _ in range(2000)]
    assert seen == sorted(seen)
    os.kill(worker.pid, signal.SIGKILL)
    worker.wait(PATIENCE_S)
    status = read_status(worker.page)
    assert status[:4] == (41, 2, 3, 100)
    assert status.hi >= seen[-1]
    assert 0 < status.running_s < time.monotonic() - began


def test_folder_path_and_environment_are_the_driver_s(
    launch: Callable[..., WorkerProcess], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("value = 12")
    start_server()
    monkeypatch.setenv("GRISTMILL_TEST_LATER", "set after the fork server started")
    monkeypatch.setenv("POLARS_MAX_THREADS", "64")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def look(connection: Connection, page: Any) -> None:
        import only_here  # type: ignore[import-not-found]

        names = ("CUDA_VISIBLE_DEVICES", "GRISTMILL_TEST_LATER", "POLARS_MAX_THREADS", "HOME", "GRISTMILL_PRELOAD")
        values = [os.environ.get(name) for name in names]
        connection.send((only_here.value, os.getcwd(), values, os.environ.get("PYTHONPATH")))

    found = receive(launch(look, env={"CUDA_VISIBLE_DEVICES": "0,3"}))
    expected = ["0,3", "set after the fork server started", "1", None, None]
    assert found == (12, str(tmp_path), expected, os.environ.get("PYTHONPATH"))


def test_workers_do_not_share_their_random_numbers(launch: Callable[..., WorkerProcess]) -> None:
    def draw(connection: Connection, page: Any) -> None:
        import random

        import numpy as np

        connection.send((random.random(), np.random.random()))

    first, second = receive(launch(draw)), receive(launch(draw))
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_a_worker_nobody_talks_to_ends(launch: Callable[..., WorkerProcess]) -> None:
    worker = launch(echo)
    assert ask(worker, 1) == 1
    worker.connection.close()
    assert worker.wait(PATIENCE_S) == "exit code 0"


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_that_the_driver_forks_has_workers_of_its_own(launch: Callable[..., WorkerProcess]) -> None:
    worker = launch(echo)
    assert ask(worker, 1) == 1
    first = server_pid()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            own = start_worker(echo)
            code = 0 if ask(own, 5) == 5 and server_pid() not in (None, first) else 2
            stop_server()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert ask(worker, 2) == 2


def test_workers_can_be_started_from_several_threads(launch: Callable[..., WorkerProcess]) -> None:
    made: list[int] = []
    threads = [threading.Thread(target=lambda: made.append(ask(launch(echo), 5))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [5] * 6


def test_a_server_that_dies_takes_its_workers_and_is_replaced(launch: Callable[..., WorkerProcess]) -> None:
    worker = launch(busy)
    receive(worker)
    first = server_pid()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert worker.wait(PATIENCE_S) == LOST
    assert left_of([worker.pid]) == []
    assert ask(launch(echo), 1) == 1
    assert server_pid() not in (None, first)


def started(launch: Callable[..., WorkerProcess], work: Function) -> WorkerProcess:
    """A worker, as the engine gets it: a start that was lost with the fork server is made again."""
    with contextlib.suppress(WorkerError):
        return launch(work)
    return launch(work)


def test_a_server_killed_at_any_moment_of_its_start_is_replaced_by_one_of_ours(
    launch: Callable[..., WorkerProcess],
) -> None:
    def look(connection: Connection, page: Any) -> None:
        connection.send("gristmill.backends.local.preload" in sys.modules)

    for delay_ms in (0, 1, 2, 5, 10, 20, 40, 80, 120, 160, 200, 250, 300, 400, 600, 900):
        stop_server()
        start_server()
        first = server_pid()
        assert first is not None
        killer = threading.Timer(delay_ms / 1000, os.kill, (first, signal.SIGKILL))
        killer.start()
        started(launch, echo)
        killer.join()
        assert left_of([first]) == []
        # What is there now is ours, with our settings: workers find all imported, and it is ended when we ask.
        assert receive(started(launch, look)) is True, delay_ms
        second = server_pid()
        assert second not in (None, first)
        stop_server()
        assert server_pid() is None
        assert left_of([second]) == []


def test_what_cannot_be_imported_is_not_fatal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, launch: Callable[..., WorkerProcess]
) -> None:
    (tmp_path / "broken_module.py").write_text("raise RuntimeError('no')")
    (tmp_path / "sound_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    stop_server()
    start_server(["broken_module", "no_such_module", "sound_module"])

    def look(connection: Connection, page: Any) -> None:
        connection.send("sound_module" in sys.modules)

    assert receive(launch(look))
    from gristmill.backends.local import fork_server

    fork_server._preloaded.clear()
    stop_server()


DRIVER = """
import os, sys, time
import pyarrow as pa
from gristmill.backends.local.fork_server import server_pid, start_worker
from gristmill.backends.local.shared_files import SharedFolder

def receive(worker):
    return worker.connection.recv()

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
        import pathlib, re, threading
        def busy(connection, page):
            connection.send("busy")
            while True:
                pass
        def holding_the_interpreter(connection, page):
            connection.send("holding")
            re.match(r"(a+)+$", "a" * 64 + "b")
        def idle(connection, page):
            connection.send("idle")
            connection.recv()
        def main():
            workers = [start_worker(function) for function in (busy, idle, holding_the_interpreter)]
            for worker in workers:
                receive(worker)
            folder = SharedFolder.create("doomed", base=pathlib.Path({str(tmp_path)!r}))
            folder.write_table(pa.table({{"a": [1]}}), "left")
            say(folder.paths[0], server_pid(), *(worker.pid for worker in workers))
            return folder, workers
        if {where!r} == "main thread":
            kept = main()
        else:
            kept = []
            thread = threading.Thread(target=lambda: kept.append(main()))
            thread.start()
            thread.join()
            # The fork server must outlive the thread that started it.
            time.sleep(0.2)
            say(len(kept[0][1]), start_worker(idle).pid > 0)
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
        # The fork server has swept before it ended, and nothing of others.
        assert sorted(path.name for path in folder.parent.iterdir()) == [Path(living.paths[0]).name]


def test_where_the_fork_server_is_killed_too_the_next_run_sweeps(
    script: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    driver = script(
        f"""
        import pathlib
        worker = start_worker(lambda connection, page: connection.recv())
        folder = SharedFolder.create("doomed", base=pathlib.Path({str(tmp_path)!r}))
        folder.write_table(pa.table({{"a": [1]}}), "left")
        say(folder.paths[0], server_pid(), worker.pid)
        time.sleep(1800)
        """
    )
    words = line(driver).split()
    folder, server = Path(words[0]), int(words[1])
    os.kill(server, signal.SIGSTOP)  # it does not get to its last words
    driver.kill()
    driver.wait()
    os.kill(server, signal.SIGKILL)
    assert left_of([server, int(words[2])]) == []
    assert (folder / "left").exists()
    assert sweep(bases=[tmp_path]) == [folder]


def test_a_terminal_s_interrupt_does_not_reach_workers(script: Callable[[str], subprocess.Popen[str]]) -> None:
    driver = script(
        """
        def echo(connection, page):
            while True:
                connection.send(connection.recv())
        workers = [start_worker(echo) for _ in range(3)]
        for worker in workers:
            worker.connection.send(1)
            receive(worker)
        try:
            say("waiting", server_pid(), *(worker.pid for worker in workers))
            time.sleep(1800)
        except KeyboardInterrupt:
            for worker in workers:
                worker.connection.send("alive")
            say(*(receive(worker) for worker in workers))
            start_worker(echo)
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
        def work(connection, page):
            connection.send(stage.process(connection.recv()))
            # Nothing of the process it was forked from is to be found under the script's name.
            names = [name for name in vars(sys.modules["__main__"]) if not name.startswith("__")]
            connection.send(f"{Stage.__module__}{names}")
        workers = [start_worker(work) for _ in range(2)]
        for worker in workers:
            worker.connection.send(7)
        say(*(receive(worker) for worker in workers), *(receive(worker) for worker in workers))
        """
    )
    assert line(driver) == "22 22 __main__[] __main__[]"
    assert driver.wait(timeout=PATIENCE_S) == 0
    assert (tmp_path / "runs.txt").read_text() == "run\n"


def test_a_driver_that_ends_with_workers_at_work_leaves_nothing(script: Callable[[str], subprocess.Popen[str]]) -> None:
    driver = script(
        """
        def busy(connection, page):
            connection.send("busy")
            while True:
                pass
        worker = start_worker(busy)
        receive(worker)
        say(server_pid(), worker.pid)
        sys.exit(5)
        """
    )
    pids = [int(word) for word in line(driver).split()]
    assert driver.wait(timeout=PATIENCE_S) == 5
    assert left_of(pids) == []


def test_a_pool_of_the_user_s_may_run_pipelines(script: Callable[[str], subprocess.Popen[str]]) -> None:
    driver = script(
        """
        import multiprocessing
        def echo(connection, page):
            connection.send(connection.recv())
        def work(value):
            worker = start_worker(echo)
            worker.connection.send(value)
            return receive(worker)
        with multiprocessing.get_context("fork").Pool(1) as pool:
            say(*pool.map(work, [1, 2]))
        """
    )
    assert line(driver) == "1 2"
    assert driver.wait(timeout=PATIENCE_S) == 0


def test_processes_of_the_user_s_own_are_left_alone(script: Callable[[str], subprocess.Popen[str]]) -> None:
    driver = script(
        """
        import multiprocessing
        from gristmill.backends.local.fork_server import start_server
        def echo(connection, page):
            connection.send(connection.recv())
        def asked(worker):
            worker.connection.send(7)
            return receive(worker)
        def live():
            mine, theirs = multiprocessing.Pipe()
            process = multiprocessing.get_context("forkserver").Process(target=theirs.recv)
            process.start()
            return process, mine
        if __name__ == "__main__":
            for first in ("user", "we"):
                if first == "we":
                    os.kill(server_pid(), 9)
                    while server_pid():
                        time.sleep(0.01)
                    start_server()
                process, mine = live()
                start_server(packages=["pandas"])
                answer = asked(start_worker(echo))
                start_server(packages=["polars"])
                mine.send(1)
                process.join()
                say(answer, process.exitcode)
        """
    )
    assert line(driver) == "7 0"
    assert line(driver) == "7 0"
    assert driver.wait(timeout=PATIENCE_S) == 0


def test_a_file_in_the_current_folder_does_not_disturb(
    script: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    cwd = tmp_path / "project"
    cwd.mkdir()
    for name in ("numba", "signal", "multiprocessing"):
        (cwd / f"{name}.py").write_text("raise RuntimeError('not this one')")
    driver = script(
        f"""
        os.chdir({str(cwd)!r})
        def work(connection, page):
            connection.send((os.getcwd(), "numba" in sys.modules))
        worker = start_worker(work)
        say(*receive(worker))
        """
    )
    assert line(driver) == f"{cwd} True"
    assert driver.wait(timeout=PATIENCE_S) == 0


def test_a_server_that_is_told_twice_to_end_ends() -> None:
    """The kernel tells it once for every thread of the driver; the second time came while the first held a lock."""
    code = """
        import os, signal, subprocess, threading, time
        from functools import partial
        from gristmill.backends.local import preload, shared_files

        lock = threading.Lock()

        def sweep():
            with lock:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.1)

        gone = subprocess.Popen(["true"])
        gone.wait()
        shared_files.sweep = sweep
        signal.signal(signal.SIGTERM, partial(preload._end, gone.pid))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20)
        os._exit(1)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=15, check=False)
    assert done.returncode == 0
