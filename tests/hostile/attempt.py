"""One attack in its own process, and its result: a crash or a hang ends only that process."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gristmill.errors import GristmillError

FULL = os.environ.get("GRISTMILL_HOSTILE") == "full"
"""Whether all attacks are to be made (`make test-hostile`), or a small part of them."""


_ROOT = Path(__file__).parents[2]


class Outcome(NamedTuple):
    """The result of an attack.

    Attributes:
        kind: `done`, `refused` (one of our errors), `raised` (any other exception), `killed`, or `hung`.
        detail: What was returned, the error, or the signal.
    """

    kind: str
    detail: str


def attempt(attack: Callable[[], Any], *, seconds: float = 30.0, memory: int | None = None) -> Outcome:
    """Call `attack` in a forked process.

    Args:
        attack: What to try.
        seconds: How long it may take.
        memory: How many bytes of address space it may take beyond its current use.
    """
    reader, writer = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os._exit(_child(attack, writer, memory))
    os.close(writer)
    until, said = time.monotonic() + seconds, b""
    try:
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return Outcome("hung", f"no end after {seconds:g} s")
            part = os.read(reader, 1 << 16)
            if not part:
                break
            said += part
    finally:
        os.close(reader)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return Outcome("killed", signal.Signals(os.WTERMSIG(status)).name)
    kind, _, detail = said.decode("utf-8", "replace").partition("\n")
    return Outcome(kind or "killed", detail)


def attempt_fresh(module: str, function: str, *args: object, seconds: float = 120.0, **options: object) -> Outcome:
    """Call a function of a module in a new interpreter, for code that does not survive a fork, as Polars does not."""
    code = f"import {module} as m; print(repr(m.{function}(*{args!r}, **{options!r})))"
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Outcome("hung", f"no end after {seconds:g} s")
    if done.returncode < 0:
        return Outcome("killed", signal.Signals(-done.returncode).name)
    return Outcome("raised", done.stderr[-2000:]) if done.returncode else Outcome("done", done.stdout.strip())


def _child(attack: Callable[[], Any], writer: int, memory: int | None) -> int:
    if memory is not None:
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + memory, now + memory))
    try:
        answer = f"done\n{attack()!r}"
    except GristmillError as error:
        answer = f"refused\n{type(error).__name__}: {error}"
    except BaseException as error:
        answer = f"raised\n{type(error).__name__}: {error}"
    os.write(writer, answer.encode("utf-8", "replace")[:60000])
    return 0
