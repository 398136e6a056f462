"""Classifies the kind of work that a stack shows by the files of its frames, from the innermost outwards."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import gristmill

PACKAGE = os.path.dirname(os.path.abspath(gristmill.__file__)) + os.sep
KERNELS = os.path.join(PACKAGE, "kernels", "")
WAIT = "<wait>"
"""The file of frames that represent a waiting call."""

KINDS = {
    "kernels": "kernels",
    "user": "your Python",
    "libraries": "libraries",
    "reading": "reading",
    "writing": "writing",
    "waiting": "waiting",
    "starting": "starting",
    "own": "Gristmill",
}
"""The kinds of work, and their names in tables."""

_STANDARD = tuple(
    os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib") if sysconfig.get_path(name)
)
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_COMPILERS = ("numba", "llvmlite")
_WRITERS = (
    "storage/atomic.py", "storage/jsonl_sink.py", "storage/parquet_sink.py", "stages/text/io/writer/",
    "execution/partition_output.py", "ledger/record/",
)  # fmt: skip
_READERS = ("storage/", "stages/text/io/reader/")
_STARTERS = tuple(f"kernels/{name}.py" for name in ("ahead", "compiler", "numba_internals", "store", "warm"))
_STARTING = {
    ("gristmill/execution/runner.py", "set_up_node"),
    ("gristmill/execution/runner.py", "SegmentRunner.setup"),
    ("gristmill/backends/local/worker.py", "_prepared"),
    ("gristmill/backends/local/driver_support.py", "compile_missing_kernels"),
    ("gristmill/backends/local/fork_server.py", "start_server"),
    ("gristmill/backends/local/fork_server.py", "start_worker"),
}
"""Built-in functions in which everything counts as starting."""
_WAITING = {
    "threading.py": {"wait", "_wait_for_tstate_lock", "join"},
    "queue.py": {"get", "put"},
    "selectors.py": {"select"},
    "connection.py": {"_recv", "_send", "_poll", "wait"},
    "subprocess.py": {"_try_wait", "_wait", "wait"},
}
"""Standard-library functions that only wait."""
_UNDECIDED = frozenset({"standard", "libraries", "waiting"})
"""Frames that act on behalf of their caller."""


class Frame(NamedTuple):
    """A function on a stack: its file, its qualified name and its first line."""

    file: str
    name: str
    line: int = 0


@cache
def origin(file: str) -> str:
    """The owner of a file: a kind of `KINDS`, or `standard` for the standard library and generated code."""
    if file.startswith(PACKAGE):
        return _own(file[len(PACKAGE) :].replace(os.sep, "/"))
    if file == WAIT:
        return "waiting"
    if is_import(file) or is_compiler(file):
        return "starting"
    if any(mark in file for mark in _INSTALLED):
        return "libraries"
    if file.startswith(_STANDARD) or file in ("<string>", "<__array_function__ internals>") or file[:8] == "<frozen ":
        return "standard"
    return "user"


def is_import(file: str) -> bool:
    """Whether it belongs to Python's import system."""
    return file.startswith("<frozen importlib")


def is_compiler(file: str) -> bool:
    """Whether the file belongs to the compiler of kernels or the loader of compiled ones."""
    return any(f"{mark}{package}{os.sep}" in file for mark in _INSTALLED for package in _COMPILERS)


def _own(name: str) -> str:
    """The kind of one of our own files."""
    if name.startswith(_STARTERS):
        return "starting"
    if name.startswith("kernels/"):
        return "kernels"
    if name.startswith(_WRITERS):
        return "writing"
    return "reading" if name.startswith(_READERS) else "own"


def kind_of(stack: Sequence[Frame]) -> str:
    """The kind of work that a stack shows, from the outermost frame to the innermost.

    - The innermost frame of Gristmill or the user decides. Libraries called by it count as `libraries`, unless it reads
      or writes: then they count as reading or writing.
    - Setting up stages, importing and compiling are `starting`, no matter who does it.
    - A wait is `waiting`, unless it is for a file that is read or written.
    """
    origins = ["standard" if frame.name == "<module>" else origin(frame.file) for frame in stack]
    waits = bool(stack) and (origins[-1] == "waiting" or _waits(stack[-1]))
    inner = next((at for at in reversed(range(len(stack))) if origins[at] not in _UNDECIDED), -1)
    found = origins[inner] if inner >= 0 else "own"
    library = "libraries" in origins[inner + 1 :]
    if found == "starting" or any((shown_file(frame.file), frame.name) in _STARTING for frame in stack):
        return "starting"
    if found == "reading" and "writing" in origins:
        found = "writing"
    if found in ("reading", "writing", "kernels"):
        return found
    if waits:
        return "waiting"
    return "libraries" if library else found


def _waits(frame: Frame) -> bool:
    if origin(frame.file) != "standard":
        return False
    return frame.name.rpartition(".")[2] in _WAITING.get(os.path.basename(frame.file), ())


def shown_file(file: str) -> str:
    """A file without the folders that differ between machines; the user's own files are left unchanged."""
    if file.startswith(PACKAGE):
        return "gristmill/" + file[len(PACKAGE) :].replace(os.sep, "/")
    for mark in _INSTALLED:
        if mark in file:
            return file.rpartition(mark)[2].replace(os.sep, "/")
    for folder in _STANDARD:
        if file.startswith(folder):
            return "python/" + file[len(folder) :].replace(os.sep, "/")
    return file
