"""Takes the blocks of a dataset out in a thread of its own, so that the driver can look around while none comes."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

_WAITING = 64
"""Blocks that wait for the driver at the most. They lie in the object store, not in the driver."""
_STOP_S = 30.0
_END = object()


class Interrupted(BaseException):
    """Raised inside the thread to make it stop: Ray Data has no call that ends a dataset which gives nothing."""


class Pump:
    """Runs `source` in a thread and hands on what it gives.

    Args:
        source: Opens the iterator; called in the thread, and closed there.

    Example:
        >>> with Pump(lambda: iter([1, 2])).running() as pump:
        ...     pump.take(timeout_s=1.0)
        [1]
    """

    def __init__(self, source: Callable[[], Iterator[Any]]) -> None:
        self._source = source
        self._items: queue.Queue[Any] = queue.Queue(_WAITING)
        self._stopping = threading.Event()
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="gristmill-ray-data", daemon=True)

    @contextlib.contextmanager
    def running(self) -> Iterator[Pump]:
        """The pump at work; at the end the source has been closed, also if it had not come to its end."""
        self._thread.start()
        try:
            yield self
        finally:
            self._stop()

    def take(self, timeout_s: float) -> list[Any] | None:
        """What has come, an empty list if nothing comes for `timeout_s`; None once everything was taken.

        Raises:
            Exception: The source failed.
        """
        try:
            item = self._items.get(timeout=timeout_s)
        except queue.Empty:
            return []
        if item is not _END:
            return [item]
        if self._problem is not None:
            raise self._problem
        return None

    def _run(self) -> None:
        source: Iterator[Any] | None = None
        try:
            source = self._source()
            for item in source:
                if not self._put(item):
                    break
                del item
        except BaseException as error:
            self._problem = error
        finally:
            with contextlib.suppress(Interrupted):
                close = getattr(source, "close", None)
                if close is not None:
                    close()
            del source
            self._put(_END)

    def _put(self, item: Any) -> bool:
        while not self._stopping.is_set():
            try:
                self._items.put(item, timeout=0.2)
            except queue.Full:
                continue
            return True
        return False

    def _stop(self) -> None:
        self._stopping.set()
        self._thread.join(0.5)
        if self._thread.is_alive():
            number = ctypes.c_ulong(self._thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(Interrupted))
        self._thread.join(_STOP_S)
        # What is left keeps blocks, and through them workers, alive.
        self._problem = None
        while not self._items.empty():
            self._items.get_nowait()
