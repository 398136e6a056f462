"""How results leave a Xenna pipeline while it runs: Xenna itself gives them only at its end, all at once."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from typing import Any

import ray

from gristmill.backends.ray.parcels import Receipt
from gristmill.backends.ray.watch import Watch

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
    """A worker's way to the mailbox.

    Args:
        mailbox: The handle of the mailbox.
        ahead: Receipts that may be under way without an answer.
    """

    def __init__(self, mailbox: Any, *, ahead: int) -> None:
        self._mailbox = mailbox
        self._ahead = ahead
        self._sent: deque[tuple[Any, Receipt]] = deque()
        self._lock = threading.RLock()

    def post(self, receipt: Receipt) -> None:
        """Send a receipt. One with an error has arrived when this returns.

        Raises:
            Stopped: The run is over.
        """
        with self._lock:
            self._sent.append((self._mailbox.put.remote(receipt), receipt))
            self._settle(0 if receipt.error is not None else self._ahead)

    def settle(self) -> None:
        """Wait until everything has arrived, unless the run is over."""
        with contextlib.suppress(Stopped), self._lock:
            self._settle(0)

    def _settle(self, left: int) -> None:
        while len(self._sent) > left:
            answer, receipt = self._sent.popleft()
            while (word := ray.get(answer)) != "taken":
                if word == "closed":
                    self._sent.clear()
                    raise Stopped
                time.sleep(0.02)
                answer = self._mailbox.put.remote(receipt)
