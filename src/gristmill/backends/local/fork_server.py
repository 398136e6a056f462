"""Worker processes from the standard library's fork server: how they are started, and why they ended.

One fork server serves a driver process for its whole lifetime. It holds what every worker needs (`preload.py`), but no
user code and no open files of the driver. Workers end with the fork server, and the fork server ends with the driver,
however that ends. A fork server that dies is replaced when the next worker is started.

Four things are only available through private attributes of the standard library, all used only here: the fork server's
process id, its pipe to the driver, what a process forked by the driver must forget about it, and how a dead one is
replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import forkserver, get_context, heap, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.popen_forkserver import Popen
from typing import Any

from gristmill.errors import WorkerError
from gristmill.observe.memory import OutOfMemoryCounter, process_start_time

PRELOAD_VARIABLE = "GRISTMILL_PRELOAD"
LOST = "lost when the fork server died"
"""Exit cause of a worker that died with its fork server, which says nothing about the worker itself."""

# One thread for each worker: parallelism is the number of workers. The jemalloc settings keep the copies inside Arrow
# and Polars from starting a thread in the fork server, where a fork would lose it. The last two let a worker keep the
# memory of a batch for the next one, up to the size of a few batches; getting it from the kernel again costs a page
# fault per 4 kB.
SINGLE_THREADED: Mapping[str, str] = {
    "POLARS_MAX_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "ARROW_IO_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "_RJEM_MALLOC_CONF": "background_thread:false",
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(64 << 20),
}

STATUS_BYTES = 1536
WORKER_NAME = b"gm-worker"
_DEATH_S = 5.0
"""How long a fork server may take to exit after its connections are closed."""
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# Added to a worker's OOM score, so that the kernel kills a worker rather than the driver when memory runs out.
_OOM_SCORE = 300

_context = get_context("forkserver")
_server: Any = forkserver._forkserver
_lock = threading.RLock()
_preloaded: set[str] = set()
_own_server: int | None = None


# --- the fork server, as the driver holds it ---


def start_server(modules: Sequence[str] = (), *, packages: Sequence[str] = ()) -> None:
    """Ensure that a fork server is running; returns immediately, while it imports in the background.

    Args:
        modules: Additional imports of a new fork server: modules, or `module:name` for lazily loaded names. If one is
            already running, workers import these themselves.
        packages: Packages so expensive to import in every worker that a fork server without one is replaced, unless it
            is the user's own or one of its forks is still working.
    """
    global _own_server  # noqa: PLW0603 (there is one for the process)
    with _lock:
        pid = server_pid()
        if pid is not None:
            if pid != _own_server or _preloaded.issuperset(packages):
                return
            import psutil

            with contextlib.suppress(psutil.NoSuchProcess):  # it has just died
                if psutil.Process(pid).children():
                    return
            stop_server()
        elif _server._forkserver_pid is not None:
            # Its main thread is dead; the standard library considers it alive until its last thread ends.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, _server._forkserver_pid, os.WEXITED | os.WNOWAIT)
        wanted = sorted({*_preloaded, *modules, *packages})
        resource_tracker.ensure_running()
        signal_blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        before = _server._preload_modules
        try:
            # Ctrl-C is only for the driver, even while the fork server imports.
            with _environment(_settings_of_server(wanted)):
                _context.set_forkserver_preload(["gristmill.backends.local.preload"])
                forkserver.ensure_running()
        finally:
            _context.set_forkserver_preload(before)
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_blocked)
        _preloaded.update(wanted)
        _own_server = server_pid()


def stop_server() -> None:
    """Stop the fork server and its workers; a fork server started by the user is left alone."""
    with _lock:
        pid = _server._forkserver_pid
        if pid is not None and pid == _own_server:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _server._stop()


def server_pid() -> int | None:
    """Process id of the fork server; None if there is none."""
    pid: int | None = _server._forkserver_pid
    return pid if pid is not None and process_start_time(pid) is not None else None


def _settings_of_server(modules: Sequence[str]) -> dict[str, str]:
    added = {
        **SINGLE_THREADED,
        # A module in the current folder must not shadow an installed package.
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry),
    }
    settings = {
        "modules": list(modules),
        "driver": os.getpid(),
        # The kernel ties a child to the thread that started it, and only the main thread lives as long as the driver.
        "tie": threading.current_thread() is threading.main_thread(),
        "restore": {name: os.environ.get(name) for name in added},
    }
    return {**added, PRELOAD_VARIABLE: json.dumps(settings)}


@contextlib.contextmanager
def _environment(added: Mapping[str, str]) -> Iterator[None]:
    """Add variables to the driver's environment while a process is started."""
    before = {name: os.environ.get(name) for name in added}
    os.environ.update(added)
    try:
        yield
    finally:
        set_variables(before)


def set_variables(values: Mapping[str, str | None]) -> None:
    """Set variables of the environment, or with None remove them."""
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _forget_server() -> None:
    """Runs in processes forked from the driver: the fork server is not their child, so they must not wait for it."""
    if _server._forkserver_pid is not None:
        os.close(_server._forkserver_alive_fd)
        _server.__init__()
        _preloaded.clear()


os.register_at_fork(after_in_child=_forget_server)


# --- workers, as the driver holds them ---


class WorkerProcess:
    """One worker: its connection, its status page, and finally its exit cause.

    Attributes:
        pid: Its process id.
        connection: Connection for its messages.
        page: Memory shared with the driver; still readable after the worker has ended.
        sentinel: Becomes readable when it ends.
    """

    def __init__(self, process: Popen, connection: Connection, page: Any) -> None:
        self.pid: int = process.pid
        self.connection = connection
        self.page = page
        self.sentinel: int = process.sentinel
        self._process = process
        self._lock = threading.Lock()
        self._killed = False
        self._cause: str | None = None

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.pid}, {self.exit_cause or 'alive'}>"

    @property
    def exit_cause(self) -> str | None:
        """Why it ended: `exit code 1`, `SIGSEGV`, `out of memory` or `LOST`; None while it lives."""
        with self._lock:
            if self._cause is None and wait([self.sentinel], 0):
                self._cause = self._find_cause()
                self._kill_group()  # also ends what a stage started
            return self._cause

    def _find_cause(self) -> str:
        try:
            code: int = forkserver.read_signed(self.sentinel)
        except EOFError:
            return LOST
        if code >= 0:
            return f"exit code {code}"
        if code == -signal.SIGKILL and _oom_counter().rose() and not self._killed:
            return "out of memory"
        try:
            return signal.Signals(-code).name
        except ValueError:
            return f"SIG{-code}"

    def wait(self, timeout_s: float | None = None) -> str | None:
        """Wait for it to exit and return the cause; None if it is still alive after `timeout_s`."""
        if self._cause is None:
            wait([self.sentinel], timeout_s)
        return self.exit_cause

    def kill(self) -> None:
        """Kill it and every process it started, immediately; does nothing if it has exited."""
        if self.exit_cause is None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self._kill_group()

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Interrupt the current work so that teardown can start; an idle worker does not notice."""
        if self.exit_cause is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)

    def close(self) -> None:
        """Close its connection; a worker that is still alive exits when it next reads from it."""
        self.connection.close()
        self._process.close()


def start_worker(work: Callable[[Connection, Any], object], *, env: Mapping[str, str] | None = None) -> WorkerProcess:
    """Start a worker.

    Args:
        work: Function of its connection and its status page; sent by value if workers cannot import it.
        env: Environment variables in addition to the driver's and to those that limit libraries to one thread.

    Raises:
        WorkerError: The fork server has died meanwhile (another call restarts it), or the system cannot start another
            process.
    """
    import cloudpickle

    _oom_counter()  # before any worker can have been killed
    ours, theirs = _context.Pipe()
    page = _new_page()
    code = cloudpickle.dumps(work)
    environment = {**os.environ, **SINGLE_THREADED, **(env or {})}
    try:
        with _lock, _replaced_by_ours(), _hidden_main():
            # Not with its `start`, which refuses to work in processes of the user's own pools, and would make the
            # interpreter wait for workers at exit.
            process = Popen(_context.Process(target=_begin, args=(code, theirs, page, environment, os.getcwd())))
    except (EOFError, OSError) as error:
        ours.close()
        if isinstance(error, EOFError | ConnectionError):
            _await_death()
        raise WorkerError(
            f"No further worker process could be started ({error}); see the output of the fork server for the reason. "
            "Use fewer workers, or raise the limit on processes."
        ) from error
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return WorkerProcess(process, ours, page)


def _new_page() -> Any:
    try:
        return _context.RawArray("B", STATUS_BYTES)
    except OSError:
        heap.Arena._dir_candidates.clear()  # type: ignore[attr-defined]  # no usable /dev/shm: the temporary folder
        return _context.RawArray("B", STATUS_BYTES)


@contextlib.contextmanager
def _replaced_by_ours() -> Iterator[None]:
    """Makes the standard library call `start_server` when it finds the fork server dead.

    Otherwise it would start one itself, without our settings, which would then count as the user's own.
    """
    _server.ensure_running = start_server
    try:
        yield
    finally:
        del _server.ensure_running


def _await_death() -> None:
    """Wait until an unresponsive fork server has exited; until then it would count as alive."""
    until = time.monotonic() + _DEATH_S
    while server_pid() is not None and time.monotonic() < until:
        time.sleep(0.005)


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Prevents a process started inside the context from running the user's script again.

    The parts of the script that a worker needs are sent by value.
    """
    main = sys.modules["__main__"]
    spec, file = main.__spec__, getattr(main, "__file__", None)
    main.__spec__ = main.__file__ = None
    try:
        yield
    finally:
        main.__spec__, main.__file__ = spec, file


def _oom_counter() -> OutOfMemoryCounter:
    global _counter  # noqa: PLW0603 (one for the process: who asks, resets it)
    if _counter is None:
        _counter = OutOfMemoryCounter()
    return _counter


_counter: OutOfMemoryCounter | None = None


# --- in a new worker ---


def _begin(code: bytes, connection: Connection, page: Any, environment: Mapping[str, str], folder: str) -> None:
    """Turn a fresh fork into a worker and run it; never returns, so that no code of the fork server runs."""
    exit_code = 1
    try:
        _leave_the_server(environment, folder)
        import cloudpickle

        cloudpickle.loads(code)(connection, page)
        exit_code = 0
    except (EOFError, BrokenPipeError, ConnectionResetError):
        exit_code = 0  # the driver is gone or no longer listening
    except SystemExit as error:
        exit_code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
    except BaseException as error:
        if isinstance(error, OSError | MemoryError) or "start new thread" in str(error):
            sys.stderr.write(f"A worker stopped: {type(error).__name__}: {error}\n")  # a limit of the system
        else:
            traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(exit_code)


def _leave_the_server(environment: Mapping[str, str], folder: str) -> None:
    preload = sys.modules.get("gristmill.backends.local.preload")
    os.setsid()  # its own process group without a terminal, so that what a stage starts is ended with it
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if preload is not None and os.getppid() != preload.server:
        os._exit(1)
    prctl(_PR_SET_NAME, WORKER_NAME)
    # With its own copy, the fork server would not notice the driver's end.
    os.close(_server._forkserver_alive_fd)
    sys.excepthook = sys.__excepthook__
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    _raise_oom_score()
    # The fork server's own module must not appear under the name of the user's script.
    sys.modules["__main__"] = types.ModuleType("__main__")
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    importlib.invalidate_caches()
    # The interpreter reseeds the standard generator after a fork, but not numpy's global one.
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _raise_oom_score() -> None:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(1000, max(score, score + _OOM_SCORE))))


def prctl(option: int, value: int | bytes) -> bool:
    """Set an attribute of this process; False if the system has no `prctl`."""
    if not sys.platform.startswith("linux"):
        return False
    argument: Any = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    zero = ctypes.c_ulong(0)
    return bool(ctypes.CDLL(None).prctl(ctypes.c_int(option), argument, zero, zero, zero) == 0)


def end_with_parent(name: bytes, *, tie: bool, parent: int) -> None:
    """Name this process and have it receive SIGTERM when its parent exits, where the system supports that."""
    if tie:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        signal.raise_signal(signal.SIGTERM)  # it has exited already, and may have left shared memory
    prctl(_PR_SET_NAME, name)
