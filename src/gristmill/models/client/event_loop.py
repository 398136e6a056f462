"""An event loop in its own thread, for code that is not asynchronous or runs inside another loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class BackgroundLoop:
    """Runs coroutines for callers that are not asynchronous.

    Example:
        >>> loop = BackgroundLoop()
        >>> loop.run(asyncio.sleep(0, "done"))
        'done'
        >>> loop.close()
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gristmill-llm", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; if the caller is interrupted, `work` is cancelled."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Stop the thread; the loop cannot be used afterwards."""
        if not self._loop.is_closed():
            self.run(_cancelled_others())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancelled_others() -> None:
    """Cancel remaining work in the loop, so that other threads do not wait for it forever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
