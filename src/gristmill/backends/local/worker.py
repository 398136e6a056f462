"""The worker process: receives groups of tasks, runs them through its segment, and sends back the results.

One thread receives and maps the next group while the current one is processed, one writes and sends results while the
next one is computed, and the main thread runs the stages. Between two groups the main thread makes no system call: each
would release the GIL to the sending thread, and the next group would wait for it. If a stage holds a GPU, the main
thread only calls the stage, and two other threads do the rest: while one group is on the device, the previous one is
accounted for and the next one prepared. If a stage waits for a server, these threads call it too: the next group starts
before the last answers to the current one have arrived.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import pickle
import queue
import resource
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from operator import attrgetter
from types import FrameType
from typing import Any

import cloudpickle

from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.local.messages import (
    IDLE,
    Done,
    Ended,
    Failed,
    GoOn,
    Leave,
    Left,
    Link,
    Output,
    Prepare,
    Ready,
    StatusWriter,
    WorkOn,
)
from gristmill.backends.local.preload import load
from gristmill.backends.local.shared_files import SharedFolder
from gristmill.errors import GristmillError, WorkerError
from gristmill.execution.packed_task import PackedTask, pack, unpack
from gristmill.execution.partition_output import TaskEnd
from gristmill.execution.runner import SegmentRunner, set_up_node
from gristmill.execution.stage_call import DirectCalls
from gristmill.ledger.record.trail import Trail
from gristmill.stages.base import ProcessingStage
from gristmill.tasks.base import Task

_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024
_THREADS_AROUND_GPU = 2
_FIGURES_S = 0.5


class _StatusLog:
    """Writes the runner's position to the status page; with several threads, that of the one that moved last."""

    def __init__(self, status: StatusWriter, lock: contextlib.AbstractContextManager[Any] | None = None) -> None:
        self._status = status
        self._lock = lock or contextlib.nullcontext()
        self.group = -1

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        with self._lock:
            self._status.begin(self.group, call, stage, lo, hi)


class _Interrupts:
    """Lets an interrupt stop a stage's work but never its teardown."""

    def __init__(self) -> None:
        self.asked = False
        self._at_work = False
        signal.signal(signal.SIGINT, self._handle)
        sys.unraisablehook = self._unraisable

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

    def _unraisable(self, ignored: sys.UnraisableHookArgs) -> None:
        """Suppress an interrupt inside a callback from compiled code; `asked` ends the work afterwards."""
        if not isinstance(ignored.exc_value, KeyboardInterrupt):
            sys.__unraisablehook__(ignored)


class _Outbox:
    """Sends results in order from its own thread; `credit` bounds how many are sent before the next queue has room."""

    def __init__(self, link: Link, folder: SharedFolder, prepare: Prepare, first_bytes: int) -> None:
        self._link = link
        self._first_bytes = first_bytes
        self._folder = folder
        self._number = prepare.number
        self._serial = 0
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._slots = threading.Semaphore(2)
        self._credit = threading.Semaphore(prepare.window)
        self._problem: BaseException | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="outbox")
        self._thread.start()

    def result(self, group: int, task: Task[Any]) -> None:
        """Send a task to the next segment; blocks while two are already being written."""
        self._slots.acquire()
        if self._problem is not None:
            raise self._problem
        self._items.put((group, task))

    def message(self, message: Any) -> None:
        """Send a message after the queued results."""
        self._items.put(message)

    def done(self, group: int, seconds: float, calls: Trail) -> None:
        """Report, after the queued results, that a group is finished."""
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
        self.message(Done(group, seconds, calls.counts, calls.times, taken=most - self._first_bytes))

    def go_on(self, results: int) -> None:
        """Allow this many more results to be sent."""
        self._credit.release(results)

    def give_up(self) -> None:
        """Stop sending results; messages are still sent."""
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
                    packed = self._packed(task)
                    del task, item
                    self._slots.release()
                    self._link.send(Output(group, packed))
                else:
                    if isinstance(item, Done):
                        item.held = _resident_bytes() - self._first_bytes
                    self._link.send(item)
            except BrokenPipeError:
                os._exit(1)
            except BaseException as error:
                self._problem = error
                self._slots.release()
                try:
                    self._link.send(Failed(_sendable(error)))
                except OSError:
                    os._exit(1)  # a stage has closed the connection; the driver learns of the end

    def _packed(self, task: Task[Any]) -> PackedTask:
        packed = pack(task)
        if packed.documents is not None:
            self._serial += 1
            packed.documents = self._folder.write_table(packed.documents, f"w{self._number}-{self._serial}")
        return packed


def _inbox(link: Link, groups: queue.SimpleQueue[Any], outbox: _Outbox) -> None:
    """Receive messages and map the documents of groups before they are needed."""
    while True:
        try:
            message = link.receive()
            if isinstance(message, GoOn):
                outbox.go_on(message.results)
            elif isinstance(message, WorkOn):
                for packed in message.tasks:
                    if packed.documents is not None:
                        packed.documents = SharedFolder.read_table(packed.documents)
                groups.put((message.group, [unpack(packed) for packed in message.tasks], message.hints))
            else:
                groups.put(message)
        except (EOFError, ConnectionResetError):
            os._exit(1)  # the driver is gone
        except OSError as error:
            if error.errno == errno.EBADF:
                os._exit(1)  # a stage has closed the connection
            groups.put(error)
        except BaseException as error:
            groups.put(error)


def _resident_bytes() -> int:
    """Resident memory of this process; 0 if the system does not report it."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:
            return int(file.read(128).split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def main(prepare: Prepare, connection: Connection, page: Any) -> None:
    """Run as a worker until told to stop."""
    interrupts = _Interrupts()
    status = StatusWriter(page)
    first_bytes = _resident_bytes()  # shared with the fork server; anything beyond is the worker's own
    folder = SharedFolder.attach(prepare.folders)
    link = Link(connection, folder, f"w{prepare.number}-m")
    step_log = _StatusLog(status)
    try:
        with interrupts:
            runner = _prepared(prepare, step_log)
    except KeyboardInterrupt:
        return
    except Exception as error:
        link.send(Failed(_sendable(error)))
        return
    outbox = _Outbox(link, folder, prepare, first_bytes)
    groups: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_inbox, args=(link, groups, outbox), daemon=True, name="inbox").start()
    compiler = sys.modules.get("gristmill.kernels.compiler")
    outbox.message(Ready(compiler is None or any(map(attrgetter("signatures"), compiler.all_kernels))))
    figures = _Figures(runner, status)
    if _has_gpu_alone(runner) or _overlaps(runner):
        ended_well = _around_gpu(runner, groups, outbox, status, interrupts, figures)
    else:
        ended_well = _in_turn(runner, groups, outbox, step_log, status, interrupts, figures)
    status.write(IDLE)
    problem: Any = None
    try:
        runner.teardown()
    except GristmillError as error:
        problem = error
    outbox.message(Left(problem if ended_well else None))
    outbox.flush()


class _Figures:
    """Publishes the totals of running calls on the status page, every half second."""

    def __init__(self, runner: SegmentRunner, status: StatusWriter) -> None:
        base = ProcessingStage.running_metrics
        self._stages = [stage for stage in runner.segment.stages if type(stage).running_metrics is not base]
        self._status = status
        self._lock = threading.Lock()
        if self._stages:
            threading.Thread(target=self._work, daemon=True, name="figures").start()

    def write(self) -> None:
        """Publish them now, before a group is reported as done, which then includes them."""
        if self._stages:
            with self._lock:
                total: Counter[Any] = Counter()
                for stage in self._stages:
                    total.update(stage.running_metrics())
                self._status.write_figures(total)

    def _work(self) -> None:
        while True:
            time.sleep(_FIGURES_S)
            self.write()


def _in_turn(
    runner: SegmentRunner,
    groups: queue.SimpleQueue[Any],
    outbox: _Outbox,
    step_log: _StatusLog,
    status: StatusWriter,
    interrupts: _Interrupts,
    figures: _Figures,
) -> bool:
    """Process one group after the other; returns whether the driver asked to stop."""
    while True:
        item = groups.get()
        if isinstance(item, Leave):
            return _told_to_leave(outbox, interrupts)
        if isinstance(item, BaseException):
            outbox.message(Failed(_sendable(item)))
            return False
        group, tasks, hints = item
        del item
        step_log.group = group
        status.begin(group)
        try:
            with interrupts:
                handing_on = partial(status.begin, group)
                _run_group(runner, group, tasks, hints, outbox, time.perf_counter, handing_on, figures, status)
        except KeyboardInterrupt:
            outbox.give_up()
            return False
        except BaseException as error:
            outbox.message(Failed(_sendable(error)))
            return False
        finally:
            del tasks


@dataclass(slots=True)
class StageCall:
    """A call of a stage that another thread waits for."""

    method: Callable[[Any], Any]
    argument: Any
    group: int
    place: tuple[int, int, int, int]
    answer: queue.SimpleQueue[tuple[Any, BaseException | None]]
    seconds: float = 0.0

    def make(self, status: StatusWriter) -> None:
        """Make the call here, after publishing it on the status page; only interrupts propagate."""
        status.begin(self.group, *self.place)
        begun = time.perf_counter()
        try:
            given = DirectCalls().call(self.method, self.argument)
            # Work done by a generator is part of the call.
            found = list(given) if isinstance(given, Iterator) else given
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self.seconds = time.perf_counter() - begun
            self.answer.put((None, error))
        else:
            self.seconds = time.perf_counter() - begun
            self.answer.put((found, None))


@dataclass(slots=True)
class MainThreadCalls:
    """The `StepLog` and the `Calls` of a runner that works in a thread beside the one that calls the stage."""

    calls: queue.SimpleQueue[Any]
    group: int = -1
    place: tuple[int, int, int, int] = (-1, -1, 0, 0)
    waited: float = 0.0
    _answer: queue.SimpleQueue[tuple[Any, BaseException | None]] = field(default_factory=queue.SimpleQueue)

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """Remember the runner's position; it is published when the call is made."""
        self.place = (call, stage, lo, hi)

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """Run the call in the main thread."""
        made = StageCall(method, argument, self.group, self.place, self._answer)
        begun = time.perf_counter()
        self.calls.put(made)
        found, error = self._answer.get()
        self.waited += time.perf_counter() - begun - made.seconds
        if error is not None:
            raise error
        return found

    def clock(self) -> float:
        """Seconds, excluding those spent waiting for another thread's call."""
        return time.perf_counter() - self.waited


def _around_gpu(
    runner: SegmentRunner,
    groups: queue.SimpleQueue[Any],
    outbox: _Outbox,
    status: StatusWriter,
    interrupts: _Interrupts,
    figures: _Figures,
) -> bool:
    """Like `_in_turn`, with everything except the stage's calls in other threads.

    The calls are made here, one after the other, because a stage may hold objects bound to the thread of its `setup()`.
    Those of an overlapping stage are also made in the other threads.
    """
    calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
    overlaps, lock = _overlaps(runner), threading.Lock()

    def work() -> None:
        mine: MainThreadCalls | _StatusLog
        clock: Callable[[], float] = time.perf_counter
        if overlaps:
            mine = _StatusLog(status, lock)
            own_runner = runner.twin(step_log=mine, calls=DirectCalls())
        else:
            mine = MainThreadCalls(calls)
            own_runner, clock = runner.twin(step_log=mine, calls=mine), mine.clock
        while True:
            item = groups.get()
            try:
                if isinstance(item, BaseException):
                    raise item
                if isinstance(item, Leave):
                    calls.put(item)
                    return
                mine.group, tasks, hints = item
                del item
                _run_group(own_runner, mine.group, tasks, hints, outbox, clock, _nothing, figures)
                del tasks
            except BaseException as error:
                if not interrupts.asked:  # otherwise the stage was torn down meanwhile
                    outbox.message(Failed(_sendable(error)))
                calls.put(None)
                return

    for _ in range(_THREADS_AROUND_GPU):
        threading.Thread(target=work, daemon=True).start()
    while True:
        try:
            with interrupts if overlaps else contextlib.nullcontext():
                item = calls.get()
        except KeyboardInterrupt:
            outbox.give_up()
            return False
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
            status.write(IDLE)


def _told_to_leave(outbox: _Outbox, interrupts: _Interrupts) -> bool:
    """Whether there was no error; after an interrupt, results still queued are not sent."""
    if interrupts.asked:
        outbox.give_up()
    return not interrupts.asked


def _has_gpu_alone(runner: SegmentRunner) -> bool:
    """Whether a device would wait; time limits need to know exactly where a worker is."""
    segment = runner.segment
    return bool(segment.resources.gpus) and segment.time_limit_s is None and not runner.whole_partitions


def _overlaps(runner: SegmentRunner) -> bool:
    """Whether the next group may start before the current one is done."""
    return runner.segment.overlaps_calls and not runner.whole_partitions


def _run_group(
    runner: SegmentRunner,
    group: int,
    tasks: list[Task[Any]],
    hints: Any,
    outbox: _Outbox,
    clock: Callable[[], float],
    handing_on: Callable[[], None],
    figures: _Figures,
    status: StatusWriter | None = None,
) -> None:
    """Run a group of tasks and send the results."""
    begun = clock()
    for result in runner.run(tasks, hints):
        handing_on()  # which may have to wait for room, which no document causes
        if isinstance(result, TaskEnd):
            outbox.message(Ended(group, result))
        else:
            outbox.result(group, result)
        del result
    seconds = clock() - begun
    import pyarrow as pa

    pa.default_memory_pool().release_unused()  # it retains several times its peak allocation
    if status is not None:
        status.write(IDLE)
    figures.write()
    outbox.done(group, seconds, runner.call_counts)


def _nothing() -> None:
    """Calls are made elsewhere and publish their own position."""


def _prepared(prepare: Prepare, step_log: _StatusLog) -> SegmentRunner:
    import pyarrow as pa

    pa.set_cpu_count(1)
    load(prepare.modules)
    try:
        segment, settings = cloudpickle.loads(prepare.code)
    except Exception as error:
        raise WorkerError(
            f"The stages could not be unpickled in a worker process: {type(error).__name__}: {error}. "
            "Modules that a stage uses must be importable in the worker; code in the main script always is."
        ) from error
    runner = SegmentRunner(
        segment,
        settings,
        first=prepare.first,
        whole_partitions=prepare.whole_partitions,
        step_log=step_log,
        can_be_killed=True,
    )
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
    """The error itself if it is ours and can be pickled, otherwise an equivalent that can."""
    if isinstance(error, GristmillError | OSError):
        # If one of its arguments cannot be pickled, its text is sent.
        with contextlib.suppress(Exception):
            pickle.loads(pickle.dumps(error))  # noqa: S301 (made here a moment ago)
            return error
    text = "".join(traceback.format_exception(error))
    return WorkerError(f"A worker failed: {type(error).__name__}: {error}\n{text}")
