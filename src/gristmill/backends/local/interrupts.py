"""Ctrl-C in the driver: a flag that is looked at between two steps, except where waiting may take seconds."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any


class InterruptWatch:
    """Turns Ctrl-C into a flag while it is entered.

    An exception in the middle of a message would break a channel. Only in the main thread, and only where interrupts
    are not ignored; elsewhere the flag is never set.
    """

    def __init__(self) -> None:
        self.asked = False
        self._may_cut = False
        self._before: Any = None

    def __enter__(self) -> InterruptWatch:
        if threading.current_thread() is threading.main_thread():
            before = signal.getsignal(signal.SIGINT)
            if before is not signal.SIG_IGN:
                self._before = before
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @contextlib.contextmanager
    def may_cut(self, allowed: bool) -> Iterator[None]:
        """Let Ctrl-C raise at once in what follows, if `allowed`; whatever it cuts must not be used any more."""
        self._may_cut = allowed
        try:
            if allowed and self.asked:
                raise KeyboardInterrupt
            yield
        finally:
            self._may_cut = False

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._may_cut:
            self._may_cut = False
            raise KeyboardInterrupt
