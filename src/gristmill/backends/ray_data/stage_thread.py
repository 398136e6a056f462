"""A thread in a worker that does all the work of its stages, while the worker's own thread hands on what is done.

Ray takes results one by one in the thread that made them, which costs some milliseconds each: a GPU would wait for it.
Setup, calls and teardown of a stage all happen in this one thread, for libraries that care.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

_AHEAD = 3
"""Results that wait to be handed on at the most."""

T = TypeVar("T")


class Lane:
    """Runs what it is given in one thread, in order.

    Example:
        >>> lane = Lane()
        >>> list(lane.each(lambda: iter("ab")))
        ['a', 'b']
    """

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="gristmill-stages", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """What `function` gives or raises in the thread of the lane.

        Raises:
            queue.Empty: It took longer than `timeout_s`.
        """
        answer: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def run() -> None:
            try:
                answer.put((function(), None))
            except BaseException as error:
                answer.put((None, error))

        self._orders.put(run)
        value, problem = answer.get(timeout=timeout_s)
        if problem is not None:
            raise problem
        return value  # type: ignore[return-value]

    def each(self, source: Callable[[], Iterator[T]]) -> Generator[T, None, None]:
        """What the iterator of `source` gives, made a little ahead of being taken; closed early, it stops soon."""
        items: queue.Queue[tuple[Any, BaseException | None]] = queue.Queue(_AHEAD)
        stopped = threading.Event()
        end = object()

        def put(item: Any, problem: BaseException | None = None) -> bool:
            while not stopped.is_set():
                with contextlib.suppress(queue.Full):
                    items.put((item, problem), timeout=0.2)
                    return True
            return False

        def run() -> None:
            try:
                results = source()
                for item in results:
                    if not put(item):
                        break
                close = getattr(results, "close", None)
                if close is not None:
                    close()
                put(end)
            except BaseException as error:
                put(end, error)

        self._orders.put(run)
        try:
            while True:
                item, problem = items.get()
                if problem is not None:
                    raise problem
                if item is end:
                    return
                yield item
        finally:
            stopped.set()

    def stop(self) -> None:
        """End the thread after what it has been given."""
        self._orders.put(None)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            order()
            del order
