"""The worker process: gets groups of tasks, runs them through its segment, sends back what comes out.

One thread receives and maps the next group while the current one is worked on, one writes and sends results while the
next one is computed, and the main thread runs the stages. Between two groups the main thread makes no system call: each
would give the interpreter to the thread that sends, and the next group would wait for it. Where a stage holds a GPU,
the main thread does nothing but call it; the rest is done in two lanes (`lanes.py`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

import cloudpickle

from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.local.channel import Channel
from gristmill.backends.local.lanes import Lane, open_lanes
from gristmill.backends.local.messages import Done, Ended, Failed, GoOn, Leave, Left, Output, Prepare, Ready, Run
from gristmill.backends.local.shared_files import SharedFolder
from gristmill.backends.local.status import Phase, StatusWriter
from gristmill.backends.local.transport import pack, unpack
from gristmill.errors import ChannelClosed, GristmillError, WorkerError
from gristmill.execution.partition_output import Leaf
from gristmill.execution.runner import SegmentRunner, set_up_node
from gristmill.ledger.record.trail import Trail
from gristmill.tasks.base import Task

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


class _Progress:
    """Writes where the runner is onto the status page."""

    def __init__(self, status: StatusWriter) -> None:
        self._status = status

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        self._status.update(phase=Phase.PROCESSING, batch=call, stage=stage, rows=(lo, hi), restart_clock=True)


class _Interrupts:
    """Lets an interrupt cut short what a stage is doing, and nothing else, so that its teardown is never cut."""

    def __init__(self) -> None:
        self.asked = False
        self._at_work = False
        signal.signal(signal.SIGINT, self._handle)

    def __enter__(self) -> None:
        self._at_work = True
        if self.asked:
            raise KeyboardInterrupt

    def __exit__(self, *_: object) -> None:
        self._at_work = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
        if self._at_work:
            raise KeyboardInterrupt


class _Outbox:
    """Sends results in order from a thread of its own; `credit` bounds how many wait for room in the next queue."""

    def __init__(
        self, channel: Channel, folder: SharedFolder, number: int, window: int, resident: Callable[[], int], first: int
    ) -> None:
        self._channel = channel
        self._resident = resident
        self._first = first
        self._folder = folder
        self._number = number
        self._serial = 0
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._slots = threading.Semaphore(2)
        self._credit = threading.Semaphore(window)
        self._problem: BaseException | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="outbox")
        self._thread.start()

    def result(self, group: int, task: Task[Any]) -> None:
        """Send a task onwards; waits while two are being written already."""
        self._slots.acquire()
        if self._problem is not None:
            raise self._problem
        self._items.put((group, task))

    def message(self, message: Any) -> None:
        """Send a message behind the results."""
        self._items.put(message)

    def done(self, group: int, seconds: float, calls: Trail) -> None:
        """Say behind the results that a group is finished."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
        self.message(Done(group, seconds, calls.counts, calls.times, taken=most - self._first))

    def go_on(self, results: int) -> None:
        """So many more results may leave."""
        self._credit.release(results)

    def give_up(self) -> None:
        """Send no more results, only messages."""
        self._given_up = True
        self._credit.release()

    def flush(self) -> None:
        """Wait until everything is sent."""
        done = threading.Event()
        self._items.put(done)
        done.wait(10)

    def _work(self) -> None:
        while True:
            item = self._items.get()
            try:
                if isinstance(item, threading.Event):
                    item.set()
                elif isinstance(item, tuple):
                    group, task = item
                    if not self._given_up:
                        self._credit.acquire()
                    if self._given_up:
                        self._slots.release()
                        continue
                    self._serial += 1
                    parcel = pack(task, self._folder, f"w{self._number}-{self._serial}")
                    del task, item
                    self._slots.release()
                    self._channel.send(Output(group, parcel))
                else:
                    if isinstance(item, Done):
                        item.held = self._resident() - self._first
                    self._channel.send(item)
            except ChannelClosed:
                os._exit(1)
            except BaseException as error:
                self._problem = error
                self._slots.release()
                try:
                    self._channel.send(Failed(_sendable(error)))
                except OSError:
                    os._exit(1)  # a stage has closed the channel; the driver learns of the end


def _inbox(channel: Channel, groups: queue.SimpleQueue[Any], outbox: _Outbox) -> None:
    """Receive messages and map the documents of groups before they are needed."""
    while True:
        try:
            message = channel.recv()
            if isinstance(message, GoOn):
                outbox.go_on(message.results)
            elif isinstance(message, Run):
                groups.put((message.group, [unpack(parcel) for parcel in message.parcels], message.hints))
            else:
                groups.put(message)
        except ChannelClosed:
            os._exit(1)  # the driver is gone
        except OSError as error:
            if error.errno == errno.EBADF:
                os._exit(1)  # a stage has closed the channel
            groups.put(error)
        except BaseException as error:
            groups.put(error)


def main(channel: Channel, status: StatusWriter) -> None:
    """Be a worker until told to leave."""
    interrupts = _Interrupts()
    first = status.resident_bytes()  # shared with the nursery; what comes on top is the worker's own
    prepare: Prepare = channel.recv()
    try:
        with interrupts:
            runner = _prepared(prepare, status)
    except KeyboardInterrupt:
        return
    except Exception as error:
        channel.send(Failed(_sendable(error)))
        return
    folder = SharedFolder.attach(prepare.folders)
    outbox = _Outbox(channel, folder, prepare.number, prepare.window, status.resident_bytes, first)
    groups: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_inbox, args=(channel, groups, outbox), daemon=True, name="inbox").start()
    status.idle()
    outbox.message(Ready())
    work = _in_lanes if _takes_lanes(runner) else _in_turn
    ended_well = work(runner, groups, outbox, status, interrupts)
    status.update(phase=Phase.TEARDOWN)
    problem: Any = None
    try:
        runner.teardown()
    except GristmillError as error:
        problem = error
    outbox.message(Left(problem if ended_well else None))
    outbox.flush()


def _in_turn(
    runner: SegmentRunner,
    groups: queue.SimpleQueue[Any],
    outbox: _Outbox,
    status: StatusWriter,
    interrupts: _Interrupts,
) -> bool:
    """Work on one group after the other; whether that ended because the driver said so."""
    while True:
        item = groups.get()
        if isinstance(item, Leave):
            return _told_to_leave(outbox, interrupts)
        if isinstance(item, BaseException):
            outbox.message(Failed(_sendable(item)))
            return False
        group, tasks, hints = item
        del item
        status.update(phase=Phase.PROCESSING, task=group, batch=-1, stage=-1, rows=(0, 0), restart_clock=True)
        try:
            with interrupts:
                _run_group(runner, group, tasks, hints, outbox, time.perf_counter, status.idle)
        except KeyboardInterrupt:
            outbox.give_up()
            return False
        except BaseException as error:
            outbox.message(Failed(_sendable(error)))
            return False
        finally:
            del tasks


def _in_lanes(
    runner: SegmentRunner,
    groups: queue.SimpleQueue[Any],
    outbox: _Outbox,
    status: StatusWriter,
    interrupts: _Interrupts,
) -> bool:
    """As `_in_turn`, with everything but the calls of the stage in other threads."""
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work(lane: Lane) -> None:
        mine = runner.twin(progress=lane, calls=lane)
        while True:
            item = groups.get()
            try:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Leave):
                    calls.put(item)
                    return
                lane.group, tasks, hints = item
                del item
                _run_group(mine, lane.group, tasks, hints, outbox, lane.clock, lambda: None)
                del tasks
            except BaseException as error:
                outbox.message(Failed(_sendable(error)))
                calls.put(None)
                return

    open_lanes(work, calls)
    while True:
        item = calls.get()
        if isinstance(item, Leave):
            return _told_to_leave(outbox, interrupts)
        if item is None:
            return False
        try:
            with interrupts:
                item.make(status)
        except KeyboardInterrupt:
            outbox.give_up()
            return False
        del item
        if calls.empty():
            status.idle()


def _told_to_leave(outbox: _Outbox, interrupts: _Interrupts) -> bool:
    """Whether all is well; after an interrupt nobody makes room for results that still wait to be sent."""
    if interrupts.asked:
        outbox.give_up()
    return not interrupts.asked


def _takes_lanes(runner: SegmentRunner) -> bool:
    """Whether a device would wait; time limits need to know exactly where a worker is."""
    segment = runner.segment
    return bool(segment.resources.gpus) and segment.time_limit_s is None and not runner.whole_partitions


def _run_group(
    runner: SegmentRunner,
    group: int,
    tasks: list[Task[Any]],
    hints: Any,
    outbox: _Outbox,
    clock: Callable[[], float],
    finished: Callable[[], None],
) -> None:
    """Run a group of tasks and send what comes out."""
    begun = clock()
    for result in runner.run(tasks, hints):
        if isinstance(result, Leaf):
            outbox.message(Ended(group, result))
        else:
            outbox.result(group, result)
        del result
    seconds = clock() - begun
    finished()
    outbox.done(group, seconds, runner.call_counts)


def _prepared(prepare: Prepare, status: StatusWriter) -> SegmentRunner:
    import pyarrow as pa

    pa.set_cpu_count(1)
    try:
        segment, settings = cloudpickle.loads(prepare.code)
    except Exception as error:
        raise WorkerError(
            f"The stages could not be rebuilt in a worker process: {type(error).__name__}: {error}. "
            "Modules that a stage uses must be importable in the worker; code in the main script always is."
        ) from error
    runner = SegmentRunner(
        segment,
        settings,
        first=prepare.first,
        whole_partitions=prepare.whole_partitions,
        progress=_Progress(status),
        can_be_killed=True,
    )
    status.update(phase=Phase.SETUP, restart_clock=True)
    metadata = WorkerMetadata(prepare.worker_id, {"gpus": list(prepare.gpus)})
    try:
        if prepare.on_node:
            for stage in segment.stages:
                set_up_node(stage, NodeInfo("local"), metadata)
        runner.setup(metadata)
    except KeyboardInterrupt:
        runner.teardown()
        raise
    return runner


def _sendable(error: BaseException) -> Exception:
    """The error itself if it can be pickled and is ours, else one that says the same."""
    if isinstance(error, GristmillError | OSError):
        # An argument of it may not travel; then its text does.
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(error))  # noqa: S301 (made here a moment ago)
            return error
    text = "".join(traceback.format_exception(error))
    return WorkerError(f"A worker failed: {type(error).__name__}: {error}\n{text}")
