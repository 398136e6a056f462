"""What the fork server imports before it forks: packages, stages and compiled kernels, once for all workers.

Importing this module does that in a fork server, which is told by a variable what to import, and nothing anywhere else.
No user code is run and no thread is started here: a thread that holds a lock at the moment of a fork leaves it locked
forever in the child.

A fork server outlives a driver that was killed by a moment, in which it ends the workers and removes the shared memory
that they had in common. Where both are killed at once, the next run does the latter.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterable
from functools import partial

from gristmill.backends.local.fork_server import PRELOAD_VARIABLE, WORKER_NAME, end_with_parent, set_variables
from gristmill.execution.late_imports import defer_imports
from gristmill.observe.memory import process_start_time

# Heavy packages first; what does not exist in this installation is skipped.
EVERY_WORKER: tuple[str, ...] = (
    "numpy",
    "numpy.ma",  # which numba looks into when it first meets an array of Arrow's
    "pyarrow",
    "pyarrow.ipc",
    "pyarrow.parquet:ParquetFile",
    "numba",
    "orjson",
    "cloudpickle",
    "gristmill.storage.json_records",
    "gristmill.kernels.hashing",
    "gristmill.backends.local.worker",
)

_LAST_S = 2.0
"""How long an exiting fork server waits for others to exit first."""

server = 0
"""Process id of the fork server, in itself and in its workers."""


def load(names: Iterable[str]) -> None:
    """Import what can be imported of `names`, then load the compiled kernels of what has been imported.

    Whatever is wrong with a package is not judged here: a worker that needs it will say so.

    Args:
        names: Modules, or `module:name` for lazily loaded names.
    """
    for name in names:
        with contextlib.suppress(Exception):
            module, _, attribute = name.partition(":")
            found = importlib.import_module(module)
            if attribute:
                getattr(found, attribute)
            if name == "pandas":
                importlib.import_module("gristmill.tasks.pandas_io").introduce_pandas()
    with contextlib.suppress(Exception):
        importlib.import_module("gristmill.kernels.warm").load_cached()
    wait_for_threads()


def wait_for_threads(*, patience_s: float = 0.5) -> None:
    """Wait until the threads that packages start on import are asleep.

    Polars has one that cannot be disabled (it deletes spill files). It waits on a queue without holding a lock, so
    forking is safe once it sleeps. A normal process exit would wait for it; workers exit with `os._exit`.
    """

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
    while before and time.monotonic() < give_up:
        time.sleep(0.002)
        now = seen()
        if now == before and all(line.split()[1] == "S" for line in now):
            return
        before = now


def _end(driver: int, *_: object) -> None:
    """Stop this fork server and its workers, and clean up after the driver if it is dead."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one would wait for locks that this call holds
    with contextlib.suppress(Exception):
        import psutil

        from gristmill.backends.local.shared_files import sweep

        for child in psutil.Process().children():
            if child.name() == WORKER_NAME.decode():  # others are the user's own
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(_LAST_S)
        # The kernel tells us of the driver's death before it is complete.
        give_up = time.monotonic() + _LAST_S
        while process_start_time(driver) is not None and time.monotonic() < give_up:
            time.sleep(0.005)
        sweep()
    os._exit(0)


def _tell(kind: type[BaseException], error: BaseException, trace: object) -> None:
    """Print one line on why the fork server ends; the standard library's loop reports nothing else."""
    sys.stderr.write(f"Gristmill's fork server ended: {kind.__name__}: {error}\n")


def _become_server(text: str) -> None:
    global server  # noqa: PLW0603 (what workers inherit)
    settings = json.loads(text)
    # Out of the driver's session: a terminal's signals are for the driver alone, and a kernel that shares out its time
    # by session does not make the driver wait for these imports.
    os.setsid()
    # An interrupt that came since the start is forgotten; from here on they are ignored, also by a worker until it is
    # ready for them: the standard library would print a traceback for one that comes while it starts.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.excepthook = _tell
    end = partial(_end, settings["driver"])
    atexit.register(end)
    signal.signal(signal.SIGTERM, end)
    os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))
    end_with_parent(b"gm-forkserver", tie=settings["tie"], parent=settings["driver"])
    server = os.getpid()
    os.chdir("/")  # out of the way of file systems that are to be unmounted
    # Nothing that is imported becomes garbage; looking for some takes a tenth of the time.
    gc.disable()
    defer_imports()
    load([*EVERY_WORKER, *settings["modules"]])
    # The interpreter warns about any thread at a fork; the one there may be has been waited for.
    warnings.filterwarnings("ignore", r".*fork\(\)", DeprecationWarning)
    set_variables(settings["restore"])
    # What lives now is shared with every worker as long as nobody writes to it: the collector must not.
    gc.freeze()
    gc.enable()


if PRELOAD_VARIABLE in os.environ:
    _become_server(os.environ.pop(PRELOAD_VARIABLE))
