"""What surrounds a call of a stage: who makes it, who is told about it, and what earlier attempts have shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gristmill.execution.slicing import Slices


class Progress(Protocol):
    """Told where the runner is, before it goes there; a local worker writes it where the driver can read it."""

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """The rows `lo` to `hi` of the input of call number `call` are now given to stage number `stage`."""


class Calls(Protocol):
    """Calls methods of stages."""

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """What `method(argument)` gives or raises."""

    def clock(self) -> float:
        """Seconds, without those in which a call had to wait for its turn."""


class DirectCalls:
    """Calls at once, in the thread of the runner."""

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """Call it."""
        return call_stage(method, argument)

    def clock(self) -> float:
        """Seconds."""
        return time.perf_counter()


def call_stage(method: Callable[[Any], Any], argument: Any) -> Any:
    """What `method(argument)` gives; a stage that wants to end the process has failed like any other."""
    try:
        return method(argument)
    except SystemExit as error:
        problem = RuntimeError(f"the stage called sys.exit({error.code!r}); raise an exception that says what is wrong")
        raise problem.with_traceback(error.__traceback__) from None


class NoProgress:
    """For places from which nobody can be killed."""

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What earlier attempts at the same task have shown, by number of the call.

    Attributes:
        slices: The input of these calls is given to the stage in these pieces, to find the document that kills.
        poison: Rows that kill, with the cause; they are quarantined without being touched.
    """

    slices: Mapping[int, Slices] = field(default_factory=dict)
    poison: Mapping[int, Mapping[int, str]] = field(default_factory=dict)
