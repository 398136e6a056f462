"""The messages between the driver and its workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gristmill.backends.local.transport import Parcel
from gristmill.errors import GristmillError
from gristmill.execution.partition_output import Leaf
from gristmill.execution.recovery import Hints
from gristmill.ledger.record.trail import StageCount, StageTime

# --- driver to worker ---


@dataclass(slots=True)
class Prepare:
    """Become a worker of this segment. `code` is the segment and the settings, pickled by value where needed."""

    code: bytes
    first: bool
    whole_partitions: bool
    worker_id: str
    gpus: tuple[int, ...]
    folders: tuple[str, ...]
    number: int
    window: int
    on_node: bool


@dataclass(slots=True)
class Run:
    """Work on these tasks as one call."""

    group: int
    parcels: list[Parcel]
    hints: Hints | None


@dataclass(slots=True)
class GoOn:
    """So many more results may be sent."""

    results: int = 1


@dataclass(slots=True)
class Leave:
    """Tear down and end."""


# --- worker to driver ---


@dataclass(slots=True)
class Ready:
    """Setup is done."""


@dataclass(slots=True)
class Output:
    """A task for the next segment (or for the caller, if there is none)."""

    group: int
    parcel: Parcel


@dataclass(slots=True)
class Ended:
    """A task has come to its end here."""

    group: int
    leaf: Leaf


@dataclass(slots=True)
class Done:
    """A group is finished: what it cost, what memory the worker has for itself, and the most it has had."""

    group: int
    seconds: float
    counts: dict[str, StageCount]
    times: dict[str, StageTime]
    held: int = 0
    taken: int = 0


@dataclass(slots=True)
class Failed:
    """The run cannot go on."""

    error: GristmillError | Exception


@dataclass(slots=True)
class Left:
    """The worker has torn down; `error` is what teardown raised."""

    error: Any = None
