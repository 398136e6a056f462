"""Worker processes as the driver holds them: what they are doing, why they ended, and how to end many at once.

Workers are never sent SIGTERM: it would cut a teardown in the middle. They are asked by a message, which they read
between two batches; who does not answer in time is killed.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gristmill.backends.local.channel import ChannelClosed, PolledChannel
from gristmill.backends.local.status import StatusBlock, WorkerStatus

if TYPE_CHECKING:
    from gristmill.backends.local.nursery import Nursery

__all__ = ["ExitCause", "StopReport", "WorkerProcess", "signal_name", "stop_workers"]

# What is left of the deadline for the kernel to end those who had to be killed.
_KILL_S = 0.3


@dataclass(frozen=True, slots=True)
class ExitCause:
    """Why a worker ended.

    Attributes:
        kind: `exit` (it left by itself), `signal`, `out_of_memory` (the kernel killed it for want of memory), or `lost`
            (the nursery died first, and took the worker with it).
        code: Exit code; None unless it left by itself.
        signal_name: Such as `SIGSEGV`; None unless a signal ended it.
        requested: Whether the driver had killed it.
        peak_rss_bytes: The most memory it ever had resident; 0 when lost.
        cpu_s: Processor time it used; 0.0 when lost.
    """

    kind: Literal["exit", "signal", "out_of_memory", "lost"]
    code: int | None = None
    signal_name: str | None = None
    requested: bool = False
    peak_rss_bytes: int = 0
    cpu_s: float = 0.0

    @property
    def clean(self) -> bool:
        """Whether the worker left by itself without an error."""
        return self.kind == "exit" and self.code == 0

    def __str__(self) -> str:
        if self.kind == "exit":
            return f"exit code {self.code}"
        if self.kind == "signal":
            return f"signal {self.signal_name}"
        return "out of memory" if self.kind == "out_of_memory" else "lost with the process it was forked from"


def signal_name(number: int) -> str:
    """The name of a signal, such as `SIGKILL`."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


class WorkerProcess:
    """One worker as the driver sees it: a channel, a status page, and in the end a cause of death."""

    def __init__(self, nursery: Nursery, number: int, channel: PolledChannel, block: StatusBlock) -> None:
        self.number = number
        self.pid = 0
        self.channel = channel
        self.started_at = time.monotonic()
        self.exit_cause: ExitCause | None = None
        self._nursery = nursery
        self._block = block
        self._kill_requested = False

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.number} pid {self.pid}, {self.exit_cause or 'alive'}>"

    @property
    def alive(self) -> bool:
        """Whether its end has not been reported yet."""
        return self.exit_cause is None

    def status(self) -> WorkerStatus:
        """What it last said it was doing; also after its end, until `close`."""
        return self._block.read()

    def wait(self, *, timeout_s: float | None = None) -> ExitCause | None:
        """Why it ended, waiting for its end if need be; None when it still lives after `timeout_s`."""
        self._nursery.wait_for(self, timeout_s=timeout_s)
        return self.exit_cause

    def kill(self) -> None:
        """End it and every process it started, at once; does nothing when it has ended."""
        self._nursery.poll_into_backlog()
        if self.exit_cause is None and self.pid:
            self._kill_requested = True
            # It leads a process group of its own, so that what a stage started goes with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def interrupt(self) -> None:
        """Cut short what it is doing, so that it gets to its teardown; one that has nothing in hand does not notice."""
        self._nursery.poll_into_backlog()
        if self.exit_cause is None and self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGINT)

    def close(self) -> None:
        """Let go of its channel and status page; a worker that still lives ends when it next looks at its channel."""
        self.channel.close()
        self._block.close()

    def _ended(self, code: int, *, out_of_memory: bool, peak: int, cpu_s: float) -> None:
        asked = self._kill_requested
        if code >= 0:
            self.exit_cause = ExitCause("exit", code, None, asked, peak, cpu_s)
        elif out_of_memory and not asked:
            self.exit_cause = ExitCause("out_of_memory", None, signal_name(-code), asked, peak, cpu_s)
        else:
            self.exit_cause = ExitCause("signal", None, signal_name(-code), asked, peak, cpu_s)


@dataclass(frozen=True, slots=True)
class StopReport:
    """How the workers ended.

    Attributes:
        left: Those that left when asked (or had ended before).
        killed: Those that had to be killed.
        remaining: Those that live even now; empty unless the system itself is stuck.
    """

    left: tuple[WorkerProcess, ...]
    killed: tuple[WorkerProcess, ...]
    remaining: tuple[WorkerProcess, ...]


def stop_workers(
    nursery: Nursery,
    workers: Iterable[WorkerProcess],
    *,
    message: object,
    deadline_s: float = 2.0,
    on_message: Callable[[WorkerProcess, Any], None] | None = None,
) -> StopReport:
    """End `workers` within `deadline_s`.

    Args:
        nursery: Where they come from.
        workers: Whom to end.
        message: What asks a worker to leave; None to kill at once.
        deadline_s: When all must be gone; asking stops a little earlier.
        on_message: Called with what workers still send; by default it is dropped. It is read in any case, since a
            worker that cannot get rid of its result cannot read our message either.
    """
    everyone = list(workers)
    end = time.monotonic() + deadline_s
    if message is not None:
        _ask(nursery, everyone, message, until=end - min(_KILL_S, deadline_s / 2), on_message=on_message)
    nursery.poll_into_backlog()
    killed = [worker for worker in everyone if worker.alive]
    for worker in killed:
        worker.kill()
    for worker in killed:
        worker.wait(timeout_s=max(0.0, end - time.monotonic()))
    remaining = tuple(worker for worker in killed if worker.alive)
    return StopReport(
        left=tuple(worker for worker in everyone if worker not in killed),
        killed=tuple(worker for worker in killed if not worker.alive),
        remaining=remaining,
    )


def _ask(
    nursery: Nursery,
    workers: list[WorkerProcess],
    message: object,
    *,
    until: float,
    on_message: Callable[[WorkerProcess, Any], None] | None,
) -> None:
    with selectors.DefaultSelector() as selector:
        if nursery.alive:
            selector.register(nursery, selectors.EVENT_READ)
        for worker in workers:
            if not worker.alive or worker.channel.ended:
                continue
            try:
                sent = worker.channel.send(message)
            except ChannelClosed:
                # It can still have sent something before; its end is learnt from the nursery.
                sent = True
            events = selectors.EVENT_READ if sent else selectors.EVENT_READ | selectors.EVENT_WRITE
            selector.register(worker.channel, events, worker)
        while nursery.alive and any(worker.alive for worker in workers):
            left = until - time.monotonic()
            if left <= 0:
                return
            for key, events in selector.select(left):
                if key.data is None:
                    nursery.poll_into_backlog()
                    continue
                worker = key.data
                try:
                    if events & selectors.EVENT_WRITE and worker.channel.flush():
                        selector.modify(worker.channel, selectors.EVENT_READ, worker)
                    if events & selectors.EVENT_READ:
                        for received in worker.channel.receive():
                            if on_message is not None:
                                on_message(worker, received)
                except ChannelClosed:
                    selector.unregister(worker.channel)
