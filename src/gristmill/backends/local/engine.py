"""The local engine: carries out the scheduler's decisions and reports events back to it.

The only module that deals with processes, messages and clocks together. Everything it does is a reaction to one of
three things: a message from a worker, the end of a worker, or the passing of time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from gristmill.backends.local import worker as worker_process
from gristmill.backends.local.driver_support import Committer, Interrupts, MemoryMonitor, compile_first_kernels
from gristmill.backends.local.fork_server import LOST, server_pid, start_worker, stop_server
from gristmill.backends.local.jobs import AssignedWork, Jobs
from gristmill.backends.local.limits import MemoryGuard, TimeLimits, WorkerLimits, took_too_much, why_stopped
from gristmill.backends.local.messages import (
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
    WorkOn,
    read_figures,
    read_status,
)
from gristmill.backends.local.scheduler import Action, Give, Start, Stop, Unblock, next_action
from gristmill.backends.local.shared_files import SharedFolder
from gristmill.backends.local.state import WINDOW, Life, State, Worker
from gristmill.backends.plan import ExecutionPlan
from gristmill.errors import WorkerError
from gristmill.execution.driver import Work
from gristmill.execution.packed_task import PackedTask, pack, unpack
from gristmill.execution.partition_output import TaskEnd
from gristmill.execution.recovery import Hints
from gristmill.execution.stage_pickling import pickled
from gristmill.observe.events import Notice, Sample, TaskFinished, TaskStarted, WorkerStarted, WorkerStopped
from gristmill.observe.memory import measure_tree
from gristmill.tracking.origins import lineage_of

_TICK_S = 0.1
_SAMPLE_S = 0.25
_STOP_S = 1.4
"""Time limit for teardown after an error or interrupt; the whole shutdown stays below two seconds."""
_LEAVE_S = 300.0
"""Time limit for teardown after success."""
_KILL_S = 0.3
"""The part of it reserved for the kernel to end killed workers."""
_MOST_MESSAGES = 32
"""Maximum number of messages to take from one worker in a row, so that it does not keep the driver busy."""
_MOST_LOST_STARTS = 5
"""Maximum number of workers lost in a row together with the fork server."""
_MOST_STARTS = 3
"""Maximum number of workers of a segment that may die in a row during setup."""


class Engine:
    """One run of a plan on worker processes.

    Args:
        plan: The plan to run.
        work: Source of tasks and receiver of results.
        state: The scheduler's state, with the segments and limits set.
        folder: Shared folder through which documents pass between workers.
        gpu_names: Name of each GPU slot in `CUDA_VISIBLE_DEVICES`.
        modules: Modules to import once rather than in every worker.
        limits: Time and memory limits of a worker.

    Attributes:
        sampled: Wraps the work of a worker, passed with its segment and number, to sample it for a profile.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        work: Work,
        state: State,
        folder: SharedFolder,
        gpu_names: list[str],
        modules: Sequence[str] = (),
        *,
        limits: WorkerLimits,
    ) -> None:
        self.plan = plan
        self.work = work
        self.state = state
        self.folder = folder
        self.gpu_names = gpu_names
        self.modules = modules
        self.limits = limits
        self.sampled: Callable[[Callable[..., object], int, int], Callable[..., object]] | None = None
        self.events = work.events
        self._code = [pickled(segment, plan.settings) for segment in plan.segments]
        self._source: Iterator[Any] = work.tasks()
        self._jobs = Jobs(plan, state, folder)
        self._groups = itertools.count()
        self._roots = itertools.count()
        self._assigned: dict[int, AssignedWork] = {}
        self._selector = selectors.DefaultSelector()
        self._committer = Committer(work)
        self._memory = MemoryMonitor(self._own_pids, self._worker_pids)
        self._failed_starts = [0] * len(plan.segments)
        self._time_limits = [TimeLimits(segment, limits.time_s) for segment in plan.segments]
        self._guard = MemoryGuard(lambda: list(self._assigned.values()), lambda: limits.memory - state.own)
        self._last_sample = time.monotonic()
        self._interrupts = Interrupts()
        self._error: Exception | None = None
        self._server_bytes = 0
        self._lost_starts = 0
        self._told = False
        self._workers = itertools.count(1)

    # --- the loop ---

    def run(self) -> None:
        """Run everything; returns when all results are delivered and all workers have stopped.

        Raises:
            KeyboardInterrupt: The user interrupted the run; all workers have torn down.
        """
        with self._interrupts:
            try:
                self._run()
            except BaseException:
                self._committer.abandon()
                self._end(_STOP_S)
                self._committer.join(0.2)
                raise
            finally:
                self._memory.close()
                self._guard.close()
                self._selector.close()

    def _run(self) -> None:
        self._refill()
        while not (self.state.finished and self._committer.idle):
            self._decide()
            self._wait()
            self._check()
        self._sample(time.monotonic())  # so that even a short run reports its workers' memory
        self._let_go()
        self._committer.close()
        self._check()

    def _check(self) -> None:
        if self._interrupts.asked:
            raise KeyboardInterrupt
        problem = self._error or self._committer.error
        if problem is not None:
            raise problem

    def _decide(self) -> None:
        self.state.now = time.monotonic()
        while (action := next_action(self.state)) is not None:
            self._do(action)
            self._refill()
            if self._error is not None:
                return

    def _do(self, action: Action) -> None:
        if isinstance(action, Start):
            self._start(action)
        elif isinstance(action, Give):
            self._give(action)
        elif isinstance(action, Unblock):
            self._go_on(action.worker, self.state.unblocked(action.worker))
        elif isinstance(action, Stop):
            self._stop(action)

    def _wait(self) -> None:
        # After all available work is assigned: a worker that has just finished something is not idle.
        if time.monotonic() - self._last_sample >= _SAMPLE_S:
            self._sample(time.monotonic())
            self._enforce_limits()
        for key, _ in self._selector.select(_TICK_S):
            number = key.data
            if number not in self._assigned:
                continue
            if key.fileobj == self._assigned[number].process.sentinel:
                self._ended(number)
            else:
                self._receive(number)
        self.state.now = time.monotonic()

    # --- source ---

    def _refill(self) -> None:
        """Keep enough root tasks queued before the first segment to keep all workers busy."""
        first = self.state.segments[0]
        wanted = first.batch_size * (first.max_workers + 1) * (1 + first.prefetch)
        while self.state.source_left and len(first.queue) < wanted:
            task = next(self._source, None)
            if task is None:
                self.state.source_left = False
                return
            packed = pack(task)
            if packed.documents is not None:
                packed.documents = self.folder.write_table(packed.documents, f"d-{next(self._roots)}")
            self._jobs.add(0, packed)

    # --- workers ---

    def _start(self, action: Start) -> None:
        number = next(self._workers)
        last = action.segment == len(self.plan.segments) - 1
        prepare = Prepare(
            code=self._code[action.segment],
            first=action.segment == 0,
            whole_partitions=self.plan.whole_partitions,
            worker_id=f"{action.segment}-{number}",
            gpus=action.gpus,
            folders=self.folder.paths,
            number=number,
            window=1 << 20 if last or self.state.batch_mode else WINDOW,
            on_node=not self.state.segments[action.segment].node_ready,
            modules=tuple(self.modules),
        )
        # Empty for a worker without a GPU, which must not find one.
        env = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpu_names[device] for device in action.gpus)}
        work: Callable[..., object] = partial(worker_process.main, prepare)
        work = work if self.sampled is None else self.sampled(work, action.segment, number)
        try:
            # Before any worker runs, an interrupt need not wait until the fork server has imported everything.
            with self._interrupts.may_cut(not self._assigned):
                process = start_worker(work, env=env)
        except KeyboardInterrupt:
            # The start may have been interrupted halfway; the next run gets a new fork server.
            stop_server()
            raise
        except WorkerError as error:
            self._lost_start(error)
            return
        if not self._server_bytes:
            # Together, because each shared page counts half in either; later more processes share it.
            self._server_bytes = measure_tree([server_pid() or 0, process.pid]).pss_bytes
        self._assigned[number] = AssignedWork(process, Link(process.connection, self.folder, f"w{number}-d"))
        self.state.started(Worker(number, action.segment, action.gpus, warm=action.warm))
        self._selector.register(process.connection, selectors.EVENT_READ, number)
        self._selector.register(process.sentinel, selectors.EVENT_READ, number)
        self.events.emit(WorkerStarted(number, action.segment, process.pid, action.gpus))

    def _lost_start(self, error: WorkerError | None = None) -> None:
        """Handle the death of the fork server. The documents did not cause it, and a new one starts soon."""
        self._lost_starts += 1
        if self._lost_starts >= _MOST_LOST_STARTS:
            raise WorkerError(
                f"The fork server died or could start no worker {_MOST_LOST_STARTS} times in a row; giving up. Use "
                "fewer workers (--workers), or raise the limits on processes (ulimit -u), files (-n) and memory (-v)."
            ) from error

    def _give(self, action: Give) -> None:
        group = next(self._groups)
        items = self.state.given(action.worker, group, action.count, alone=action.alone)
        jobs = self._jobs.of(items)
        self._assigned[action.worker].groups[group] = tuple(job.number for job in jobs)
        hints = jobs[0].attempts.hints if len(jobs) == 1 and jobs[0].attempts.searching else Hints()
        hints = self._time_limits[jobs[0].segment].hints(hints)
        self._assigned[action.worker].slow_stages[group] = hints.slow
        self._send(action.worker, WorkOn(group, [job.task for job in jobs], hints))
        task = jobs[0].task
        self.events.emit(TaskStarted(task.task_id, task.partition, jobs[0].segment, action.worker))

    def _go_on(self, number: int, results: int) -> None:
        if results:
            self._send(number, GoOn(results))

    def _stop(self, action: Stop) -> None:
        self.state.leaves(action.worker, recycled=action.recycled)
        assigned = self._assigned[action.worker]
        assigned.expected = True
        assigned.stopped_for = "recycled" if action.recycled else "finished"
        self._send(action.worker, Leave())

    def _send(self, number: int, message: object) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has died, and its tasks are requeued
            self._assigned[number].link.send(message)

    def _receive(self, number: int) -> None:
        assigned = self._assigned[number]
        for _ in range(_MOST_MESSAGES):
            try:
                message = assigned.link.receive()
            except (EOFError, OSError) as error:
                self._selector.unregister(assigned.process.connection)
                if not isinstance(error, EOFError | ConnectionResetError):
                    assigned.process.kill()  # something else has written to the connection
                return
            self._handle(number, message)
            if not assigned.process.connection.poll():
                return

    def _handle(self, number: int, message: object) -> None:
        worker = self.state.workers[number]
        assigned = self._assigned[number]
        if isinstance(message, Output):
            self._output(number, assigned, message)
        elif isinstance(message, Ended):
            if self._jobs.is_new(assigned, message.group, message.end.lineage.path, message.end.lineage.partition):
                self._committer.deliver(message.end)
        elif isinstance(message, Done):
            self._done(number, worker, assigned, message)
        elif isinstance(message, Ready):
            if not message.has_kernels and "numba" not in sys.modules:
                with self._interrupts.may_cut(True):
                    compile_first_kernels(self.plan, self.events)
            self.state.is_ready(number)
            self._failed_starts[worker.segment] = 0
            self._lost_starts = 0
        elif isinstance(message, Failed):
            self._error = self._error or message.error
        elif isinstance(message, Left):
            assigned.expected = True
            if message.error is not None:
                self._error = self._error or message.error

    def _output(self, number: int, assigned: AssignedWork, message: Output) -> None:
        worker = self.state.workers[number]
        task = message.task
        if task.documents is not None:
            self.folder.adopt(task.documents)
        following = worker.segment + 1
        if not self._jobs.is_new(assigned, message.group, task.path, task.partition):
            self._jobs.release(task)
        elif following < len(self.plan.segments):
            self._jobs.add(following, task)
        else:
            self._deliver_task(task)
        if following < len(self.plan.segments) and not self.state.batch_mode:
            self._go_on(number, self.state.sent(number))

    def _deliver_task(self, packed: PackedTask) -> None:
        segment = packed.documents
        if segment is not None:
            packed.documents = SharedFolder.read_table(segment)
            self.folder.release(segment)  # the mapping keeps the documents
        task = unpack(packed)
        self._committer.deliver(TaskEnd(lineage_of(task), task=task))

    def _done(self, number: int, worker: Worker, assigned: AssignedWork, message: Done) -> None:
        numbers = assigned.groups.pop(message.group, ())
        self.state.done(number, message.group, seconds=message.seconds, held=message.held, taken=message.taken)
        job = self._jobs.finish(numbers)[0]
        self.events.emit(
            TaskFinished(
                job.task.task_id,
                job.task.partition,
                worker.segment,
                number,
                message.seconds,
                message.counts,
                message.times,
                attempt=1 + job.attempts.deaths,
            )
        )

    # --- deaths ---

    def _ended(self, number: int) -> None:
        assigned = self._assigned[number]
        process = assigned.process
        cause = process.exit_cause or LOST
        self._drain(number, assigned)
        worker = self.state.ended(number)
        del self._assigned[number]
        status = read_status(process.page)
        self._jobs.sweep_after(number)
        words = why_stopped(assigned) or (assigned.stopped_for if assigned.expected else cause)
        self.events.emit(WorkerStopped(number, worker.segment, process.pid, words, assigned.expected))
        process.close()
        if worker.life is Life.STARTING and not assigned.expected:
            if cause == LOST:
                self._lost_start()
            else:
                self._died_starting(worker.segment, words)
        innocent = cause == LOST or assigned.innocent
        hopeless = self._jobs.take_back(worker, assigned, status, words, innocent=innocent)
        self._error = self._error or hopeless
        if assigned.over_memory:
            told = took_too_much(self.plan.segments[worker.segment], status, self.limits, alone=worker.alone)
            if isinstance(told, WorkerError):
                self._error = told
            elif not self._told:
                self.events.emit(Notice(told, "warning"))
            self._told = True

    def _drain(self, number: int, assigned: AssignedWork) -> None:
        """Process the messages a dead worker sent before it died."""
        with contextlib.suppress(EOFError, OSError):
            while assigned.process.connection.poll():
                self._handle(number, assigned.link.receive())
        self._selector.unregister(assigned.process.sentinel)
        with contextlib.suppress(KeyError, ValueError):  # it may have been unregistered when its connection ended
            self._selector.unregister(assigned.process.connection)

    def _died_starting(self, segment: int, words: str) -> None:
        self._failed_starts[segment] += 1
        if self._failed_starts[segment] >= _MOST_STARTS and self._error is None:
            self._error = WorkerError(
                f"Workers for {self.plan.segments[segment].name} died {_MOST_STARTS} times during setup ({words}). "
                "Look at what setup() of these stages does, and whether memory and the limit on processes suffice.",
                cause=words,
            )

    def _enforce_limits(self) -> None:
        for number, assigned in self._assigned.items():
            if assigned.groups:
                self._time_limits[self.state.workers[number].segment].enforce(assigned)

    # --- time ---

    def _sample(self, now: float) -> None:
        state, held = self.state, self._memory.per_pid
        passed = now - self._last_sample
        self._last_sample = now
        state.memory = self._memory.pss_bytes + state.unmapped_bytes
        state.own = held.get(os.getpid(), 0) + self._server_bytes
        workers = [state.of(segment.index) for segment in state.segments]
        idle = [state.idle_workers(segment) for segment in state.segments]
        self.events.emit(
            Sample(
                memory_bytes=state.memory,
                shared_bytes=self.folder.nbytes,
                queued=tuple(len(segment.queue) for segment in state.segments),
                queued_bytes=tuple(segment.queued_bytes for segment in state.segments),
                workers=tuple(len(mine) for mine in workers),
                busy=tuple(sum(worker.working for worker in mine) for mine in workers),
                worker_bytes=tuple(
                    {worker.number: held.get(self._assigned[worker.number].process.pid, 0) for worker in mine}
                    for mine in workers
                ),
                starved_s=tuple(passed * starved for starved, _, _ in idle),
                blocked_s=tuple(passed * blocked for _, blocked, _ in idle),
                starting_s=tuple(passed * starting for _, _, starting in idle),
                running=self._running_figures(),
            )
        )

    def _running_figures(self) -> dict[str, float]:
        """Totals of calls that have not returned yet, over all workers."""
        total: Counter[Any] = Counter()
        for assigned in self._assigned.values():
            if assigned.groups:
                total.update(read_figures(assigned.process.page))
        return dict(total)

    def _own_pids(self) -> list[int]:
        server = server_pid()
        return [os.getpid(), *([] if server is None else [server])]

    def _worker_pids(self) -> list[int]:
        return [assigned.process.pid for assigned in list(self._assigned.values())]

    def _let_go(self) -> None:
        """After success: let every worker tear down and exit without a deadline."""
        for number, worker in list(self.state.workers.items()):
            if worker.life is not Life.LEAVING:
                self._stop(Stop(number))
        until = time.monotonic() + _LEAVE_S
        while self._assigned and time.monotonic() < until:
            self._wait()
            self._check()
        self._end(_STOP_S)

    def _end(self, deadline_s: float) -> None:
        """Let every worker tear down and exit; kill those that take too long.

        They are never sent SIGTERM, which would interrupt a teardown.
        """
        until = time.monotonic() + deadline_s
        for number, assigned in self._assigned.items():
            assigned.process.interrupt()
            self._send(number, Leave())
        # Keep reading what they send: a worker blocked on sending a result cannot read our message either.
        links = {assigned.process.connection: assigned.link for assigned in self._assigned.values()}
        while self._living() and (left := until - _KILL_S - time.monotonic()) > 0:
            for ready in wait([*links, *(assigned.process.sentinel for assigned in self._living())], left):
                if ready in links:
                    try:
                        self._last_message(links[ready].receive())
                    except (EOFError, OSError):
                        del links[ready]
        stubborn = self._living()
        for assigned in stubborn:
            assigned.process.kill()
        for assigned in stubborn:
            assigned.process.wait(max(0.0, until - time.monotonic()))
        for assigned in self._assigned.values():
            assigned.process.close()
        self._assigned.clear()
        self.state.workers.clear()

    def _living(self) -> list[AssignedWork]:
        return [assigned for assigned in self._assigned.values() if assigned.process.exit_cause is None]

    def _last_message(self, message: Any) -> None:
        if isinstance(message, Left) and message.error is not None:
            self._error = self._error or message.error
