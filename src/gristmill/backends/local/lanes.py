"""Two lanes to a GPU: while one group is on the device, the one before is accounted for and the next one made ready.

Each lane is a thread that runs groups of tasks through the segment. Only the calls of the stage itself are made in the
main thread, one after the other, because a stage may hold what belongs to the thread of its `setup()`. So between two
calls the device waits for nothing but the way from one call to the next.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gristmill.backends.local.status import Phase, StatusWriter
from gristmill.execution.stage_call import DirectCalls

LANES = 2


@dataclass(slots=True)
class Call:
    """A call that a lane waits for: what to call, and where the lane is."""

    method: Callable[[Any], Any]
    argument: Any
    group: int
    place: tuple[int, int, int, int]
    answer: queue.SimpleQueue[tuple[Any, BaseException | None]]
    seconds: float = 0.0

    def make(self, status: StatusWriter) -> None:
        """Call it here, after saying so on the status page; an interrupt passes, everything else goes to the lane."""
        number, stage, lo, hi = self.place
        status.update(
            phase=Phase.PROCESSING, task=self.group, batch=number, stage=stage, rows=(lo, hi), restart_clock=True
        )
        begun = time.perf_counter()
        try:
            given = DirectCalls().call(self.method, self.argument)
            # What a generator does belongs to the call too.
            found = list(given) if isinstance(given, Iterator) else given
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.seconds = time.perf_counter() - begun
            self.answer.put((None, error))
        else:
            self.seconds = time.perf_counter() - begun
            self.answer.put((found, None))


@dataclass(slots=True)
class Lane:
    """What a runner in a lane needs: it is its `Progress` and its `Calls`."""

    calls: queue.SimpleQueue[Any]
    group: int = -1
    place: tuple[int, int, int, int] = (-1, -1, 0, 0)
    waited: float = 0.0
    _answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = field(default_factory=queue.SimpleQueue)

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """Remember where the runner is; it is said when the call is made."""
        self.place = (call, stage, lo, hi)

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """Have it called in the main thread."""
        made = Call(method, argument, self.group, self.place, self._answer)
        begun = time.perf_counter()
        self.calls.put(made)
        found, error = self._answer.get()
        self.waited += time.perf_counter() - begun - made.seconds
        if error is not None:
            raise error
        return found

    def clock(self) -> float:
        """Seconds without those in which a call waited for the other lane's."""
        return time.perf_counter() - self.waited


def open_lanes(work: Callable[[Lane], None], calls: queue.SimpleQueue[Any]) -> None:
    """Start a thread for each lane; they end with the process."""
    for number in range(LANES):
        threading.Thread(target=work, args=(Lane(calls),), daemon=True, name=f"lane-{number}").start()
