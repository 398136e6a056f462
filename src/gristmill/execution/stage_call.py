"""Calls a stage on a task: accounts for every row, and narrows a failing call down to its document."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol

from gristmill.backends.plan import RunSettings
from gristmill.errors import ConservationError, GristmillError, StageFailedError, UsageError, is_of_environment
from gristmill.execution.failures import failed_stage, quarantined_row, raised_in
from gristmill.execution.recovery import FEW, Hints, around, by_time, with_gaps
from gristmill.execution.score_dropped import DroppedDocuments
from gristmill.ledger.performance import StagePerfStats
from gristmill.ledger.record.trail import StageTime, Trail
from gristmill.stages.base import FusedStage, ProcessingStage, Spec, member_names
from gristmill.tasks.base import NoneTask, Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.accounting import Entry, Exit, account, check_given, enter, leave
from gristmill.tracking.batch_attribution import attribute, join_outputs
from gristmill.tracking.origins import Lineage, lineage_of, with_lineage

Stage = ProcessingStage[Any, Any]

_DEFECTS = (StageFailedError, ConservationError)
"""Errors that no document causes: they end the run without a search for one."""


class StepLog(Protocol):
    """Receives the runner's position before each step; a local worker publishes it for the driver."""

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """The rows `lo` to `hi` of the input of call number `call` are now passed to stage number `stage`."""


class Calls(Protocol):
    """Calls methods of stages."""

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """What `method(argument)` returns or raises."""

    def clock(self) -> float:
        """Seconds, excluding those a call spent waiting for its turn."""


class DirectCalls:
    """Makes calls directly, in the thread of the runner."""

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """Make the call; a stage that tries to exit the process counts as failed."""
        try:
            return method(argument)
        except SystemExit as error:
            raise exited(error) from None

    clock = staticmethod(time.perf_counter)


class OverTimeLimitError(BaseException):
    """Raised in a stage that takes longer than `limit_s` for its documents; stages do not catch it by accident."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(limit_s)
        self.limit_s = limit_s


def default_limit(stage: Any, limit_s: float | None) -> float | None:
    """Time limit of a document in a stage without `time_limit_s`: the executor's limit, or a shorter default."""
    own: float | None = stage.default_time_limit_s
    return limit_s if limit_s is None or own is None else min(limit_s, own)


class LimitedCalls(DirectCalls):
    """Like `DirectCalls`, but interrupts a stage that takes too long for the same documents.

    It uses a signal, which only interrupts Python code in the main thread and code that checks for signals, such as
    `re`. Stages with a GPU or their own worker, and those that create documents, may take any time.

    Attributes:
        limit_s: Time limit of a call, doubled for the first call of a stage, which may load or compile something; None
            for no limit.
    """

    limit_s: float | None = None
    running = False
    _current_s: float | None = None
    known: Collection[str] = frozenset()

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """Make the call; a stage that tries to exit the process counts as failed."""
        stage: Any = getattr(method, "__self__", None)
        exempt = stage.needs_own_worker or stage.resources.gpus or not isinstance(argument, DocumentBatch | list)
        self._current_s = None if exempt else self.limit_s
        if stage.default_time_limit_s is not None:
            self._current_s = default_limit(stage, self._current_s)
        if self._current_s is not None:
            signal.setitimer(signal.ITIMER_REAL, self._current_s * (1 if stage.name in self.known else 2), 1.0)
            self.running = True
        try:
            given = method(argument)
            # Work done by a generator is part of the call.
            return list(given) if self.running and isinstance(given, Iterator) else given
        except SystemExit as error:
            raise exited(error) from None
        finally:
            if self.running:
                self.running = False
                signal.setitimer(signal.ITIMER_REAL, 0)
                self.known = {*self.known, stage.name}

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """The signal handler; a late signal finds nothing to interrupt."""
        if self.running and self._current_s is not None:
            raise OverTimeLimitError(self._current_s)


def exited(error: SystemExit) -> RuntimeError:
    """The error for a stage that tried to end the process."""
    problem = RuntimeError(f"the stage called sys.exit({error.code!r}); raise an exception that says what is wrong")
    return problem.with_traceback(error.__traceback__)


class NoStepLog:
    """For processes that cannot be killed."""

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """Do nothing."""


class StageCaller:
    """Calls stages on tasks with documents, for one runner.

    Args:
        settings: The settings of the run.
        step_log: Notified of every step.
        calls: Makes the calls.
        can_be_killed: Whether time limits are enforced from outside.

    Attributes:
        counts: Totals of all calls since `begin`.
        calls_made: Number of calls since `begin`; hints refer to calls by number.
    """

    def __init__(self, settings: RunSettings, *, step_log: StepLog, calls: Calls, can_be_killed: bool) -> None:
        self.settings = settings
        self.all_scores = settings.scores == "all"
        self.step_log = step_log
        self.can_be_killed = can_be_killed
        self.counts = Trail()
        self.calls_made = 0
        self._calls = calls
        self._hints = Hints()
        self._slow: dict[str, float] = {}
        self._idle_s = 0.0

    def begin(self, hints: Hints, *, idle_s: float = 0.0) -> Trail:
        """Count calls from zero, with hints from earlier attempts at the same tasks; returns the new counts.

        `idle_s` is how long the worker waited for these tasks; it is recorded with the first call.
        """
        self._hints = hints
        self._idle_s = idle_s
        self.calls_made = 0
        self.counts = Trail()
        return self.counts

    def each(self, stage: Stage, place: int, task: DocumentBatch) -> Iterator[Task[Any]]:
        """The results of one task, which is passed to the stage in one piece unless there is a reason to split it."""
        call = self.calls_made
        self.calls_made += 1
        limit, few = stage.time_limit_s if self.can_be_killed else None, None
        if place in self._hints.slow or stage.name in self._slow:
            limit, few = self._hints.slow.get(place) or self._slow[stage.name], FEW
        if call in self._hints.slices or call in self._hints.poison:
            slices = with_gaps(self._hints.slices.get(call, ()), task.num_items, limit, few)
            outputs = self._sliced(stage, place, call, task, slices)
        elif limit is not None:
            outputs = self._sliced(stage, place, call, task, by_time(0, task.num_items, limit, few))
        else:
            self.step_log.at(call, place, 0, task.num_items)
            outputs = self._call_stage(stage, task)
        lineage = lineage_of(task)
        self.score_dropped(stage, lineage)
        yield from _children(outputs, lineage, task)

    def takes_together(self, stage: Stage, place: int, tasks: Sequence[Task[Any]]) -> bool:
        """Whether these tasks can be passed to the stage in one call."""
        slow = stage.time_limit_s is not None or place in self._hints.slow or stage.name in self._slow
        careful = slow or self.settings.ignore_failures or self.calls_made in self._hints.slices
        return not careful and all(isinstance(task, DocumentBatch) for task in tasks)

    def many(self, stage: Stage, place: int, documents: Sequence[DocumentBatch]) -> Iterator[Task[Any]]:
        """One call of `process_batch` for several tasks; each result is attributed to its task."""
        call = self.calls_made
        self.calls_made += 1
        self.step_log.at(call, place, 0, sum(task.num_items for task in documents))
        entries = [enter(task, all_scores=self.all_scores) for task in documents]
        start = self._calls.clock()
        for task in documents:
            if not stage.validate_input(task):
                raise _invalid(stage, task)
        try:
            given = self._calls.call(stage.process_batch, list(documents))
            given = check_given(stage, given, method="process_batch")
        except OverTimeLimitError as reached:
            self._slow[stage.name] = reached.limit_s
            for task in documents:
                yield from self.each(OneByOne(stage), place, task)
            return
        except Exception as error:
            raise self._located_among(stage, documents, error) from error
        seconds = self._calls.clock() - start
        total = sum(task.num_items for task in documents) or 1
        for entry, exits in zip(entries, attribute(entries, given), strict=True):
            lineage = lineage_of(entry.task)
            outputs = self._account(stage, entry, exits, seconds * entry.items / total)
            self.score_dropped(stage, lineage)
            yield from _children(outputs, lineage, entry.task)

    # --- one call ---

    def _call_stage(self, stage: Stage, task: DocumentBatch) -> list[Task[Any]]:
        """One call, accounted for; documents on which it raises are quarantined, or the error names the first one."""
        # A stage may change the task's data before it raises; the search begins with the original input.
        again = self.settings.ignore_failures or not (stage.fork_safe or isinstance(stage, FusedStage))
        as_it_was = task.slice(0, task.num_items) if again else task
        entry = enter(task, all_scores=self.all_scores)
        start = self._calls.clock()
        try:
            if not stage.validate_input(task):
                raise _invalid(stage, task)
            given = check_given(stage, self._calls.call(stage.process, task))
            seconds = self._calls.clock() - start
            exits = [leave(entry, one) for one in given]
        except _DEFECTS:
            raise
        except OverTimeLimitError as reached:
            self._slow[stage.name] = reached.limit_s
            return self._one_by_one(stage, as_it_was)
        except Exception as error:
            # A connection may fail for one document; a missing package fails all of them.
            hopeless = is_of_environment(error) and not isinstance(error, ConnectionError)
            if not self.settings.ignore_failures or hopeless:
                raise self._located(stage, task, error) from error
            return self._bisected(stage, as_it_was, error)
        return self._account(stage, entry, exits, seconds)

    def _account(self, stage: Stage, entry: Entry, exits: list[Exit], seconds: float) -> list[Task[Any]]:
        """The output tasks, with their rows accounted for."""
        lineage = lineage_of(entry.task)
        cost = self.record(stage, account(stage, entry, exits), lineage.trail, seconds, entry.items)
        if self.all_scores:
            lineage.unscored = lineage.unscored or DroppedDocuments()
            lineage.unscored.add(entry, exits)
        spent = perf_of(stage, cost, entry.task)
        tasks = []
        for one in exits:
            one.task._stage_perf = [*one.task._stage_perf, *spent]
            tasks.append(one.task)
        return tasks

    def score_dropped(self, stage: Stage, lineage: Lineage) -> None:
        """Let a stage score the documents that earlier ones dropped, if their scores are requested."""
        if lineage.unscored is not None:
            lineage.unscored.score(stage, lineage.trail)
            lineage.unscored = lineage.unscored or None

    # --- documents that fail ---

    def _sliced(
        self, stage: Stage, place: int, call: int, task: DocumentBatch, slices: Iterable[tuple[int, int]]
    ) -> list[Task[Any]]:
        """Pass the task to the stage in pieces, reporting which one is next, and join the results."""
        poison = self._hints.poison.get(call, {})
        outputs: list[list[Task[Any]]] = []
        for lo, hi in slices:
            for start, end in around(lo, hi, poison):
                if start in poison:
                    self._quarantine(stage, task, start, poison[start], "")
                    continue
                self.step_log.at(call, place, start, end)
                outputs.append(self._call_stage(stage, task.slice(start, end - start)))
        return join_outputs(outputs)

    def _one_by_one(self, stage: Stage, task: DocumentBatch) -> list[Task[Any]]:
        """Retry documents that took a stage too long: a few at a time, then one by one."""
        if task.num_items == 1:
            self._quarantine(stage, task, 0, "time limit", "")
            return []
        step = FEW if task.num_items > FEW else 1
        starts = range(0, task.num_items, step)
        pieces = [task.slice(start, min(step, task.num_items - start)) for start in starts]
        return join_outputs([self._call_stage(stage, piece) for piece in pieces])

    def _bisected(self, stage: Stage, task: DocumentBatch, error: Exception) -> list[Task[Any]]:
        """Split a batch on which the stage raised until the documents that cause it are alone."""
        if task.num_items <= 1:
            self._quarantine(stage, task, 0, type(error).__name__, raised_in(stage, error).message)
            return []
        half = task.num_items // 2
        halves = (task.slice(0, half), task.slice(half, task.num_items - half))
        return join_outputs([self._call_stage(stage, piece) for piece in halves])

    def _located(self, stage: Stage, task: DocumentBatch, error: Exception) -> StageFailedError:
        """The error of the run, with the first row on which the stage raises, found by bisection.

        If no single row raises (the stage fails only on the whole batch), none is named.
        """
        if isinstance(error, StageFailedError) or is_of_environment(error):
            return failed_stage(stage, task, error)
        lo, hi = 0, task.num_items
        found: Exception | None = error if hi == 1 else None
        while hi - lo > 1:
            middle = (lo + hi) // 2
            problem = self._problem(stage, task, lo, middle)
            if problem is None:
                lo, found = middle, self._problem(stage, task, middle, hi) if hi - middle == 1 else None
            else:
                hi, found = middle, problem
        return failed_stage(stage, task, found or error, row=lo if found is not None else None)

    def _located_among(self, stage: Stage, tasks: Sequence[DocumentBatch], error: Exception) -> StageFailedError:
        """Like `_located`, for a call with several tasks."""
        if isinstance(error, StageFailedError):
            return error
        one_by_one = OneByOne(stage)
        for task in tasks:
            problem = self._problem(one_by_one, task, 0, task.num_items)
            if problem is not None:
                return self._located(one_by_one, task, problem)
        return failed_stage(stage, tasks[0], error)

    def _problem(self, stage: Stage, task: DocumentBatch, lo: int, hi: int) -> Exception | None:
        """What the stage raises on these rows, tried without leaving a trace."""
        piece = task.slice(lo, hi - lo)
        enter(piece)
        try:
            check_given(stage, self._calls.call(stage.process, piece))
        except OverTimeLimitError:
            return None
        except Exception as error:
            return error
        return None

    def _quarantine(self, stage: Stage, task: DocumentBatch, row: int, cause: str, detail: str) -> None:
        # For a fused stage, the first member: the document is kept as it was before all of them, and a replay begins
        # there.
        first = stage.members[0] if isinstance(stage, FusedStage) and stage.members else stage
        counts = Trail()
        count = counts.counts[first.name]
        count.rows_in += 1
        count.quarantined[cause] = 1
        counts.quarantine.append(quarantined_row(task, row, stage=first.name, cause=cause, detail=detail))
        self.record(stage, counts, lineage_of(task).trail, 0.0, 1)

    # --- records ---

    def record(self, stage: Stage, counts: Trail, trail: Trail, seconds: float, items: int) -> StageTime:
        """Count a call; returns what it cost, with the figures that the stage logged during it."""
        cost = spent = StageTime(1, seconds, items, stage._consume_custom_metrics(), self._idle_s)
        self._idle_s = 0.0
        for name in member_names(stage):
            counts.times[name].add(spent)
            self.counts.times[name].add(spent)
            spent = StageTime(1, 0.0, items)  # fused stages: the first one has the total time
        for name, count in counts.counts.items():
            self.counts.counts[name].add(count)
        trail.merge(counts)
        return cost


def perf_of(stage: Stage, cost: StageTime, before: Task[Any] | None = None) -> list[StagePerfStats]:
    """The records of one call, shared by all tasks that it returned.

    Fused stages have a record each; the times and logged figures are in the first.
    """
    size = before.columns.nbytes / 2**20 if isinstance(before, DocumentBatch) else 0.0
    spent: list[StagePerfStats] = []
    for name in member_names(stage):
        spent.append(StagePerfStats(name, cost.busy_s, cost.idle_s, size, cost.items, dict(cost.custom)))
        cost = StageTime(1, 0.0, cost.items)
    return spent


class OneByOne(FusedStage):
    """A stage with its own `process_batch`, called with one task at a time."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.name = stage.name
        self.time_limit_s = stage.time_limit_s
        self.default_time_limit_s = stage.default_time_limit_s
        self.resources = stage.resources
        self.needs_own_worker = stage.needs_own_worker
        self.members = stage.members if isinstance(stage, FusedStage) else (stage,)

    def process(self, task: Any) -> Any:
        return check_given(self.stage, self.stage.process_batch([task]), method="process_batch")

    def validate_input(self, task: Any) -> bool:
        return self.stage.validate_input(task)

    def input_spec_for_task(self, task: Task[Any]) -> Spec:
        return self.stage.input_spec_for_task(task)

    def _consume_custom_metrics(self) -> dict[str, float]:
        return self.stage._consume_custom_metrics()


def _children(outputs: Sequence[Task[Any]], lineage: Lineage, parent: Task[Any]) -> Iterator[Task[Any]]:
    """Assign lineage to the outputs of one task: a single output continues it, several are numbered."""
    if len(outputs) < 2:
        yield with_lineage(outputs[0] if outputs else NoneTask(parent.dataset_name), lineage)
        return
    for index, task in enumerate(outputs):
        last = index == len(outputs) - 1
        trail = lineage.trail if index == 0 else Trail()
        yield with_lineage(task, lineage.child(index, last=last, trail=trail))


def _invalid(stage: Stage, task: Task[Any]) -> GristmillError:
    attributes, columns = stage.input_spec_for_task(task)
    if isinstance(task, DocumentBatch):
        for column in columns:
            if not task.columns.has(column):
                return task.columns.missing(column)
    needed = ", ".join([*attributes, *(f"column {column!r}" for column in columns)]) or "something else"
    return UsageError(f"Task {task.task_id!r} failed validation for stage {stage.name!r}: it needs {needed}.")
