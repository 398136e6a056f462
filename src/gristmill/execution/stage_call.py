"""Calls a stage on a task: accounts for every row, and narrows a call that fails down to its document."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gristmill.backends.plan import RunSettings
from gristmill.errors import ConservationError, GristmillError, StageFailedError, UsageError
from gristmill.execution.calls import Calls, Hints, Progress
from gristmill.execution.failures import failed_stage, quarantined_row, raised_in
from gristmill.execution.lineages import children, lineage_of
from gristmill.execution.score_dropped import Followed
from gristmill.execution.slicing import around, by_time, with_gaps
from gristmill.ledger.performance import StagePerfStats
from gristmill.ledger.record.trail import StageTime, Trail
from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.tasks.base import Lineage, Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.accounting import Entry, Exit, account, check_given, enter, leave
from gristmill.tracking.batch_attribution import attribute, join_outputs

Stage = ProcessingStage[Any, Any]

_DEFECTS = (StageFailedError, ConservationError)
"""Errors that no document is to blame for: they end the run, and no search for a document is made."""


class StageCaller:
    """Calls stages on tasks with documents, for one runner.

    Args:
        settings: The settings of the run.
        progress: Told about every step.
        calls: Makes the calls.
        can_be_killed: Whether time limits are enforced from outside.

    Attributes:
        counts: What all calls since `begin` came to.
    """

    def __init__(self, settings: RunSettings, *, progress: Progress, calls: Calls, can_be_killed: bool) -> None:
        self.settings = settings
        self.progress = progress
        self.can_be_killed = can_be_killed
        self.counts = Trail()
        self._calls = calls
        self._hints = Hints()
        self._call = 0

    def begin(self, hints: Hints) -> None:
        """Count calls from zero, with what earlier attempts at the same tasks have shown."""
        self._hints = hints
        self._call = 0
        self.counts = Trail()

    @property
    def call(self) -> int:
        """The number of the next call."""
        return self._call

    def next_call(self) -> int:
        """Take the number of a call."""
        self._call += 1
        return self._call - 1

    def each(self, stage: Stage, place: int, task: DocumentBatch) -> Iterator[Task[Any]]:
        """The results of one task, which is given to the stage in one piece where nothing speaks against it."""
        call = self.next_call()
        slices = self._pieces(stage, call, task.num_items)
        if slices is not None:
            yield from self._sliced(stage, place, call, task, slices)
            return
        self.progress.at(call, place, 0, task.num_items)
        yield from self._whole(stage, task)

    def _whole(self, stage: Stage, task: DocumentBatch) -> Iterator[Task[Any]]:
        lineage = lineage_of(task)
        try:
            outputs = self._call_stage(stage, task, lineage.trail)
        except _DEFECTS:
            raise
        except Exception as error:
            if not self.settings.ignore_failures:
                raise self._located(stage, task, error) from error
            outputs = self._bisected(stage, task, error)
        self.follow(stage, lineage)
        yield from children(outputs, lineage, task)

    def takes_together(self, stage: Stage, tasks: Sequence[Task[Any]]) -> bool:
        """Whether nothing speaks against giving these tasks to the stage in one call."""
        careful = self.settings.ignore_failures or self._call in self._hints.slices or stage.time_limit_s is not None
        return not careful and all(isinstance(task, DocumentBatch) for task in tasks)

    def many(self, stage: Stage, place: int, documents: Sequence[DocumentBatch]) -> Iterator[Task[Any]]:
        """One call of `process_batch` for several tasks; each result is put down to the task it comes from."""
        call = self.next_call()
        self.progress.at(call, place, 0, sum(task.num_items for task in documents))
        entries = [self._enter(task) for task in documents]
        start = self._calls.clock()
        for task in documents:
            if not stage.validate_input(task):
                raise _invalid(stage, task)
        try:
            given = self._calls.call(stage.process_batch, list(documents))
            given = check_given(stage, given, method="process_batch")
        except Exception as error:
            raise self._located_among(stage, documents, error) from error
        seconds = self._calls.clock() - start
        total = sum(task.num_items for task in documents) or 1
        for entry, outputs in zip(entries, attribute(entries, given), strict=True):
            exits = [Exit(task, positions) for task, positions in outputs]
            counts = Trail()
            account(stage, entry, exits, counts)
            share = seconds * entry.items / total
            lineage = lineage_of(entry.task)
            self.record(stage, counts, lineage.trail, share, entry.items)
            self._note_dropped(entry, exits)
            self.follow(stage, lineage)
            for one in exits:
                self.record_perf(stage, one.task, share, entry.items, entry.task)
            yield from children([one.task for one in exits], lineage, entry.task)

    # --- one call ---

    def _enter(self, task: Task[Any]) -> Entry:
        return enter(task, all_scores=self.settings.scores == "all", id_field=self.settings.id_field)

    def _call_stage(self, stage: Stage, task: DocumentBatch, trail: Trail) -> list[Task[Any]]:
        """One call, accounted for in `trail`; the stage's own exceptions pass."""
        entry = self._enter(task)
        start = self._calls.clock()
        if not stage.validate_input(task):
            raise _invalid(stage, task)
        given = self._calls.call(stage.process, task)
        tasks = check_given(stage, given, method=_method(stage))
        seconds = self._calls.clock() - start
        exits = [leave(entry, one) for one in tasks]
        counts = Trail()
        account(stage, entry, exits, counts)
        self.record(stage, counts, trail, seconds, entry.items)
        self._note_dropped(entry, exits)
        for one in exits:
            self.record_perf(stage, one.task, seconds, entry.items, task)
        return [one.task for one in exits]

    def _note_dropped(self, entry: Entry, exits: list[Exit]) -> None:
        if self.settings.scores != "all":
            return
        lineage = lineage_of(entry.task)
        if lineage.followed is None:
            lineage.followed = Followed()
        lineage.followed.add(entry, exits)

    def follow(self, stage: Stage, lineage: Lineage) -> None:
        """Give a stage the documents that earlier ones dropped, if their scores are wanted."""
        if lineage.followed is not None:
            lineage.followed.go_through(stage, lineage.trail)
            if not lineage.followed:
                lineage.followed = None

    # --- documents that fail ---

    def _pieces(self, stage: Stage, call: int, rows: int) -> Iterable[tuple[int, int]] | None:
        limit = stage.time_limit_s if self.can_be_killed else None
        if call in self._hints.slices or call in self._hints.poison:
            return with_gaps(self._hints.slices.get(call, ()), rows, limit)
        return None if limit is None else by_time(0, rows, limit)

    def _sliced(
        self, stage: Stage, place: int, call: int, task: DocumentBatch, slices: Iterable[tuple[int, int]]
    ) -> Iterator[Task[Any]]:
        """Give the task to the stage in pieces, telling which one is next, and put the results together again."""
        lineage = lineage_of(task)
        poison = self._hints.poison.get(call, {})
        outputs: list[list[Task[Any]]] = []
        for lo, hi in slices:
            for start, end in around(lo, hi, poison):
                if start in poison:
                    self._quarantine(stage, task, start, poison[start], "")
                    continue
                self.progress.at(call, place, start, end)
                piece = task.slice(start, end - start)
                try:
                    outputs.append(self._call_stage(stage, piece, lineage.trail))
                except _DEFECTS:
                    raise
                except Exception as error:
                    if not self.settings.ignore_failures:
                        raise self._located(stage, piece, error) from error
                    outputs.append(self._bisected(stage, piece, error))
        self.follow(stage, lineage)
        yield from children(join_outputs(outputs), lineage, task)

    def _bisected(self, stage: Stage, task: DocumentBatch, error: Exception) -> list[Task[Any]]:
        """Split a batch on which the stage raised until the documents that cause it are alone."""
        if task.num_items <= 1:
            self._quarantine(stage, task, 0, type(error).__name__, raised_in(stage, error).message)
            return []
        half = task.num_items // 2
        outputs: list[list[Task[Any]]] = []
        for start, length in ((0, half), (half, task.num_items - half)):
            piece = task.slice(start, length)
            try:
                outputs.append(self._call_stage(stage, piece, lineage_of(task).trail))
            except _DEFECTS:
                raise
            except Exception as problem:
                piece = task.slice(start, length)
                outputs.append(self._bisected(stage, piece, problem))
        return join_outputs(outputs)

    def _located(self, stage: Stage, task: DocumentBatch, error: Exception) -> StageFailedError:
        """The error of the run, with the first row on which the stage raises, found by trying halves.

        Where no row raises by itself (the stage fails on the whole), none is named.
        """
        if isinstance(error, StageFailedError):
            return error
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
        """As `_located`, for a call with several tasks."""
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
            given = self._calls.call(stage.process, piece)
            check_given(stage, given, method=_method(stage))
        except Exception as error:
            return error
        return None

    def _quarantine(self, stage: Stage, task: DocumentBatch, row: int, cause: str, detail: str) -> None:
        # Of a fused stage the first member: the document is kept as it was before them, and a replay begins there.
        first = stage.members[0] if isinstance(stage, FusedStage) and stage.members else stage
        counts = Trail()
        count = counts.count(first.name)
        count.rows_in += 1
        count.quarantined[cause] = 1
        counts.quarantine.append(quarantined_row(task, row, stage=first.name, cause=cause, detail=detail))
        self.record(stage, counts, lineage_of(task).trail, 0.0, 1)

    # --- records ---

    def record(self, stage: Stage, counts: Trail, trail: Trail, seconds: float, items: int) -> None:
        figures = StageTime(1, seconds, items, stage._consume_custom_metrics())
        names = [member.name for member in stage.members] if isinstance(stage, FusedStage) else [stage.name]
        counts.time(names[0]).add(figures)
        for name, count in counts.counts.items():
            self.counts.count(name).add(count)
        self.counts.time(names[0]).add(figures)
        trail.merge(counts)

    def record_perf(
        self, stage: Stage, task: Task[Any], seconds: float, items: int | None = None, before: Task[Any] | None = None
    ) -> None:
        size = 0.0
        if isinstance(before, DocumentBatch):
            size = before.columns.nbytes / 1e6
        stats = StagePerfStats(
            stage.name,
            process_time=seconds,
            input_data_size_mb=size,
            num_items_processed=task.num_items if items is None else items,
        )
        task._stage_perf = [*task._stage_perf, stats]


class OneByOne(FusedStage):
    """A stage with its own `process_batch`, called with one task at a time."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.name = stage.name
        self.time_limit_s = stage.time_limit_s
        self.members = stage.members if isinstance(stage, FusedStage) else (stage,)

    def process(self, task: Any) -> Any:
        return self.stage.process_batch([task])

    def validate_input(self, task: Any) -> bool:
        return self.stage.validate_input(task)


def _method(stage: Stage) -> str:
    return "process_batch" if isinstance(stage, OneByOne) else "process"


def _invalid(stage: Stage, task: Task[Any]) -> GristmillError:
    attributes, columns = stage.input_spec_for_task(task)
    if isinstance(task, DocumentBatch):
        for column in columns:
            if not task.columns.has(column):
                return task.columns.missing(column)
    needed = ", ".join([*attributes, *(f"column {column!r}" for column in columns)]) or "something else"
    return UsageError(f"Task {task.task_id!r} failed validation for stage {stage.name!r}: it needs {needed}.")
