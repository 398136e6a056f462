"""Limits the number of concurrent requests: the configured maximum, fewer while the server is overloaded.

Additive increase and multiplicative decrease, as in TCP (Chiu and Jain, "Analysis of the Increase and Decrease
Algorithms for Congestion Avoidance in Computer Networks", 1989).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable

_SLOW = 4.0
"""Responses that take this many times longer than in the best period so far mean that the server is overloaded."""
_CUT, _SLOW_CUT, _GROWTH = 0.5, 0.8, 0.1
LONGEST_PAUSE_S = 900.0
"""Maximum pause that a server can request."""


class AdaptiveLimit:
    """Admits requests up to a limit that adapts to the server.

    A 429, a 503 or a time-out halves the limit, once for all requests in flight at that moment; a `Retry-After` also
    delays all requests until then. Responses that take much longer than before lower the limit by a fifth. Each
    response raises it again, by a tenth per round of responses.

    Args:
        most: The limit while the server is not overloaded.
        clock: Returns the time in seconds.

    Example:
        >>> limit = AdaptiveLimit(8)
        >>> limit.note_overload(begun=limit.clock())
        >>> limit.current
        4
    """

    def __init__(self, most: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.most = most
        self.clock = clock
        self.running = 0
        self.overloads = 0
        self._limit = float(most)
        self._paused_until = 0.0
        self._lowered_at = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._answers, self._seconds, self._best = 0, 0.0, float("inf")

    @property
    def current(self) -> int:
        """The current maximum number of concurrent requests."""
        return max(1, int(self._limit))

    async def enter(self) -> None:
        """Wait for admission; every call must be followed by a call of `leave`."""
        while True:
            pause = self._paused_until - self.clock()
            if pause > 0:
                await asyncio.sleep(pause)
            elif self.running < self.current:
                self.running += 1
                return
            else:
                place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append(place)
                try:
                    await place
                except asyncio.CancelledError:
                    self._wake()  # the turn may have been this one's
                    raise

    def leave(self) -> None:
        """Make room for the next request."""
        self.running -= 1
        self._wake()

    def _wake(self) -> None:
        free = self.current - self.running
        while free > 0 and self._waiting:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                free -= 1

    def note_overload(self, begun: float, retry_after_s: float | None = None) -> None:
        """The server rejected a request that began at `begun`, or the request timed out."""
        now = self.clock()
        self.overloads += 1
        if retry_after_s is not None:
            self._paused_until = max(self._paused_until, now + min(retry_after_s, LONGEST_PAUSE_S))
        if begun > self._lowered_at:
            self._lower(_CUT)
            self._lowered_at = now

    def note_answer(self, seconds: float) -> None:
        """A request was answered after this many seconds."""
        self._answers += 1
        self._seconds += seconds
        if self._answers >= self._limit:  # a round: about one answer per admitted request
            mean = self._seconds / self._answers
            self._answers, self._seconds = 0, 0.0
            if mean > _SLOW * self._best:
                self._lower(_SLOW_CUT)
                return
            self._best = min(self._best, mean)
        if self._limit < self.most:
            self._limit = min(float(self.most), self._limit + max(1.0, _GROWTH * self._limit) / self._limit)

    def _lower(self, factor: float) -> None:
        self._limit = max(1.0, self._limit * factor)
