"""The local engine: carries out what the scheduler decides, and tells it what has happened.

The only place that knows processes, channels and clocks at once. Everything it does is a reaction to one of three
things: a message from a worker, the end of a worker, or the passing of time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import selectors
import time
from collections.abc import Iterator, Sequence
from typing import Any

from gristmill.backends.local.committer import Committer
from gristmill.backends.local.interrupts import InterruptWatch
from gristmill.backends.local.jobs import Hand, Jobs, lineage_in
from gristmill.backends.local.memory_watch import MemoryWatch
from gristmill.backends.local.messages import Done, Ended, Failed, GoOn, Leave, Left, Output, Prepare, Ready, Run
from gristmill.backends.local.nursery import Nursery, shared_nursery
from gristmill.backends.local.processes import ExitCause, WorkerProcess, stop_workers
from gristmill.backends.local.scheduler import Action, Give, Start, Stop, Unblock, next_action
from gristmill.backends.local.shared_files import SharedFolder
from gristmill.backends.local.state import WINDOW, Life, State, Worker
from gristmill.backends.local.transport import Parcel, unpack
from gristmill.backends.plan import ExecutionPlan
from gristmill.errors import ChannelClosed, WorkerError
from gristmill.execution.driver import Work
from gristmill.execution.partition_output import Leaf
from gristmill.execution.stage_pickling import pickled
from gristmill.observe.events import Notice, Sample, TaskFinished, TaskStarted, WorkerStarted, WorkerStopped
from gristmill.observe.memory import measure_tree

_TICK_S = 0.1
_SAMPLE_S = 0.25
_STOP_S = 1.4
"""How long workers have to tear down after an error or an interrupt; together with the rest less than two seconds."""
_LEAVE_S = 300.0
"""How long they have when all is well."""
_MOST_NURSERIES = 5
_MOST_STARTS = 3
"""How often in a row a worker of a segment may die before it is ready."""


class Engine:
    """One run of a plan on worker processes.

    Args:
        plan: What to run.
        work: Where tasks come from and results go.
        state: The scheduler's state, with the segments and limits set.
        nursery: Where workers come from.
        folder: Where documents pass between workers.
        gpu_names: What each GPU slot is called in `CUDA_VISIBLE_DEVICES`.
        modules: What is better imported once than in every worker.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        work: Work,
        state: State,
        nursery: Nursery,
        folder: SharedFolder,
        gpu_names: list[str],
        modules: Sequence[str] = (),
    ) -> None:
        self.plan = plan
        self.work = work
        self.state = state
        self.nursery = nursery
        self.folder = folder
        self.gpu_names = gpu_names
        self.modules = modules
        self.events = work.events
        self._code = [pickled(segment, plan.settings) for segment in plan.segments]
        self._source: Iterator[Any] = work.tasks()
        self._jobs = Jobs(plan, state, folder)
        self._groups = itertools.count()
        self._hands: dict[int, Hand] = {}
        self._by_process: dict[int, int] = {}
        self._selector = selectors.DefaultSelector()
        self._committer = Committer(work)
        self._memory = MemoryWatch(self._pids)
        self._failed_starts = [0] * len(plan.segments)
        self._limits = [segment.time_limit_s for segment in plan.segments]
        self._last_sample = 0.0
        self._interrupts = InterruptWatch()
        self._error: Exception | None = None
        self._nursery_noted = False
        self._nursery_bytes = 0
        self._nurseries = 0
        self._workers = itertools.count(1)

    # --- the loop ---

    def run(self) -> None:
        """Run everything; returns when all is delivered and all workers are gone.

        Raises:
            KeyboardInterrupt: The user asked to stop; workers have been told to tear down and are gone.
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
                self._selector.close()

    def _run(self) -> None:
        self._selector.register(self.nursery, selectors.EVENT_READ)
        with self._nursery_at_work():
            self.nursery.preload(self.modules)
        self._refill()
        while not (self.state.finished and self._committer.idle):
            self._decide()
            self._wait()
            self._check()
        self._let_go()
        self._committer.close()
        self._check()

    @contextlib.contextmanager
    def _nursery_at_work(self) -> Iterator[None]:
        """While nobody works yet, an interrupt need not wait until the nursery has imported everything.

        A message to it may then be cut in the middle, so it is given up; the next run gets a new one.
        """
        try:
            with self._interrupts.may_cut(not self._hands):
                yield
        except KeyboardInterrupt:
            self.nursery.close(timeout_s=0.2)
            raise

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
        for key, events in self._selector.select(_TICK_S):
            if key.fileobj is self.nursery:
                continue
            worker = key.data
            if worker not in self._hands:
                continue
            if events & selectors.EVENT_WRITE:
                self._flush(worker)
            if events & selectors.EVENT_READ:
                self._receive(worker)
        # Whether or not it is readable: ends may have become known while a worker was forked.
        self._listen_to_nursery()
        now = time.monotonic()
        self.state.now = now
        if now - self._last_sample >= _SAMPLE_S:
            self._sample(now)
            self._enforce_limits()

    def _listen_to_nursery(self) -> None:
        for process in self.nursery.poll():
            self._ended(process)
        if self.nursery.alive:
            return
        # Its end took all workers with it. That proves nothing about the documents, and a new one is soon there.
        self._selector.unregister(self.nursery)
        self._nurseries += 1
        if self._nurseries > _MOST_NURSERIES:
            raise WorkerError("The process that workers are forked from has ended again and again; giving up.")
        self.nursery = shared_nursery()
        self._selector.register(self.nursery, selectors.EVENT_READ)

    # --- source ---

    def _refill(self) -> None:
        """Keep enough root tasks before the first segment for everybody to be busy."""
        first = self.state.segments[0]
        wanted = first.batch_size * (first.max_workers + 1) * (1 + first.prefetch)
        while self.state.source_left and len(first.queue) < wanted:
            task = next(self._source, None)
            if task is None:
                self.state.source_left = False
                return
            self._jobs.add(0, Parcel(task, nbytes=1024))

    # --- workers ---

    def _start(self, action: Start) -> None:
        segment = self.state.segments[action.segment]
        env: dict[str, str | None] = {}
        if self.gpu_names:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpu_names[device] for device in action.gpus)
        with self._nursery_at_work():
            process = self.nursery.fork(env=env)
        if not self._nursery_bytes:
            # Together, because each page that both have counts half in either; later there are more to share with.
            self._nursery_bytes = measure_tree([self.nursery.pid, process.pid]).pss_bytes
        number = next(self._workers)
        self._hands[number] = Hand(process)
        self._by_process[id(process)] = number
        self.state.started(Worker(number, action.segment, action.gpus, warm=action.warm))
        self._selector.register(process.channel, selectors.EVENT_READ, number)
        last = action.segment == len(self.plan.segments) - 1
        self._send(
            number,
            Prepare(
                code=self._code[action.segment],
                first=action.segment == 0,
                whole_partitions=self.plan.whole_partitions,
                worker_id=f"{action.segment}-{number}",
                gpus=action.gpus,
                folders=self.folder.paths,
                number=number,
                window=1 << 20 if last or self.state.batch_mode else WINDOW,
                on_node=not segment.node_ready,
            ),
        )
        self.events.emit(WorkerStarted(number, action.segment, process.pid, action.gpus))

    def _give(self, action: Give) -> None:
        group = next(self._groups)
        items = self.state.given(action.worker, group, action.count, alone=action.alone)
        jobs = self._jobs.of(items)
        self._hands[action.worker].groups[group] = tuple(job.number for job in jobs)
        hints = jobs[0].attempts.hints if len(jobs) == 1 and jobs[0].attempts.searching else None
        self._send(action.worker, Run(group, [job.parcel for job in jobs], hints))
        lineage = jobs[0].lineage
        self.events.emit(TaskStarted(lineage.task_id, lineage.partition, jobs[0].segment, action.worker))

    def _go_on(self, number: int, results: int) -> None:
        if results:
            self._send(number, GoOn(results))

    def _stop(self, action: Stop) -> None:
        self.state.leaves(action.worker, recycled=action.recycled)
        hand = self._hands[action.worker]
        hand.expected = True
        hand.stopped_for = "recycled" if action.recycled else "finished"
        self._send(action.worker, Leave())

    def _send(self, number: int, message: object) -> None:
        channel = self._hands[number].process.channel
        try:
            if not channel.send(message):
                self._selector.modify(channel, selectors.EVENT_READ | selectors.EVENT_WRITE, number)
        except ChannelClosed:
            pass  # it has died; the nursery will say so, and its tasks are taken back then

    def _flush(self, number: int) -> None:
        channel = self._hands[number].process.channel
        try:
            if channel.flush():
                self._selector.modify(channel, selectors.EVENT_READ, number)
        except ChannelClosed:
            pass  # as in _send

    def _receive(self, number: int) -> None:
        hand = self._hands[number]
        try:
            messages = hand.process.channel.receive(at_most=32)
        except ChannelClosed:
            self._selector.unregister(hand.process.channel)
            return
        for message in messages:
            self._handle(number, message)

    def _handle(self, number: int, message: object) -> None:
        worker = self.state.workers[number]
        hand = self._hands[number]
        if isinstance(message, Output):
            self._output(number, hand, message)
        elif isinstance(message, Ended):
            if self._jobs.is_new(hand, message.group, message.leaf.path, message.leaf.partition):
                self._committer.deliver(message.leaf)
        elif isinstance(message, Done):
            self._done(number, worker, hand, message)
        elif isinstance(message, Ready):
            self.state.is_ready(number)
            self._failed_starts[worker.segment] = 0
        elif isinstance(message, Failed):
            self._error = self._error or message.error
        elif isinstance(message, Left):
            hand.expected = True
            if message.error is not None:
                self._error = self._error or message.error

    def _output(self, number: int, hand: Hand, message: Output) -> None:
        worker = self.state.workers[number]
        parcel = message.parcel
        lineage = lineage_in(parcel)
        if parcel.segment is not None:
            self.folder.adopt(parcel.segment)
        following = worker.segment + 1
        if not self._jobs.is_new(hand, message.group, lineage.path, lineage.partition):
            self._jobs.release(parcel)
        elif following < len(self.plan.segments):
            self._jobs.add(following, parcel)
        else:
            self._deliver_task(parcel)
        if following < len(self.plan.segments) and not self.state.batch_mode:
            self._go_on(number, self.state.sent(number))

    def _deliver_task(self, parcel: Parcel) -> None:
        task = unpack(parcel)
        self._jobs.release(parcel)  # the mapping keeps the documents
        lineage = task._lineage
        assert lineage is not None
        self._committer.deliver(Leaf(lineage.partition, lineage.partition_id, lineage.path, lineage.trail, task=task))

    def _done(self, number: int, worker: Worker, hand: Hand, message: Done) -> None:
        numbers = hand.groups.pop(message.group, ())
        self.state.done(number, message.group, seconds=message.seconds, held=message.held, taken=message.taken)
        jobs = self._jobs.finish(numbers)
        lineage = jobs[0].lineage
        self.events.emit(
            TaskFinished(
                lineage.task_id,
                lineage.partition,
                worker.segment,
                number,
                message.seconds,
                message.counts,
                message.times,
            )
        )

    # --- deaths ---

    def _ended(self, process: WorkerProcess) -> None:
        number = self._by_process.pop(id(process), None)
        if number is None or number not in self._hands:
            return
        hand = self._hands[number]
        self._drain(number, hand)
        worker = self.state.ended(number)
        del self._hands[number]
        status = process.status()
        cause = process.exit_cause or ExitCause("lost")
        self._jobs.sweep_after(number)
        words = "time limit" if hand.over_limit else hand.stopped_for if hand.expected else _cause_words(cause)
        self.events.emit(WorkerStopped(number, worker.segment, process.pid, words, hand.expected))
        process.close()
        if worker.life is Life.STARTING and not hand.expected:
            self._died_starting(worker.segment, words)
        hopeless = self._jobs.take_back(worker, hand, status, words, innocent=cause.kind == "lost")
        self._error = self._error or hopeless

    def _drain(self, number: int, hand: Hand) -> None:
        """Take what a dead worker had sent before it died."""
        try:
            while messages := hand.process.channel.receive():
                for message in messages:
                    self._handle(number, message)
        except ChannelClosed:
            pass
        with contextlib.suppress(KeyError, ValueError):  # it may have been unregistered when its channel ended
            self._selector.unregister(hand.process.channel)

    def _died_starting(self, segment: int, words: str) -> None:
        self._failed_starts[segment] += 1
        if self._failed_starts[segment] >= _MOST_STARTS and self._error is None:
            self._error = WorkerError(
                f"Workers for {self.plan.segments[segment].name} died {_MOST_STARTS} times during setup ({words}). "
                "Look at what setup() of these stages does, and whether there is enough memory.",
                cause=words,
            )

    def _enforce_limits(self) -> None:
        for number, hand in self._hands.items():
            segment = self.plan.segments[self.state.workers[number].segment]
            if self._limits[segment.index] is None or not hand.groups:
                continue
            status = hand.process.status()
            if status.task not in hand.groups or not 0 <= status.stage < len(segment.stages):
                continue
            limit = segment.stages[status.stage].time_limit_s
            if limit is not None and status.running_s > limit and not hand.over_limit:
                hand.over_limit = True
                hand.process.kill()

    # --- time ---

    def _sample(self, now: float) -> None:
        state, held = self.state, self._memory.per_pid
        self._last_sample = now
        state.memory = self._memory.pss_bytes + state.unmapped_bytes
        state.own = held.get(os.getpid(), 0) + self._nursery_bytes
        workers = [state.of(segment.index) for segment in state.segments]
        self.events.emit(
            Sample(
                memory_bytes=state.memory,
                shared_bytes=self.folder.nbytes,
                queued=tuple(len(segment.queue) for segment in state.segments),
                queued_bytes=tuple(segment.queued_bytes for segment in state.segments),
                workers=tuple(len(mine) for mine in workers),
                busy=tuple(sum(worker.working for worker in mine) for mine in workers),
            )
        )
        if not self._nursery_noted and self.nursery.report is not None:
            self._nursery_noted = True
            for name, problem in dict(self.nursery.report.get("failed", {})).items():
                self.events.emit(Notice(f"Workers could not preload {name}: {problem}", "warning"))

    def _pids(self) -> list[int]:
        return [os.getpid(), self.nursery.pid, *(hand.process.pid for hand in list(self._hands.values()))]

    def _let_go(self) -> None:
        """All is done: let every worker tear down and leave, in its own time."""
        for number, worker in list(self.state.workers.items()):
            if worker.life is not Life.LEAVING:
                self._stop(Stop(number))
        until = time.monotonic() + _LEAVE_S
        while self._hands and time.monotonic() < until:
            self._wait()
            self._check()
        self._end(_STOP_S)

    def _end(self, deadline_s: float) -> None:
        """Let every worker tear down and leave; those that do not in time are killed."""
        processes = [hand.process for hand in self._hands.values()]
        for process in processes:
            process.interrupt()
        stop_workers(self.nursery, processes, message=Leave(), deadline_s=deadline_s, on_message=self._last_words)
        for hand in self._hands.values():
            hand.process.close()
        self._hands.clear()
        self.state.workers.clear()

    def _last_words(self, process: WorkerProcess, message: Any) -> None:
        if isinstance(message, Left) and message.error is not None:
            self._error = self._error or message.error


def _cause_words(cause: ExitCause) -> str:
    if cause.kind == "signal":
        return cause.signal_name or "signal"
    return str(cause)
