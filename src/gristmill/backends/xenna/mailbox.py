"""How results leave a Xenna pipeline while it runs: Xenna itself gives them only at its end, all at once."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from typing import Any

import ray

from gristmill.backends.ray.coordinator import Watch
from gristmill.backends.ray.parcels import Receipt

_MOST_BYTES = 256 << 20
"""What lies in the mailbox at the most; workers wait where the driver is slower than they are."""


class Stopped(Exception):  # noqa: N818 (an order, not a fault)
    """The run is over: the worker shall leave its task."""


class Mailbox(Watch):
    """The watch of a run on Xenna, with the receipts that are on their way to the driver."""

    def __init__(self) -> None:
        super().__init__()
        self._receipts: list[Receipt] = []
        self._nbytes = 0
        self._closed = False

    def put(self, receipt: Receipt) -> str:
        """Take a receipt; `full` if the worker must try again, `closed` if the run is over."""
        if self._closed:
            return "closed"
        if self._nbytes > _MOST_BYTES:
            return "full"
        self._receipts.append(receipt)
        self._nbytes += sys.getsizeof(receipt)
        return "taken"

    def take(self) -> list[Receipt]:
        """All receipts since the last call."""
        receipts, self._receipts, self._nbytes = self._receipts, [], 0
        return receipts

    def open(self) -> None:
        """Begin a round: what came from the last one has been taken."""
        self._receipts, self._nbytes, self._closed = [], 0, False

    def close(self) -> None:
        """Refuse everything from now on."""
        self._closed = True


class Sender:
    """A worker's way to the mailbox: a thread that sends, so that the next task does not wait for the last receipt.

    Args:
        mailbox: The handle of the mailbox.
        ahead: Receipts that may be under way while the worker goes on.
    """

    def __init__(self, mailbox: Any, *, ahead: int) -> None:
        self._mailbox = mailbox
        self._ahead = ahead
        self._under_way: deque[Receipt] = deque()
        self._changed = threading.Condition()
        self._problem: Exception | None = None
        threading.Thread(target=self._send, name="gristmill-receipts", daemon=True).start()

    def post(self, receipt: Receipt) -> None:
        """Send a receipt. One with an error has arrived when this returns.

        Raises:
            Stopped: The run is over.
            RayError: The mailbox cannot be reached.
        """
        with self._changed:
            self._under_way.append(receipt)
            self._changed.notify_all()
        self._settle(0 if receipt.error is not None else self._ahead)

    def settle(self) -> None:
        """Wait until everything has arrived, unless the run is over."""
        with contextlib.suppress(Stopped):
            self._settle(0)

    def _settle(self, left: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._under_way) <= left or self._problem is not None)
            if self._problem is not None:
                raise self._problem

    def _send(self) -> None:
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._under_way)
                    receipt = self._under_way[0]
                self._deliver(receipt)
                with self._changed:
                    self._under_way.popleft()
                    self._changed.notify_all()
        except (Stopped, ray.exceptions.RayError) as problem:
            with self._changed:
                self._problem = problem
                self._changed.notify_all()

    def _deliver(self, receipt: Receipt) -> None:
        while (word := ray.get(self._mailbox.put.remote(receipt))) != "taken":
            if word == "closed":
                raise Stopped
            time.sleep(0.02)
