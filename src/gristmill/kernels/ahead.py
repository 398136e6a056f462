"""Compile the kernels that a pipeline will need in processes of their own, one per further core.

`signatures.txt` lists every kernel with the types it is called with and the stages and filters that do so; it is made
by `python -m tools.make_signatures`. The compiler holds the GIL, hence processes. They share out the work by the locks
of the store: who finds a kernel locked goes on to the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.kernels import store
from gristmill.kernels.compiler import all_kernels, compile_listeners, stores
from gristmill.kernels.signatures import parsed

LIST = Path(__file__).with_name("signatures.txt")
EVERYBODY = "*"
HEAD = """\
# Made by `python -m tools.make_signatures`: a kernel, the types of its arguments, who calls it so. Large ones first.
"""


class Listed(NamedTuple):
    """A line of the list.

    Attributes:
        kernel: The kernel, as `module.function`.
        signature: The types of its arguments, as text.
        users: Names of the classes that call it so; `EVERYBODY` where every pipeline does.
    """

    kernel: str
    signature: str
    users: frozenset[str] = frozenset()


def read_list() -> list[Listed]:
    """What is listed, those that take longest to compile first."""
    lines = [line.split("|") for line in LIST.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [Listed(name.strip(), types.strip(), frozenset(users.split())) for name, types, users in lines]


def names_in(stages: Iterable[Any]) -> set[str]:
    """The names by which the list knows stages: their classes, and those of the filters they hold."""
    names = {EVERYBODY}
    for stage in chain.from_iterable(getattr(one, "members", (one,)) for one in stages):
        names.add(type(stage).__name__)
        for value in vars(stage).values():
            held = value.values() if isinstance(value, dict) else value
            names |= {type(item).__name__ for item in (held if isinstance(value, list | tuple | dict) else (value,))}
    return {name for name in names if not name.islower()}


def missing(users: Collection[str]) -> list[Listed]:
    """What the users need and cannot be loaded yet, also for later steps of a workflow whose first one asks."""
    wanted = [one for one in read_list() if not one.users.isdisjoint(users)]
    there = {name: stores[_kernel(name)].signatures() for name in {one.kernel for one in wanted}}
    return [one for one in wanted if one.signature not in there[one.kernel]]


def _kernel(name: str) -> Any:
    """A kernel of the list, as `module.function`."""
    module, _, function = name.partition(".")
    return getattr(importlib.import_module(f"gristmill.kernels.{module}"), function)


def compile_for(stages: Iterable[Any], *, processes: int) -> list[subprocess.Popen[bytes]]:
    """Begin to compile what stages need in up to that many processes, unless others are already at it on this machine.

    They end when all is compiled, or with this process.
    """
    jobs = missing(names_in(stages)) if processes > 0 else []
    if not jobs:
        return []
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-m", "gristmill.kernels.ahead", *(f"{one.kernel}|{one.signature}" for one in jobs)]
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    begun: list[subprocess.Popen[bytes]] = []
    # Without room for a lock or for more processes, this one compiles alone.
    with contextlib.suppress(OSError), open(Path(stores[all_kernels[0]].folder, "ahead.kernel.lock"), "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the new processes hold it from here on
        atexit.register(_end, begun)
        for _ in range(min(processes, len(jobs))):
            environment = {**os.environ, "PYTHONPATH": path}
            begun.append(subprocess.Popen(command, env=environment, pass_fds=[lock.fileno()], **quiet))
    return begun


def compile_when_missing(stages: Sequence[Any], *, processes: int) -> None:
    """Do so when a kernel is first found missing in this process."""

    def listener(name: str) -> None:
        compile_listeners.remove(listener)
        compile_for(stages, processes=processes)

    compile_listeners.append(listener)


def _end(begun: Iterable[subprocess.Popen[bytes]]) -> None:
    for process in begun:
        process.kill()
        process.wait()


def compile_listed(jobs: Iterable[Listed], *, wait: bool = False) -> None:
    """Compile what is not compiled yet; what another process is compiling is skipped, or waited for with `wait`."""
    before, store.waiting = store.waiting, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    parent = os.getppid()
    try:
        for one in jobs:
            if os.getppid() != parent:
                break  # nobody waits for it any more
            with contextlib.suppress(BlockingIOError):
                _kernel(one.kernel).compile(parsed(one.signature))
    finally:
        store.waiting = before


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted and ends this
    pairs = (job.partition("|") for job in sys.argv[1:])
    compile_listed(Listed(kernel, signature) for kernel, _, signature in pairs)
