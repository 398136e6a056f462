"""Runs the stages of one segment on tasks: the same code in the calling process, in a local worker and on Ray.

A task is pushed through all stages of the segment before the next one is taken, so that a partition streams through
a fused segment batch by batch. Every call of a stage is accounted for; a call that fails is narrowed down to its
document.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np

from gristmill.backends.accounting import Entry, Exit, account, check_given, enter, given_tasks, leave
from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.carrying import Return
from gristmill.backends.failures import failed_stage, quarantined_row, raised_in
from gristmill.backends.followed import Followed
from gristmill.backends.grouping import attribute, join_outputs
from gristmill.backends.parts import Leaf, PartitionOutput, piece_leaf
from gristmill.backends.plan import RunSettings, Segment, member_names
from gristmill.errors import ConservationError, StageFailedError, StageResultError, UsageError
from gristmill.ledger.performance import StagePerfStats
from gristmill.ledger.trail import StageTime, Trail
from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.tasks.base import FailedTask, Lineage, NoneTask, Task
from gristmill.tasks.document import DocumentBatch

Stage = ProcessingStage[Any, Any]
T = TypeVar("T")

Slices = Sequence[tuple[int, int]]

_DEFECTS = (StageFailedError, ConservationError)
"""Errors that no document is to blame for: they end the run, and no search for a document is made."""


class Progress(Protocol):
    """Told where the runner is, before it goes there; a local worker writes it where the driver can read it."""

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """The rows `lo` to `hi` of the input of call number `call` are now given to stage number `stage`."""


class Calls(Protocol):
    """Calls methods of stages."""

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """What `method(argument)` gives or raises."""

    def clock(self) -> float:
        """Seconds, without those in which a call had to wait for its turn."""


class DirectCalls:
    """Calls at once, in the thread of the runner."""

    def call(self, method: Callable[[Any], Any], argument: Any) -> Any:
        """Call it."""
        return call_stage(method, argument)

    def clock(self) -> float:
        """Seconds."""
        return time.perf_counter()


def call_stage(method: Callable[[Any], Any], argument: Any) -> Any:
    """What `method(argument)` gives; a stage that wants to end the process has failed like any other."""
    try:
        return method(argument)
    except SystemExit as error:
        problem = RuntimeError(f"the stage called sys.exit({error.code!r}); raise an exception that says what is wrong")
        raise problem.with_traceback(error.__traceback__) from None


class NoProgress:
    """For places from which nobody can be killed."""

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Hints:
    """What earlier attempts at the same task have shown, by number of the call.

    Attributes:
        slices: The input of these calls is given to the stage in these pieces, to find the document that kills.
        poison: Rows that kill, with the cause; they are quarantined without being touched.
    """

    slices: Mapping[int, Slices] = field(default_factory=dict)
    poison: Mapping[int, Mapping[int, str]] = field(default_factory=dict)


def set_up_node(stage: Stage, node: NodeInfo, metadata: WorkerMetadata) -> None:
    """Call `setup_on_node`; what it raises becomes an error that names the stage."""
    try:
        stage.setup_on_node(node, metadata)
    except Exception as error:
        raise raised_in(stage, error, doing="setup_on_node()") from error


class SegmentRunner:
    """The stages of one segment, set up once, run on many tasks.

    Args:
        segment: The stages.
        settings: The settings of the run.
        first: Whether the segment gets the tasks of the source (it then notes the identity of every document).
        whole_partitions: Whether the segment takes partitions from reading to commit.
        progress: Told about every step.
        can_be_killed: Whether time limits are enforced from outside.
        calls: Calls the stages, for those who must have a say in when and in which thread.
    """

    def __init__(
        self,
        segment: Segment,
        settings: RunSettings,
        *,
        first: bool,
        whole_partitions: bool,
        progress: Progress | None = None,
        can_be_killed: bool = False,
        calls: Calls | None = None,
    ) -> None:
        self.segment = segment
        self.settings = settings
        self.first = first
        self.whole_partitions = whole_partitions
        self.progress: Progress = progress or NoProgress()
        self.can_be_killed = can_be_killed
        self._calls: Calls = calls or DirectCalls()
        self.call_counts = Trail()
        self._hints = Hints()
        self._call = 0
        self._set_up: list[Stage] = []

    def twin(self, *, progress: Progress, calls: Calls) -> SegmentRunner:
        """Another runner of the same stages, for another thread; set up and torn down with this one."""
        return SegmentRunner(
            self.segment,
            self.settings,
            first=self.first,
            whole_partitions=self.whole_partitions,
            progress=progress,
            can_be_killed=self.can_be_killed,
            calls=calls,
        )

    # --- life of a worker ---

    def setup(self, metadata: WorkerMetadata) -> None:
        """Set up every stage; on an error those already set up are torn down."""
        for stage in self.segment.stages:
            try:
                stage.setup(metadata)
            except Exception as error:
                self.teardown()
                raise raised_in(stage, error, doing="setup()") from error
            self._set_up.append(stage)

    def teardown(self) -> None:
        """Tear every stage down that was set up; the first error is raised after all have had their turn."""
        problem: StageFailedError | None = None
        while self._set_up:
            stage = self._set_up.pop()
            try:
                stage.teardown()
            except Exception as error:
                problem = problem or raised_in(stage, error, doing="teardown()")
        if problem is not None:
            raise problem

    # --- work ---

    def run(self, tasks: Sequence[Task[Any]], hints: Hints | None = None) -> Iterator[Task[Any] | Leaf]:
        """Push `tasks` through the segment: tasks for the next segment, and leaves where the way ends."""
        self._hints = hints or Hints()
        self._call = 0
        self.call_counts = Trail()
        for task in tasks:
            if self.first and isinstance(task, DocumentBatch):
                self._note_identity(task, _lineage(task).trail)
        if self.whole_partitions:
            for task in tasks:
                yield self._whole_partition(task)
            return
        yield from self._advance(list(tasks), 0)

    def _whole_partition(self, task: Task[Any]) -> Leaf:
        sink = self.segment.sink
        lineage = _lineage(task)
        assert sink is not None
        output = PartitionOutput(sink, self.settings, lineage)
        try:
            for item in self._advance([task], 0):
                assert isinstance(item, Task)
                if isinstance(item, FailedTask):
                    output.failed = _failing_stage(item)
                elif isinstance(item, DocumentBatch):
                    self._append(output, item)
                output.note(_lineage(item))
            self._at_sink()
            return output.commit(task)
        except BaseException:
            output.abort()
            raise

    def _at_sink(self) -> None:
        """Say that the writer is at work: it has no document in hand that could be blamed."""
        self.progress.at(self._call, len(self.segment.stages) - 1, 0, 0)

    def _append(self, output: PartitionOutput, batch: DocumentBatch) -> None:
        sink = self.segment.stages[-1]
        self._at_sink()
        start = time.perf_counter()
        written = output.append(batch)
        seconds = time.perf_counter() - start
        trail = _lineage(batch).trail
        counts = Trail()
        count = counts.count(sink.name)
        count.rows_in = count.rows_out = batch.num_items
        count.bytes_in, count.bytes_out = batch.columns.nbytes, written
        self._record(sink, counts, trail, seconds, batch.num_items)

    def _advance(self, tasks: list[Task[Any]], place: int) -> Iterator[Task[Any] | Leaf]:
        stages = self.segment.stages
        live = [task for task in tasks if not _is_empty(task)]
        for task in tasks:
            if _is_empty(task):
                yield self._emptied(task, place)
        if not live:
            return
        if place == len(stages):
            for task in live:
                if self._is_last:
                    _lineage(task).followed = None
                yield task
            return
        stage = stages[place]
        if stage is self.segment.sink:
            for task in live:
                _lineage(task).followed = None
                if not isinstance(task, DocumentBatch):
                    raise _not_writable(stage, task)
                yield task if self.whole_partitions else self._piece(task)
            return
        together = stage.supports_batch_processing() and (len(live) > 1 or self.segment.batch_size > 1)
        results = self._many(stage, place, live) if together else self._each(stage, place, live)
        for group in _groups(results, self.segment.batch_size):
            yield from self._advance(group, place + 1)

    @property
    def _is_last(self) -> bool:
        """Whether no segment comes behind this one."""
        names = self.settings.stage_names
        return not names or names[-1] == member_names(self.segment.stages[-1])[-1]

    def _emptied(self, task: Task[Any], place: int) -> Task[Any] | Leaf:
        """What goes on of a task without documents: dropped ones that must still be scored, or just its trail."""
        lineage = _lineage(task)
        if lineage.followed is not None and not isinstance(task, FailedTask):
            for stage in self.segment.stages[place:]:
                if stage is not self.segment.sink:
                    self._follow(stage, lineage)
            if lineage.followed is not None and not self._is_last:
                return _with_lineage(NoneTask(task.dataset_name), lineage)
        lineage.followed = None
        return self._husk(lineage, task)

    def _follow(self, stage: Stage, lineage: Lineage) -> None:
        """Give a stage the documents that earlier ones dropped, if their scores are wanted."""
        if lineage.followed is not None:
            lineage.followed.go_through(stage, lineage.trail)
            if not lineage.followed:
                lineage.followed = None

    def _husk(self, lineage: Lineage, origin: Task[Any]) -> Task[Any] | Leaf:
        """What stands for a task of which nothing is left: it only carries its trail to the commit."""
        failed = _failing_stage(origin) if isinstance(origin, FailedTask) else None
        if self.settings.output is None or not self.whole_partitions:
            return Leaf(
                lineage.partition,
                lineage.partition_id,
                lineage.path,
                lineage.trail,
                source=lineage.source,
                failed=failed,
            )
        husk = NoneTask(origin.dataset_name) if failed is None else origin
        husk._lineage = lineage
        return husk

    def _piece(self, task: DocumentBatch) -> Leaf:
        sink = self.segment.sink
        assert sink is not None
        self._at_sink()
        start = time.perf_counter()
        leaf = piece_leaf(sink, self.settings, task)
        seconds = time.perf_counter() - start
        counts = Trail()
        count = counts.count(sink.name)
        count.rows_in = count.rows_out = task.num_items
        count.bytes_in, count.bytes_out = task.columns.nbytes, leaf.size
        self._record(sink, counts, _lineage(task).trail, seconds, task.num_items)
        return leaf

    def _each(self, stage: Stage, place: int, tasks: Sequence[Task[Any]]) -> Iterator[Task[Any]]:
        for task in tasks:
            yield from self._one(stage, place, task)

    def _one(self, stage: Stage, place: int, task: Task[Any]) -> Iterator[Task[Any]]:
        call, self._call = self._call, self._call + 1
        if isinstance(task, DocumentBatch):
            slices = self._slices(stage, call, task.num_items)
            if slices is not None:
                yield from self._sliced(stage, place, call, task, slices)
                return
            self.progress.at(call, place, 0, task.num_items)
            yield from self._whole(stage, task)
            return
        yield from self._streamed(stage, place, call, task)

    def _streamed(self, stage: Stage, place: int, call: int, task: Task[Any]) -> Iterator[Task[Any]]:
        """Call a stage that does not get documents (a reader, say) and hand on what it gives as it comes."""
        lineage = _lineage(task)
        clock = self._calls.clock
        start = clock()
        self.progress.at(call, place, 0, 0)
        carried = task._carried
        back = None if carried is None else Return(stage, carried, id_field=self.settings.id_field)
        self._follow(stage, lineage)
        if back is None:
            lineage.source = tuple(step.index for step in lineage.path)
        try:
            given = self._calls.call(stage.process, task)
            single = isinstance(given, Task)
            items = given_tasks(stage, given)
            current = next(items, None)
        except Exception as error:
            raise failed_stage(stage, task, error) from error
        seconds, index, row = clock() - start, 0, 0
        if current is None:
            trail = lineage.trail
            counts = Trail()
            account(stage, enter(task), [], counts)
            if back is not None:
                back.account(None, counts, last=True)
            self._record(stage, counts, trail, seconds, 0)
            yield _with_lineage(NoneTask(task.dataset_name), lineage)
            return
        while current is not None:
            start = clock()
            # Said again for every batch: since the last one, later stages have said where they are.
            self.progress.at(call, place, 0, 0)
            try:
                following = None if single else next(items, None)
            except Exception as error:
                raise failed_stage(stage, task, error) from error
            entry = enter(task)
            counts = Trail()
            if back is not None:
                back.take(current)
                one = leave(entry, current)
                back.account(one.task, counts, last=following is None)
            else:
                if isinstance(current, FailedTask) and self.first and place == 0:
                    raise UsageError(
                        f"Stage {stage.name!r} is the source and gave a FailedTask, but there is nothing that could be "
                        "tried again. Raise an error instead, or give nothing."
                    )
                row = _numbered(current, row)
                one = leave(entry, current)
                account(stage, entry, [one], counts)
                if isinstance(one.task, DocumentBatch):
                    self._note_identity(one.task, counts)
                    self._note_border(one.task, counts)
            seconds += clock() - start
            own = lineage.trail if index == 0 else Trail()
            self._record(stage, counts, own, seconds, one.task.num_items)
            child = lineage if single else lineage.child(index, last=following is None, trail=own)
            self._record_perf(stage, one.task, seconds)
            one.task._metadata = {**task._metadata, **one.task._metadata}
            one.task._metadata.pop("partition", None)
            yield _with_lineage(one.task, child)
            current, seconds, index = following, 0.0, index + 1

    def _note_identity(self, batch: DocumentBatch, trail: Trail) -> None:
        if self.settings.output is None:
            return
        from gristmill.ledger.identity import make_identity

        identity = make_identity(batch, id_field=self.settings.id_field, url_field=self.settings.url_field)
        trail.identities.append(identity)

    def _note_border(self, batch: DocumentBatch, trail: Trail) -> None:
        """Remember where a batch of the source begins; records that could not be read belong to it."""
        rows = [record.row for record in batch._note.quarantine if record.row >= 0]
        if batch.num_items:
            rows.append(int(batch.rows.min()))
        if rows and self.settings.output is not None:
            trail.batches.append(min(rows))

    def _whole(self, stage: Stage, task: DocumentBatch) -> Iterator[Task[Any]]:
        lineage = _lineage(task)
        try:
            outputs = self._call_stage(stage, task, lineage.trail)
        except _DEFECTS:
            raise
        except Exception as error:
            if not self.settings.ignore_failures:
                raise self._located(stage, task, error) from error
            outputs = self._bisected(stage, task, error)
        self._follow(stage, lineage)
        yield from _children(outputs, lineage, task)

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
        self._record(stage, counts, trail, seconds, entry.items)
        self._note_dropped(entry, exits)
        for one in exits:
            self._record_perf(stage, one.task, seconds, entry.items, task)
        return [one.task for one in exits]

    def _note_dropped(self, entry: Entry, exits: list[Exit]) -> None:
        if self.settings.scores != "all":
            return
        lineage = _lineage(entry.task)
        if lineage.followed is None:
            lineage.followed = Followed()
        lineage.followed.add(entry, exits)

    def _many(self, stage: Stage, place: int, tasks: Sequence[Task[Any]]) -> Iterator[Task[Any]]:
        """One call of `process_batch` for several tasks; each result is put down to the task it comes from."""
        call, self._call = self._call, self._call + 1
        documents = [task for task in tasks if isinstance(task, DocumentBatch)]
        careful = self.settings.ignore_failures or call in self._hints.slices or stage.time_limit_s is not None
        if careful or len(documents) != len(tasks):
            self._call -= 1
            yield from self._each(_OneByOne(stage), place, tasks)
            return
        self.progress.at(call, place, 0, sum(task.num_items for task in tasks))
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
            lineage = _lineage(entry.task)
            self._record(stage, counts, lineage.trail, share, entry.items)
            self._note_dropped(entry, exits)
            self._follow(stage, lineage)
            for one in exits:
                self._record_perf(stage, one.task, share, entry.items, entry.task)
            yield from _children([one.task for one in exits], lineage, entry.task)

    # --- failures ---

    def _slices(self, stage: Stage, call: int, rows: int) -> Iterable[tuple[int, int]] | None:
        limit = stage.time_limit_s if self.can_be_killed else None
        if call in self._hints.slices or call in self._hints.poison:
            return _with_gaps(self._hints.slices.get(call, ()), rows, limit)
        return None if limit is None else _by_time(0, rows, limit)

    def _sliced(
        self, stage: Stage, place: int, call: int, task: DocumentBatch, slices: Iterable[tuple[int, int]]
    ) -> Iterator[Task[Any]]:
        """Give the task to the stage in pieces, telling which one is next, and put the results together again."""
        lineage = _lineage(task)
        poison = self._hints.poison.get(call, {})
        outputs: list[list[Task[Any]]] = []
        for lo, hi in slices:
            for start, end in _around(lo, hi, poison):
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
        self._follow(stage, lineage)
        yield from _children(join_outputs(outputs), lineage, task)

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
                outputs.append(self._call_stage(stage, piece, _lineage(task).trail))
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
        one_by_one = _OneByOne(stage)
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
        self._record(stage, counts, _lineage(task).trail, 0.0, 1)

    # --- records ---

    def _record(self, stage: Stage, counts: Trail, trail: Trail, seconds: float, items: int) -> None:
        figures = StageTime(1, seconds, items, stage._consume_custom_metrics())
        names = [member.name for member in stage.members] if isinstance(stage, FusedStage) else [stage.name]
        counts.time(names[0]).add(figures)
        for name, count in counts.counts.items():
            self.call_counts.count(name).add(count)
        self.call_counts.time(names[0]).add(figures)
        trail.merge(counts)

    def _record_perf(
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


class _OneByOne(FusedStage):
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
    return "process_batch" if isinstance(stage, _OneByOne) else "process"


def _invalid(stage: Stage, task: Task[Any]) -> UsageError:
    attributes, columns = stage.input_spec_for_task(task)
    there = task.get_columns() if isinstance(task, DocumentBatch) else []
    missing = [column for column in columns if column not in there]
    return UsageError(
        f"Task {task.task_id!r} failed validation for stage {stage.name!r}: "
        + (
            f"it has no column {', '.join(map(repr, missing))}; it has {there}."
            if missing
            else f"it needs {attributes}."
        )
    )


def _failing_stage(task: Task[Any]) -> str:
    """The stage that gave the task: the last one that has left a record on it."""
    return task._stage_perf[-1].stage_name if task._stage_perf else "unknown"


def _not_writable(sink: Stage, task: Task[Any]) -> StageResultError:
    kind = type(task).__name__
    maker = task._stage_perf[-1].stage_name if task._stage_perf else "before it"
    return StageResultError(
        f"Writer {sink.name!r} writes documents, but stage {maker!r} gave it a {kind}. Add a stage that makes a "
        f"DocumentBatch of it, or leave the writer out: Pipeline.run() then returns the tasks themselves.",
        stage=maker,
        returned=kind,
        file=None,
        row=None,
    )


def _lineage(task: Task[Any]) -> Lineage:
    assert task._lineage is not None, task
    return task._lineage


def _with_lineage(task: Task[Any], lineage: Lineage) -> Task[Any]:
    task._lineage = lineage
    task.task_id = lineage.task_id
    return task


def _is_empty(task: Task[Any]) -> bool:
    return isinstance(task, NoneTask | FailedTask) or (isinstance(task, DocumentBatch) and not task.num_items)


def _children(outputs: Sequence[Task[Any]], lineage: Lineage, parent: Task[Any]) -> Iterator[Task[Any]]:
    """Give the outputs of one task their lineage; one output continues it, several are numbered."""
    if not outputs:
        yield _with_lineage(NoneTask(parent.dataset_name), lineage)
        return
    if len(outputs) == 1:
        yield _with_lineage(outputs[0], lineage)
        return
    for index, task in enumerate(outputs):
        last = index == len(outputs) - 1
        trail = lineage.trail if index == 0 else Trail()
        yield _with_lineage(task, lineage.child(index, last=last, trail=trail))


def _numbered(task: Task[Any], row: int) -> int:
    """Number the documents that a source has just made, unless it has done so; gives the next number."""
    if not isinstance(task, DocumentBatch) or not task.num_items:
        return row
    if task._rows is None:
        task._rows = np.arange(row, row + task.num_items)
    return max(row, int(task._rows.max()) + 1)


def _groups(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while group := list(itertools.islice(items, size)):
        yield group


def _around(lo: int, hi: int, poison: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """The piece `lo:hi` cut so that every poisonous row stands alone."""
    start = lo
    for row in sorted(row for row in poison if lo <= row < hi):
        if row > start:
            yield start, row
        yield row, row + 1
        start = row + 1
    if start < hi:
        yield start, hi


def _by_time(start: int, stop: int, limit_s: float) -> Iterator[tuple[int, int]]:
    """Pieces that take about a quarter of the time limit each, so that only a slow document can exceed it."""
    size = 1
    while start < stop:
        end = min(stop, start + size)
        begun = time.perf_counter()
        yield start, end
        spent = max(time.perf_counter() - begun, 1e-6)
        fitting = int((end - start) * limit_s / 4 / spent)
        size = int(np.clip(fitting, 1, 2 * size))
        start = end


def _with_gaps(slices: Slices, rows: int, limit_s: float | None) -> Iterator[tuple[int, int]]:
    """The slices and, in order, what lies before, between and behind them."""
    at = 0
    for lo, hi in [*slices, (rows, rows)]:
        if at < lo:
            yield from [(at, lo)] if limit_s is None else _by_time(at, lo, limit_s)
        if lo < hi:
            yield lo, hi
        at = hi
