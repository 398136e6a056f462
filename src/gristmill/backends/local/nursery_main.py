"""The process that workers are forked from.

It imports the heavy packages once, loads the compiled kernels, and then only waits: for a request to fork, for a worker
to end, for the driver to go away. It never runs user code and starts no thread, because a thread that holds a lock at
the moment of a fork leaves it locked for ever in the child.

Everything here runs either in the nursery (`main` and what it calls) or in a new worker (`_become_worker`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from gristmill.backends.local.channel import Channel, ChannelClosed
from gristmill.backends.local.status import StatusWriter
from gristmill.execution.late_imports import defer_imports
from gristmill.observe.memory import OutOfMemoryCounter

DEFAULT_ENTRY = "gristmill.backends.local.worker:main"
RECEIVED_FUNCTION_ENTRY = "gristmill.backends.local.nursery_main:run_received_function"

# The only functions a new worker may begin with.
ENTRIES: tuple[str, ...] = (DEFAULT_ENTRY, RECEIVED_FUNCTION_ENTRY)

# Threads that packages start when they are imported, cannot be told not to start, and that sleep without holding a lock
# until they are given work: safe to leave behind in a fork once they sleep.
#   polars-ooc-cleaner: deletes spill files of the streaming engine, waits on a queue. Its farewell at normal process
#   exit would wait for the missing thread; workers leave by `os._exit`, which has no farewells.
KNOWN_SLEEPERS = frozenset({"polars-ooc-clea"})

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
# How often to look whether the driver is still the parent, should neither signal nor end-of-file tell.
_PARENT_CHECK_S = 0.5
# Added to a worker's badness, so that the kernel takes a worker and not the driver when memory runs out.
_OOM_SCORE = 300


def _prctl(option: int, value: int | bytes) -> bool:
    """Set a process attribute; False where the system has no `prctl`."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        prctl = ctypes.CDLL(None, use_errno=True).prctl
    except (OSError, AttributeError):
        return False
    argument: Any = ctypes.c_char_p(value) if isinstance(value, bytes) else ctypes.c_ulong(value)
    return bool(prctl(ctypes.c_int(option), argument, ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)) == 0)


def other_threads() -> list[str]:
    """The names of the threads of this process besides the calling one, Python's and the system's."""
    me = threading.get_native_id()
    try:
        numbers = [int(number) for number in os.listdir("/proc/self/task")]
    except OSError:
        return [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    names = []
    for number in numbers:
        if number != me:
            with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/comm") as file:
                names.append(file.read().strip())
    return names


def _sleepers_rest(*, patience_s: float = 0.5) -> None:
    """Wait until the known background threads have done what they do at start and sleep."""

    def seen() -> list[str]:
        lines = []
        for number in os.listdir("/proc/self/task"):
            if int(number) != threading.get_native_id():
                with contextlib.suppress(OSError), open(f"/proc/self/task/{number}/stat") as file:
                    after_name = file.read().rpartition(")")[2].split()
                    lines.append(f"{number} {after_name[0]} {after_name[11]} {after_name[12]}")
        return lines

    if not os.path.isdir("/proc/self/task"):
        return
    give_up = time.monotonic() + patience_s
    before = seen()
    while time.monotonic() < give_up:
        time.sleep(0.002)
        now = seen()
        if now == before and all(line.split()[1] == "S" for line in now):
            return
        before = now


def run_received_function(channel: Channel, status: StatusWriter) -> None:
    """Entry of a worker that is told what to do: the first message is a cloudpickled `function(channel, status)`."""
    import cloudpickle

    function = cloudpickle.loads(channel.recv())
    function(channel, status)


def _preload(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Import what exists of `names`; returns what does not exist, and what failed with its message.

    Args:
        names: Modules, or `module:name` for what a module loads when it is asked for.
    """
    missing: list[str] = []
    failed: dict[str, str] = {}
    for name in names:
        try:
            module, _, attribute = name.partition(":")
            found = importlib.import_module(module)
            if attribute:
                # Packages that load their parts when asked for them are asked here.
                getattr(found, attribute)
            if name == "pandas":
                importlib.import_module("gristmill.tasks.pandas_io").introduce_pandas()
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                missing.append(name)
            else:
                failed[name] = repr(error)
        except Exception as error:
            # A package that cannot be imported is not the nursery's to judge: a worker that needs it will say so.
            failed[name] = repr(error)
    return missing, failed


def _warm_up() -> str | None:
    """Load the compiled kernels of what has been imported; the message of what went wrong, or None."""
    try:
        importlib.import_module("gristmill.kernels.warm").load_cached()
    except Exception as error:
        return repr(error)
    return None


class _Fork:
    """A worker as the nursery remembers it."""

    __slots__ = ("number", "pid")

    def __init__(self, number: int, pid: int) -> None:
        self.number = number
        self.pid = pid


class _Server:
    """The nursery's loop: fork on request, report every end, leave when the driver has left."""

    def __init__(self, control: Channel, *, parent: int) -> None:
        self.control = control
        self.parent = parent
        # Kept because the child of a fork must not clean up as if it were the nursery.
        self.pid = os.getpid()
        self.workers: dict[int, _Fork] = {}
        self.oom = OutOfMemoryCounter()
        self.wake_read, self.wake_write = os.pipe()
        for end in (self.wake_read, self.wake_write):
            os.set_blocking(end, False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        poller = select.poll()
        poller.register(self.control, select.POLLIN)
        poller.register(self.wake_read, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poller.poll(_PARENT_CHECK_S * 1000)}
            if os.getppid() != self.parent:
                return
            if self.wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self.wake_read, 4096)
            self.reap()
            if self.control.fileno() in ready:
                request = self.control.recv()
                if request["do"] == "stop":
                    return
                if request["do"] == "import":
                    _preload(request["names"])
                    _warm_up()
                    gc.freeze()
                    continue
                self.fork(request)

    def reap(self) -> None:
        for pid, worker in list(self.workers.items()):
            # Seen first and reaped second: while it is a zombie its number cannot be given to another process, so what
            # is left of its process group is surely its own.
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            self.kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            del self.workers[pid]
            code = os.waitstatus_to_exitcode(status)
            out_of_memory = code == -signal.SIGKILL and self.oom.rose()
            peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            self.control.send(
                ("exited", worker.number, code, out_of_memory, peak, usage.ru_utime + usage.ru_stime),
            )

    @staticmethod
    def kill_group(pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def fork(self, request: Mapping[str, Any]) -> None:
        _, descriptors, _, _ = socket.recv_fds(self.control.socket, 1, 2)
        try:
            sys.stdout.flush()
            sys.stderr.flush()
            with warnings.catch_warnings():
                # Newer interpreters warn about any thread at a fork; ours were looked at before the first one.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            self.control.send(("failed", request["number"], str(error)))
            return
        finally:
            if os.getpid() == self.pid:
                for descriptor in descriptors:
                    os.close(descriptor)
        if pid == 0:
            self.leave_to_worker(request, descriptors)
        # Also done by the child: whoever comes first, a kill of the group finds it.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self.workers[pid] = _Fork(request["number"], pid)
        self.control.send(("forked", request["number"], pid))

    def leave_to_worker(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> NoReturn:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            self.control.close()
            os.close(self.wake_read)
            os.close(self.wake_write)
            code = _become_worker(request, descriptors, nursery=self.pid)
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        except ChannelClosed:
            # The driver is gone or no longer interested; there is nobody left to tell.
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _become_worker(request: Mapping[str, Any], descriptors: Sequence[int], *, nursery: int) -> int:
    """Turn a fresh fork into a worker, run its entry, and give its exit code."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    tied = _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != nursery:
        return 1
    _prctl(_PR_SET_NAME, b"gm-worker")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _raise_oom_score()

    # Classes and functions of the user's script arrive by value; the script itself is not run again, and nothing of the
    # nursery is to be found under its name.
    sys.modules["__main__"] = types.ModuleType("__main__")
    sys.argv = ["gristmill-worker"]
    for name, value in request["env"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    os.chdir(request["cwd"])
    sys.path[:] = request["sys_path"]
    importlib.invalidate_caches()
    _reseed()

    channel = Channel(socket.socket(fileno=descriptors[0]))
    status = StatusWriter(descriptors[1])
    os.close(descriptors[1])
    if not tied:
        end_with_peer(channel.socket)
    with contextlib.closing(channel):
        _entry(request["entry"])(channel, status)
    return 0


def _entry(name: str) -> Callable[[Channel, StatusWriter], object]:
    if name not in ENTRIES:
        raise ValueError(f"A worker cannot begin with {name!r}; it can begin with {', '.join(ENTRIES)}.")
    module, _, function = name.partition(":")
    found: Callable[[Channel, StatusWriter], object] = getattr(importlib.import_module(module), function)
    return found


def _raise_oom_score() -> None:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+") as file:
        score = int(file.read())
        file.seek(0)
        file.write(str(min(1000, max(score, score + _OOM_SCORE))))


def _reseed() -> None:
    # The standard generator is seeded anew at a fork by the interpreter; numpy's global one is not.
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def end_with_peer(sock: socket.socket) -> threading.Thread:
    """End this process when the other end of `sock` closes, for systems that cannot tie a child to its parent."""

    def watch() -> None:
        poller = select.poll()
        poller.register(sock, 0)
        while not any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poller.poll(1000)):
            pass
        os._exit(0)

    thread = threading.Thread(target=watch, name="end-with-peer", daemon=True)
    thread.start()
    return thread


def main(arguments: Sequence[str]) -> None:
    """Be the nursery on the socket whose descriptor is the only argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    descriptor = int(arguments[0])
    os.set_inheritable(descriptor, False)
    control = Channel(socket.socket(fileno=descriptor))
    with contextlib.suppress(ChannelClosed), contextlib.closing(control):
        _serve(control)


def _serve(control: Channel) -> None:
    settings = control.recv()
    parent: int = settings["driver"]
    if settings["tie"]:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return
    _prctl(_PR_SET_NAME, b"gm-nursery")
    sys.path[:] = settings["sys_path"]
    if settings["python_path"] is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = settings["python_path"]

    began = time.monotonic()
    # Nothing that is imported becomes garbage; looking for some takes a tenth of the time.
    gc.disable()
    defer_imports()
    missing, failed = _preload(settings["preload"])
    imported_s = time.monotonic() - began
    problem = _warm_up()
    if problem is not None:
        failed["gristmill.kernels.warm"] = problem
    _sleepers_rest()
    threads = [name for name in other_threads() if name not in KNOWN_SLEEPERS]
    # What lives now is shared with every worker as long as nobody writes to it: the collector must not.
    gc.freeze()
    gc.enable()
    control.send(
        (
            "ready",
            {
                "missing": missing,
                "failed": failed,
                "threads": threads,
                "imported_s": imported_s,
                "warmed_s": time.monotonic() - began - imported_s,
            },
        )
    )
    server = _Server(control, parent=parent)
    try:
        server.serve()
    finally:
        if os.getpid() == server.pid:
            for pid in server.workers:
                server.kill_group(pid)


if __name__ == "__main__":
    # Run the importable copy, so that what workers find under this module's name is what runs here.
    importlib.import_module("gristmill.backends.local.nursery_main").main(sys.argv[1:])
    os._exit(0)
