"""Worker processes in a few milliseconds: the driver's handle on the nursery they are forked from.

One nursery serves a driver process for its whole life (`shared_nursery`); it holds no user code and no open file of the
driver. Workers end with the nursery, the nursery ends with the driver, however that one ends.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gristmill.backends.local.channel import ChannelClosed, PolledChannel, socket_pair
from gristmill.backends.local.nursery_main import DEFAULT_ENTRY, ENTRIES, RECEIVED_FUNCTION_ENTRY
from gristmill.backends.local.nursery_settings import DEFAULT_PRELOAD, SINGLE_THREADED, interpreter_flags
from gristmill.backends.local.processes import ExitCause, WorkerProcess, signal_name
from gristmill.backends.local.status import StatusBlock
from gristmill.errors import UsageError, WorkerError, did_you_mean

__all__ = [
    "DEFAULT_ENTRY",
    "DEFAULT_PRELOAD",
    "RECEIVED_FUNCTION_ENTRY",
    "SINGLE_THREADED",
    "ExitCause",
    "Nursery",
    "WorkerProcess",
    "shared_nursery",
]

_log = logging.getLogger(__name__)

# How long one thread may hold the control socket before another that waits for a different worker gets its turn.
_TURN_S = 0.05


class Nursery:
    """A process with everything imported, from which workers are forked.

    Register it with a selector (it has a `fileno`) and call `poll` when it is readable: that is how ends of workers
    come to be known. Methods may be called from any thread.

    Example:
        ```python
        nursery = shared_nursery()
        worker = nursery.fork(env={"CUDA_VISIBLE_DEVICES": "0"})
        ```
    """

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        control: socket.socket,
        env: Mapping[str, str],
        *,
        preload: Sequence[str] = (),
    ) -> None:
        self._process = process
        self._control = PolledChannel(control)
        self._env = dict(env)
        self._environ = dict(os.environ)
        self._lock = threading.RLock()
        self._next_number = 0
        self._workers: dict[int, WorkerProcess] = {}
        self._refused: dict[int, str] = {}
        self._newly_ended: list[WorkerProcess] = []
        self._owner = os.getpid()
        self._lost = False
        self._preloaded = set(preload)
        self.report: Mapping[str, Any] | None = None
        _everyone.add(self)

    @classmethod
    def start(cls, preload: Sequence[str] = DEFAULT_PRELOAD, *, env: Mapping[str, str] = SINGLE_THREADED) -> Nursery:
        """Launch a nursery and return at once; it imports while the driver goes on.

        Args:
            preload: Modules to import in it; those that do not exist are skipped.
            env: Variables it and its workers get on top of the driver's.
        """
        if isinstance(preload, str):
            raise UsageError(f"`preload` takes a list of module names, not the text {preload!r}.", preload=preload)
        ours, theirs = socket_pair()
        try:
            with open(os.devnull, "rb") as nothing:
                process = subprocess.Popen(
                    [
                        sys.executable,
                        *interpreter_flags(),
                        "-m",
                        "gristmill.backends.local.nursery_main",
                        str(theirs.fileno()),
                    ],
                    stdin=nothing,
                    env={**os.environ, **env, "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
                    # Out of the way of file systems that are to be unmounted, and of modules that happen to lie in the
                    # current folder.
                    cwd="/",
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        nursery = cls(process, ours, env, preload=preload)
        ignores_path = sys.flags.ignore_environment
        settings = {
            "driver": os.getpid(),
            # The kernel ties a child to the thread that started it; only the main thread lives as long as the driver.
            "tie": threading.current_thread() is threading.main_thread(),
            "sys_path": [os.path.abspath(entry) for entry in sys.path],
            "python_path": None if ignores_path else os.environ.get("PYTHONPATH"),
            "preload": list(preload),
        }
        with contextlib.suppress(ChannelClosed):
            nursery._control.send(settings)
        return nursery

    @property
    def pid(self) -> int:
        """Its process number."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it can fork workers."""
        return not self._lost and self._owner == os.getpid()

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers that live, oldest first."""
        return list(self._workers.values())

    def fileno(self) -> int:
        """The descriptor that is readable when `poll` has something to learn."""
        return self._control.fileno()

    def wait_ready(self) -> Mapping[str, Any]:
        """What it imported (`missing`, `failed`, `threads`, `imported_s`, `warmed_s`), waiting until it has.

        Raises:
            WorkerError: It ended before it was ready.
        """
        while self.report is None:
            self._require_alive()
            self._turn(None)
        return self.report

    def fork(
        self,
        *,
        sys_path: Sequence[str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str | None] | None = None,
        entry: str = DEFAULT_ENTRY,
    ) -> WorkerProcess:
        """A new worker, running.

        Args:
            sys_path: Where it looks for modules; the driver's by default.
            cwd: Its current folder; the driver's by default.
            env: Variables to set, or with None to remove. Changes the driver made to its own since the nursery started
                are passed on too.
            entry: What it runs, one of the names in `nursery_main.ENTRIES`.

        Raises:
            WorkerError: The nursery is gone, or the system has no room for another process.
        """
        if entry not in ENTRIES:
            raise UsageError(
                f"A worker cannot begin with {entry!r}; it can begin with {', '.join(ENTRIES)}."
                f"{did_you_mean(entry, ENTRIES)}",
                entry=entry,
            )
        self.wait_ready()
        ours, theirs = socket_pair()
        block = StatusBlock.create()
        channel = PolledChannel(ours)
        with self._lock:
            self._next_number += 1
            worker = WorkerProcess(self, self._next_number, channel, block)
        try:
            with self._lock:
                self._workers[worker.number] = worker
                self._request(
                    {
                        "do": "fork",
                        "number": worker.number,
                        "entry": entry,
                        "sys_path": list(sys.path if sys_path is None else sys_path),
                        "cwd": os.fspath(os.getcwd() if cwd is None else cwd),
                        "env": {**self._environment_changes(), **(env or {})},
                    },
                    [theirs.fileno(), block.fileno()],
                )
            while worker.pid == 0 and worker.exit_cause is None:
                self._turn(None)
                if worker.number in self._refused:
                    raise WorkerError(
                        f"No further worker process could be started: {self._refused.pop(worker.number)}. "
                        f"{len(self._workers)} are running; use fewer, or raise the limit on processes.",
                        running=len(self._workers),
                    )
        except BaseException:
            # Also when interrupted: the end of file tells the worker, if there is one, to leave.
            self._workers.pop(worker.number, None)
            channel.close()
            block.close()
            raise
        finally:
            theirs.close()
        block.release_descriptor()
        if worker.pid == 0:
            raise WorkerError("The process that workers are forked from ended while it was starting one.")
        return worker

    def preload(self, names: Sequence[str]) -> None:
        """Import further modules before the next worker is forked; those that do not exist are skipped."""
        self.wait_ready()
        with self._lock:
            wanted = [name for name in names if name not in self._preloaded]
            if wanted:
                self._preloaded.update(wanted)
                self._request({"do": "import", "names": wanted}, ())

    def poll(self) -> list[WorkerProcess]:
        """The workers that ended since the last call; never waits."""
        with self._lock:
            if self.alive:
                self._take_in()
            ended, self._newly_ended = self._newly_ended, []
        return ended

    def poll_into_backlog(self) -> None:
        """Learn of ends without taking them from the next `poll`; never waits."""
        with self._lock:
            if self.alive:
                self._take_in()

    def wait_for(self, worker: WorkerProcess, *, timeout_s: float | None = None) -> bool:
        """Whether `worker` has ended, waiting up to `timeout_s` for it."""
        give_up = None if timeout_s is None else time.monotonic() + timeout_s
        while worker.exit_cause is None:
            left = None if give_up is None else give_up - time.monotonic()
            if left is not None and left < 0:
                return False
            self._turn(left)
        return True

    def close(self, *, timeout_s: float = 1.0) -> None:
        """End it and every worker that still lives."""
        if self._owner != os.getpid():
            self._abandon()
            return
        with self._lock:
            _everyone.discard(self)
            self._control.close()
            try:
                self._process.wait(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._lose_everything()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _environment_changes(self) -> dict[str, str | None]:
        changes: dict[str, str | None] = {
            name: value
            for name, value in os.environ.items()
            if self._environ.get(name) != value and name not in self._env
        }
        changes.update((name, None) for name in self._environ if name not in os.environ and name not in self._env)
        return changes

    def _require_alive(self) -> None:
        if self._owner != os.getpid():
            raise WorkerError("This process was forked from the driver; it cannot use the driver's workers.")
        if self._lost:
            raise WorkerError(
                "The process that workers are forked from has ended"
                f" ({_exit_text(self._process.returncode)}); what it printed before says why.",
                returncode=self._process.returncode,
            )

    def _request(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        self._require_alive()
        try:
            self._control.send(request)
            while self._control.wants_write:
                select.select([], [self._control], [])
                self._control.flush()
            if descriptors:
                select.select([], [self._control], [])
                socket.send_fds(self._control.socket, [b"F"], list(descriptors))
        except (ChannelClosed, BrokenPipeError, ConnectionResetError):
            self._lose_everything()
            self._require_alive()

    def _turn(self, timeout_s: float | None) -> None:
        """Wait a little for news from the nursery and take it in."""
        with self._lock:
            if not self.alive:
                self._require_alive()
            select.select([self._control], [], [], _TURN_S if timeout_s is None else min(_TURN_S, max(0.0, timeout_s)))
            self._take_in()

    def _take_in(self) -> None:
        try:
            messages = self._control.receive()
        except ChannelClosed:
            self._lose_everything()
            return
        for kind, *facts in messages:
            if kind == "ready":
                self.report = facts[0]
                self._complain(facts[0])
            elif kind == "forked":
                number, pid = facts
                worker = self._workers.get(number)
                if worker is not None:
                    worker.pid = pid
                else:
                    # Whoever asked for it was interrupted and is not waiting any more.
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
            elif kind == "failed":
                self._workers.pop(facts[0], None)
                self._refused[facts[0]] = facts[1]
            elif kind == "exited":
                number, code, out_of_memory, peak, cpu_s = facts
                worker = self._workers.pop(number, None)
                if worker is not None:
                    worker._ended(code, out_of_memory=out_of_memory, peak=peak, cpu_s=cpu_s)
                    self._newly_ended.append(worker)

    @staticmethod
    def _complain(report: Mapping[str, Any]) -> None:
        if report["threads"]:
            _log.warning(
                "The process that workers are forked from has threads (%s); a worker may hang on a lock that one of "
                "them held. Take the module that starts them out of `preload`.",
                ", ".join(report["threads"]),
            )
        for name, message in report["failed"].items():
            _log.warning("%s could not be loaded before workers start: %s", name, message)

    def _lose_everything(self) -> None:
        self._lost = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=1.0)
        for worker in self._workers.values():
            worker.exit_cause = ExitCause("lost", requested=worker._kill_requested)
            self._newly_ended.append(worker)
        self._workers.clear()

    def _abandon(self) -> None:
        """In a child that the driver forked: let go of the descriptors, touch nothing else."""
        self._lost = True
        self._lock = threading.RLock()
        for worker in self._workers.values():
            worker.channel.socket.close()
        self._workers.clear()
        self._control.socket.close()
        # It is not a child of this process; without this its handle would complain that it still runs.
        self._process.returncode = 0


def _exit_text(code: int | None) -> str:
    if code is None:
        return "no exit code"
    return f"exit code {code}" if code >= 0 else f"signal {signal_name(-code)}"


class _Shared:
    """The one nursery of this process, if it has been asked for."""

    def __init__(self) -> None:
        self.nursery: Nursery | None = None
        self.lock = threading.Lock()

    def get(self, modules: Sequence[str]) -> Nursery:
        with self.lock:
            if self.nursery is None or not self.nursery.alive:
                self.nursery = Nursery.start((*DEFAULT_PRELOAD, *modules))
            return self.nursery

    def close(self) -> None:
        nursery, self.nursery = self.nursery, None
        if nursery is not None:
            nursery.close()

    def forget(self) -> None:
        self.nursery = None
        self.lock = threading.Lock()


_everyone: weakref.WeakSet[Nursery] = weakref.WeakSet()
_shared = _Shared()


def shared_nursery(*, modules: Sequence[str] = ()) -> Nursery:
    """The nursery of this process: started at the first call, again if it died, ended with the process.

    Args:
        modules: What it imports besides `DEFAULT_PRELOAD` when it is started; see also `Nursery.preload`.
    """
    return _shared.get(modules)


def _after_fork_in_child() -> None:
    _shared.forget()
    for nursery in list(_everyone):
        nursery._abandon()
    _everyone.clear()


atexit.register(_shared.close)
os.register_at_fork(after_in_child=_after_fork_in_child)
