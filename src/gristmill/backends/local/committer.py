"""Delivers results to the driver's side in a thread of its own, so that joining files never keeps workers waiting."""

from __future__ import annotations

import queue
import threading

from gristmill.execution.driver import Work
from gristmill.execution.partition_output import Leaf


class Committer:
    """Hands leaves to `Work` one after the other; the first error is kept for the engine to raise."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self._leaves: queue.SimpleQueue[Leaf | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._abandoned = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="committer")
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether everything delivered so far has been dealt with."""
        return self._waiting == 0 or self.error is not None

    def deliver(self, leaf: Leaf) -> None:
        """Take a result; returns at once."""
        with self._lock:
            self._waiting += 1
        self._leaves.put(leaf)

    def close(self) -> None:
        """Wait until everything is dealt with."""
        self._leaves.put(None)
        self._thread.join()

    def abandon(self) -> None:
        """Deal with nothing more; returns at once."""
        self._abandoned = True
        self._leaves.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for what is being dealt with now."""
        self._thread.join(timeout=timeout_s)

    def _run(self) -> None:
        while (leaf := self._leaves.get()) is not None:
            if self._abandoned or self.error is not None:
                continue
            try:
                self._work.deliver(leaf)
            except Exception as error:
                self.error = error
            finally:
                with self._lock:
                    self._waiting -= 1
