"""Work in another thread: an iterator that reads ahead, and the single stage thread of a worker."""

from __future__ import annotations

import contextlib
import ctypes
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

_STOP_S = 30.0
_RESULTS_AHEAD = 3
"""Maximum number of stage results waiting to be passed on."""
_END: Any = object()

T = TypeVar("T")


class Interrupted(BaseException):
    """Raised inside a thread to stop it: Ray Data has no call that ends a dataset without output."""


class BackgroundIterator(Generic[T]):
    """Iterates over a source in another thread, slightly ahead of its consumer.

    Args:
        source: Opens the iterator; called in the other thread, and closed there.
        ahead: Maximum number of items read ahead.
    """

    def __init__(self, source: Callable[[], Iterator[T]], *, ahead: int) -> None:
        self._source = source
        self._items: queue.Queue[T] = queue.Queue(ahead)
        self._closed = threading.Event()
        self._problem: BaseException | None = None

    def take(self, timeout_s: float | None = None) -> list[T] | None:
        """The next item in a list, which is empty if none arrives within `timeout_s`; None after the last.

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

    def __iter__(self) -> Generator[T, None, None]:
        try:
            while (items := self.take()) is not None:
                yield from items
        finally:
            self.close()

    def close(self) -> None:
        """Close the source after its next item, and discard waiting items."""
        self._closed.set()
        self._problem = None
        while not self._items.empty():
            self._items.get_nowait()

    def run(self) -> None:
        """Read the source; called in the other thread."""
        source: Iterator[T] | None = None
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

    def _put(self, item: T) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._items.put(item, timeout=0.2)
                return True
        return False


@contextlib.contextmanager
def in_background(source: Callable[[], Iterator[T]], *, ahead: int) -> Iterator[BackgroundIterator[T]]:
    """The items of `source`, read in a thread that ends with the context, even if the source yields nothing.

    Example:
        >>> with in_background(lambda: iter([1, 2]), ahead=8) as items:
        ...     items.take(timeout_s=1.0)
        [1]
    """
    items = BackgroundIterator(source, ahead=ahead)
    thread = threading.Thread(target=items.run, name="gristmill-ray-data", daemon=True)
    thread.start()
    try:
        yield items
    finally:
        items.close()
        thread.join(0.5)
        if thread.is_alive():
            number = ctypes.c_ulong(thread.ident or 0)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(number, ctypes.py_object(Interrupted))
        thread.join(_STOP_S)
        items.close()


class StageThread:
    """Calls the stages of a worker in one thread, in order, while the worker's own threads hand on the results.

    Ray collects results one by one in the thread that made them, which costs some milliseconds each: a GPU would have
    to wait. Setup, calls and teardown of a stage happen in this thread, for libraries that rely on it.

    Example:
        >>> stage_thread = StageThread()
        >>> list(stage_thread.iterate(lambda: iter("ab")))
        ['a', 'b']
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon, unlike the threads of an executor: a stage that hangs must not keep the process alive.
        threading.Thread(target=self._run, name="gristmill-stages", daemon=True).start()

    def call(self, function: Callable[[], T], *, timeout_s: float | None = None) -> T:
        """The result of calling `function` in the thread.

        Raises:
            TimeoutError: It took longer than `timeout_s`.
        """
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except BaseException as error:
                future.set_exception(error)

        self._calls.put(run)
        return future.result(timeout_s)

    def iterate(self, source: Callable[[], Iterator[T]]) -> Generator[T, None, None]:
        """The items of the iterator that `source` opens, produced in the thread slightly ahead of the consumer."""
        items = BackgroundIterator(source, ahead=_RESULTS_AHEAD)
        self._calls.put(items.run)
        yield from items

    def stop(self) -> None:
        """Stop the thread after its queued calls."""
        self._calls.put(None)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call
