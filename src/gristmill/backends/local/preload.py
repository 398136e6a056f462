"""What the fork server imports before it forks: packages, stages and compiled kernels, once for all workers.

Importing this module does that in a fork server, which gets the list in an environment variable, and does nothing
elsewhere. No user code is run and no thread is started here: a thread that holds a lock at the moment of a fork leaves
it locked forever in the child.

A fork server briefly outlives a killed driver to end the workers and remove their shared memory. If both are killed at
once, the next run removes it.
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

# Large packages first; missing ones are skipped.
EVERY_WORKER: tuple[str, ...] = (
    "numpy",
    "numpy.ma",  # which numba inspects when it first sees an Arrow array
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
    """Import the available modules of `names`, then load their compiled kernels.

    Import errors are ignored here: a worker that needs the package will report them.

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
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second call would wait for locks that this one holds
    with contextlib.suppress(Exception):
        import psutil

        from gristmill.backends.local.shared_files import sweep

        for child in psutil.Process().children():
            if child.name() == WORKER_NAME.decode():  # others are the user's own
                os.killpg(child.pid, signal.SIGKILL)
                child.wait(_LAST_S)
        # The kernel notifies us before the driver has completely exited.
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
    # Leave the driver's session: a terminal's signals are only for the driver, and a kernel that schedules by session
    # does not make the driver wait for these imports.
    os.setsid()
    # Discard an interrupt that arrived since the start; from here on they are ignored, also by a worker until it is
    # ready for them: the standard library would print a traceback for one during start-up.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    sys.excepthook = _tell
    end = partial(_end, settings["driver"])
    atexit.register(end)
    signal.signal(signal.SIGTERM, end)
    os.register_at_fork(after_in_child=partial(signal.signal, signal.SIGTERM, signal.SIG_DFL))
    end_with_parent(b"gm-forkserver", tie=settings["tie"], parent=settings["driver"])
    server = os.getpid()
    os.chdir("/")  # so that other file systems can be unmounted
    # Imports create no garbage; collecting takes a tenth of the time.
    gc.disable()
    defer_imports()
    load([*EVERY_WORKER, *settings["modules"]])
    # The interpreter warns about any thread at a fork; the only possible one is asleep by now.
    warnings.filterwarnings("ignore", r".*fork\(\)", DeprecationWarning)
    set_variables(settings["restore"])
    # Objects that exist now are shared with every worker until they are written to, which the collector must not do.
    gc.freeze()
    gc.enable()


if PRELOAD_VARIABLE in os.environ:
    _become_server(os.environ.pop(PRELOAD_VARIABLE))
