"""Communication between the driver and its workers: messages over a connection, and a status page.

A message never keeps the driver waiting for its end. It is a single write of a few kilobytes: with two writes, a stage
that never releases the interpreter could come between them, and the driver would wait for the rest instead of ending
the worker. Anything larger is put into the shared folder, and the message contains its path.

The status page is shared memory. A worker writes what it is about to do, and the driver can read it even after the
worker was killed; no system call is made. There are two slots, written in turn, each with its own sequence number and
checksum. A reader uses the newest slot with a valid checksum, so an interrupted write only hides itself.
"""

from __future__ import annotations

import itertools
import pickle
import struct
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import orjson

from gristmill.backends.local.shared_files import SharedFolder, SharedSegment
from gristmill.errors import GristmillError
from gristmill.execution.packed_task import PackedTask
from gristmill.execution.partition_output import TaskEnd
from gristmill.execution.recovery import Hints
from gristmill.ledger.record.trail import StageCount, StageTime

LARGEST_MESSAGE = 16_000
"""A connection sends up to 16,384 bytes and their length in one write."""

# --- driver to worker ---


@dataclass(slots=True)
class Prepare:
    """Start as a worker of this segment. `code` is the segment and the settings, pickled by value where needed."""

    code: bytes
    first: bool
    whole_partitions: bool
    worker_id: str
    gpus: tuple[int, ...]
    folders: tuple[str, ...]
    number: int
    window: int
    on_node: bool
    modules: tuple[str, ...] = ()


@dataclass(slots=True)
class WorkOn:
    """Process these tasks in one call."""

    group: int
    tasks: list[PackedTask]
    hints: Hints | None


@dataclass(slots=True)
class GoOn:
    """Allow the worker to send this many more results."""

    results: int = 1


@dataclass(slots=True)
class Leave:
    """Tear down and exit."""


# --- worker to driver ---


@dataclass(slots=True)
class Ready:
    """Setup is complete; without `has_kernels`, no compiled kernels were found on this machine."""

    has_kernels: bool = True


@dataclass(slots=True)
class Output:
    """A task for the next segment (or for the caller, if there is none)."""

    group: int
    task: PackedTask


@dataclass(slots=True)
class Ended:
    """A task ended in this worker."""

    group: int
    end: TaskEnd


@dataclass(slots=True)
class Done:
    """A group is finished: its cost, the worker's own memory, and the peak."""

    group: int
    seconds: float
    counts: dict[str, StageCount]
    times: dict[str, StageTime]
    held: int = 0
    taken: int = 0


@dataclass(slots=True)
class Failed:
    """A fatal error: the run cannot continue."""

    error: GristmillError | Exception


@dataclass(slots=True)
class Left:
    """The worker has torn down; `error` is what teardown raised."""

    error: Any = None


class Link:
    """One end of the connection between the driver and a worker; one thread may send while another receives.

    Args:
        connection: The connection.
        folder: Folder for large messages.
        prefix: Prefix of their file names.
    """

    def __init__(self, connection: Connection, folder: SharedFolder, prefix: str) -> None:
        self.connection = connection
        self._folder = folder
        self._names = (f"{prefix}{number}" for number in itertools.count())

    def send(self, message: object) -> None:
        """Send a message.

        Raises:
            BrokenPipeError: The other end is gone.
        """
        data = pickle.dumps(message, protocol=5)
        if len(data) > LARGEST_MESSAGE:
            data = pickle.dumps(self._folder.write_bytes(data, next(self._names)), protocol=5)
        self.connection.send_bytes(data)

    def receive(self) -> Any:
        """The next message, waiting for it.

        Raises:
            EOFError: The other end is gone.
            OSError: The data is not a message: something else wrote to the connection.
        """
        # Both ends are processes that we started; nothing from data is ever unpickled here.
        message = pickle.loads(self.connection.recv_bytes(LARGEST_MESSAGE))  # noqa: S301
        if isinstance(message, SharedSegment):
            with open(message.path, "rb") as file:
                data = file.read()
            self._folder.release(message)
            message = pickle.loads(data)  # noqa: S301
        return message


# --- the status page ---

_BODY = struct.Struct("=7q")
_CHECK = struct.Struct("=I")
_SLOT_BYTES = 256
_SLOTS = 2
_READ_ATTEMPTS = 100


class WorkerStatus(NamedTuple):
    """One consistent reading of a status page.

    Attributes:
        task: Number of the current group; -1 for none.
        batch: Number of the call within the group; -1 for none.
        stage: Index of the current stage; -1 for none.
        lo: First row of the current slice.
        hi: One past its last row.
        started_ns: When this work began, on the monotonic clock, which all processes of a machine share; 0 for none.
    """

    task: int = -1
    batch: int = -1
    stage: int = -1
    lo: int = 0
    hi: int = 0
    started_ns: int = 0

    @property
    def running_s(self) -> float:
        """Seconds since the current work began; 0.0 if there is none."""
        return max(0.0, (time.monotonic_ns() - self.started_ns) / 1e9) if self.started_ns else 0.0


IDLE = WorkerStatus()


def read_status(page: Any) -> WorkerStatus:
    """The latest complete status on a page; that of an idle worker before the first."""
    memory = memoryview(page).cast("B")
    # Retry while a slot is being written. One that stays half-written belongs to a dead worker; use the other slot.
    for _attempt in range(_READ_ATTEMPTS):
        newest, found, torn = 0, IDLE, False
        for slot in range(_SLOTS):
            at = slot * _SLOT_BYTES
            body = bytes(memory[at : at + _BODY.size])
            (check,) = _CHECK.unpack_from(memory, at + _BODY.size)
            sequence, *values = _BODY.unpack(body)
            # An untouched slot is all zeros; its sequence number distinguishes it from a written one.
            if sequence and zlib.crc32(body) != check:
                torn = True
            elif sequence > newest:
                newest, found = sequence, WorkerStatus(*values)
        if not torn:
            break
    return found


_FIGURES_AT = _SLOTS * _SLOT_BYTES
_FIGURES = struct.Struct("=II")  # size and checksum
_FIGURES_BYTES = 512


def read_figures(page: Any) -> dict[str, float]:
    """The latest figures on a page about calls that have not returned yet."""
    memory = memoryview(page).cast("B")
    size, check = _FIGURES.unpack_from(memory, _FIGURES_AT)
    data = bytes(memory[_FIGURES_AT + _FIGURES.size :][: min(size, _FIGURES_BYTES)])
    return orjson.loads(data) if size and zlib.crc32(data) == check else {}


class StatusWriter:
    """The worker's side of a status page; writing takes a few microseconds and cannot fail."""

    def __init__(self, page: Any) -> None:
        self._memory = memoryview(page).cast("B")
        self._sequence = 0

    def write(self, status: WorkerStatus) -> None:
        """Publish the current work."""
        self._sequence += 1
        at = (self._sequence % _SLOTS) * _SLOT_BYTES
        body = _BODY.pack(self._sequence, *status)
        self._memory[at : at + _BODY.size + _CHECK.size] = body + _CHECK.pack(zlib.crc32(body))

    def write_figures(self, figures: Mapping[str, float]) -> None:
        """Publish the totals so far of calls that have not returned yet."""
        data = orjson.dumps(dict(figures))
        if len(data) <= _FIGURES_BYTES:
            head = _FIGURES.pack(len(data), zlib.crc32(data))
            self._memory[_FIGURES_AT : _FIGURES_AT + len(head) + len(data)] = head + data

    def begin(self, task: int, batch: int = -1, stage: int = -1, lo: int = 0, hi: int = 0) -> None:
        """Publish the start of new work; time limits count from here."""
        self.write(WorkerStatus(task, batch, stage, lo, hi, time.monotonic_ns()))
