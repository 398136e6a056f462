"""Measures the memory of the processes of a run in a thread of its own.

The kernel walks page tables for it, which takes milliseconds for each process and much longer on a busy machine:
time in which the driver would otherwise not answer its workers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from gristmill.observe.memory import measure_tree

_PERIOD_S = 0.25
_SHARE = 0.05
"""The most of its time that the thread may spend measuring."""


class MemoryWatch:
    """The latest measurement, renewed a few times a second.

    Args:
        pids: Gives the processes to measure; called in the thread.

    Attributes:
        pss_bytes: What they hold together.
        per_pid: What each of them holds.
    """

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self.pss_bytes = 0
        self.per_pid: dict[int, int] = {}
        self._pids = pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="memory-watch")
        self._thread.start()

    def close(self) -> None:
        """Measure no more; returns at once."""
        self._over.set()

    def _watch(self) -> None:
        pause = 0.0
        while not self._over.wait(pause):
            begun = time.monotonic()
            sample = measure_tree(self._pids())
            self.pss_bytes, self.per_pid = sample.pss_bytes, sample.per_pid
            pause = max(_PERIOD_S, (time.monotonic() - begun) / _SHARE)
