"""Runs the stages of one segment on tasks: the same code in the calling process, in a local worker and on Ray.

A task is pushed through all stages of the segment before the next one starts, so that a partition streams through
a fused segment batch by batch. Every call of a stage is accounted for; a call that fails is narrowed down to its
document.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.plan import RunSettings, Segment
from gristmill.errors import StageFailedError, StageResultError, UsageError
from gristmill.execution.failures import failed_stage, raised_in
from gristmill.execution.partition_output import PartitionOutput, TaskEnd, write_piece
from gristmill.execution.recovery import Hints
from gristmill.execution.stage_call import Calls, DirectCalls, NoStepLog, OneByOne, StageCaller, StepLog, perf_of
from gristmill.ledger.record.trail import Trail
from gristmill.stages.base import ProcessingStage, member_names
from gristmill.stages.source_sink import ReaderStage
from gristmill.storage.compression import DamagedArchiveError
from gristmill.tasks.base import EmptyTask, FailedTask, NoneTask, Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.accounting import account, created_again, enter, given_tasks, leave, settled
from gristmill.tracking.origins import lineage_of, with_lineage

Stage = ProcessingStage[Any, Any]


def set_up_node(stage: Stage, node: NodeInfo, metadata: WorkerMetadata) -> None:
    """Call `setup_on_node`; exceptions become an error that names the stage."""
    try:
        stage.setup_on_node(node, metadata)
    except Exception as error:
        raise raised_in(stage, error, doing="setup_on_node()") from error


class SegmentRunner:
    """The stages of one segment, set up once, run on many tasks.

    Args:
        segment: The stages.
        settings: The settings of the run.
        first: Whether the segment gets the tasks of the source (it then records the identity of every document).
        whole_partitions: Whether the segment processes partitions from reading to commit.
        step_log: Notified of every step.
        can_be_killed: Whether time limits are enforced from outside.
        calls: Calls the stages, for executors that control when and in which thread that happens.

    Attributes:
        call_counts: Totals of all calls of the current `run` so far.
    """

    def __init__(
        self,
        segment: Segment,
        settings: RunSettings,
        *,
        first: bool,
        whole_partitions: bool,
        step_log: StepLog | None = None,
        can_be_killed: bool = False,
        calls: Calls | None = None,
    ) -> None:
        self.segment = segment
        self.settings = settings
        self.first = first
        self.whole_partitions = whole_partitions
        self.step_log: StepLog = step_log or NoStepLog()
        self.can_be_killed = can_be_killed
        self._calls: Calls = calls or DirectCalls()
        self._caller = StageCaller(settings, step_log=self.step_log, calls=self._calls, can_be_killed=can_be_killed)
        self.call_counts = Trail()
        self._set_up: list[Stage] = []
        self._done_at: float | None = None

    def twin(self, *, step_log: StepLog, calls: Calls) -> SegmentRunner:
        """Another runner of the same stages, for another thread; set up and torn down with this one."""
        return SegmentRunner(
            self.segment,
            self.settings,
            first=self.first,
            whole_partitions=self.whole_partitions,
            step_log=step_log,
            can_be_killed=self.can_be_killed,
            calls=calls,
        )

    # --- life of a worker ---

    def setup(self, metadata: WorkerMetadata) -> None:
        """Set up every stage; after an error, those already set up are torn down."""
        for stage in self.segment.stages:
            try:
                stage.setup(metadata)
            except Exception as error:
                self.teardown()
                raise raised_in(stage, error, doing="setup()") from error
            self._set_up.append(stage)

    def teardown(self) -> None:
        """Tear down every stage that was set up; the first error is raised after all teardowns."""
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

    def run(self, tasks: Sequence[Task[Any]], hints: Hints | None = None) -> Iterator[Task[Any] | TaskEnd]:
        """Push `tasks` through the segment; yields tasks for the next segment and the ends of those that stop here."""
        # Before its first tasks, a worker is starting, not waiting.
        idle_s = 0.0 if self._done_at is None else time.perf_counter() - self._done_at
        self.call_counts = self._caller.begin(hints or Hints(), idle_s=idle_s)
        for task in tasks:
            if self.first and isinstance(task, DocumentBatch):
                self._note_identity(task, lineage_of(task).trail)
        results = map(self._whole_partition, tasks) if self.whole_partitions else self._advance(tasks)
        return chain(results, iter(self._note_end, None))

    def _note_end(self) -> None:
        """Called after the last result: from now on, the worker waits for other tasks."""
        self._done_at = time.perf_counter()

    def _advance(self, tasks: Sequence[Task[Any]]) -> Iterator[Task[Any] | TaskEnd]:
        """Push tasks through the stages, depth first: a stage produces more only after its output was passed on."""
        stages, sink = self.segment.stages, self.segment.sink
        results: list[Iterator[Task[Any]]] = []  # the remaining output of each stage on the path
        group = list(tasks)
        while group:
            place = len(results)
            live = []
            for task in group:
                if isinstance(task, NoneTask | FailedTask) or (isinstance(task, DocumentBatch) and not task.num_items):
                    yield self._emptied(task, place)
                else:
                    live.append(task)
            if live and place < len(stages) and stages[place] is not sink:
                results.append(self._results(stages[place], place, live))
            else:
                for task in live:
                    yield self._arrived(task)
            group = []
            del task, live  # frees what was passed on while more is produced
            while results and not group:
                group = list(itertools.islice(results[-1], self.segment.batch_size))
                if not group:
                    results.pop()

    def _results(self, stage: Stage, place: int, tasks: Sequence[Task[Any]]) -> Iterator[Task[Any]]:
        """The output of a stage for some tasks, produced on demand."""
        if stage.supports_batch_processing():
            if self._caller.takes_together(stage, place, tasks):
                return self._caller.many(stage, place, [task for task in tasks if isinstance(task, DocumentBatch)])
            stage = OneByOne(stage)
        return itertools.chain.from_iterable(
            self._caller.each(stage, place, task) if isinstance(task, DocumentBatch) else self._made(stage, place, task)
            for task in tasks
        )

    def _arrived(self, task: Task[Any]) -> Task[Any] | TaskEnd:
        """Handle a task that has passed all stages but the writer: a piece of output, or one for the next segment."""
        sink = self.segment.sink
        if sink is None:
            if self._is_last:
                lineage_of(task).unscored = None
            return task
        lineage_of(task).unscored = None
        if not isinstance(task, DocumentBatch):
            raise _not_writable(sink, task)
        if self.whole_partitions:
            return task
        self.step_log.at(self._caller.calls_made, len(self.segment.stages) - 1, 0, 0)
        start = time.perf_counter()
        piece = write_piece(sink, self.settings, task)
        self._wrote(task, piece.size, time.perf_counter() - start)
        return TaskEnd(lineage_of(task), piece)

    @property
    def _is_last(self) -> bool:
        """Whether this is the last segment."""
        names = self.settings.stage_names
        return not names or names[-1] == member_names(self.segment.stages[-1])[-1]

    # --- output ---

    def _whole_partition(self, task: Task[Any]) -> TaskEnd:
        sink = self.segment.sink
        assert sink is not None
        partition, lineage = task._metadata["partition"], lineage_of(task)
        output = PartitionOutput(sink, self.settings, lineage)
        at_writer = len(self.segment.stages) - 1
        try:
            for item in self._advance([task]):
                assert isinstance(item, Task)
                if isinstance(item, FailedTask):
                    output.failed, output.reason = _failing_stage(item), item.reason
                elif isinstance(item, DocumentBatch):
                    # No current document could be blamed for a failure of the writer.
                    self.step_log.at(self._caller.calls_made, at_writer, 0, 0)
                    start = time.perf_counter()
                    size = output.append(item)
                    self._wrote(item, size, time.perf_counter() - start)
                output.note(lineage_of(item))
                del item
            self.step_log.at(self._caller.calls_made, at_writer, 0, 0)
            return output.commit(partition)
        except BaseException as error:
            output.abort()
            if not isinstance(error.__cause__, DamagedArchiveError):
                raise
            fresh = replace(lineage, trail=Trail(), source=None, unscored=None)
            return self._without_damage(with_lineage(task, fresh), error)

    def _without_damage(self, task: Task[Any], error: BaseException) -> TaskEnd:
        """Redo a partition whose files turned out to be damaged after some of their documents had been written.

        Call numbers continue, so that hints for the first attempt are never applied to the second.
        """
        readers = [stage for stage in self.segment.stages if isinstance(stage, ReaderStage) and not stage.checks_first]
        if not readers:
            raise error
        for reader in readers:
            reader.checks_first = True
        try:
            return self._whole_partition(task)
        finally:
            for reader in readers:
                reader.checks_first = False

    def _wrote(self, batch: DocumentBatch, size: int, seconds: float) -> None:
        """Account for a batch that was written as `size` bytes."""
        sink = self.segment.stages[-1]
        counts = Trail()
        count = counts.counts[sink.name]
        count.rows_in = count.rows_out = batch.num_items
        count.bytes_in, count.bytes_out = batch.columns.nbytes, size
        self._caller.record(sink, counts, lineage_of(batch).trail, seconds, batch.num_items)

    def _emptied(self, task: Task[Any], place: int) -> Task[Any] | TaskEnd:
        """What remains of a task without documents: dropped ones that must still be scored, or just its trail."""
        lineage = lineage_of(task)
        if lineage.unscored is not None and not isinstance(task, FailedTask):
            for stage in self.segment.stages[place:]:
                if stage is not self.segment.sink:
                    self._caller.score_dropped(stage, lineage)
            if lineage.unscored is not None and not self._is_last:
                return with_lineage(NoneTask(task.dataset_name), lineage)
        lineage.unscored = None
        failed = _failing_stage(task) if isinstance(task, FailedTask) else None
        if self.settings.output is None or not self.whole_partitions:
            return TaskEnd(lineage, failed=failed, reason=task.reason if isinstance(task, FailedTask) else "")
        return task if failed else with_lineage(NoneTask(task.dataset_name), lineage)

    # --- stages that make documents ---

    def _made(self, stage: Stage, place: int, task: Task[Any]) -> Iterator[Task[Any]]:
        """Call a stage that does not receive documents (such as a reader) and pass on its output as it is produced."""
        lineage = lineage_of(task)
        call = self._caller.calls_made
        self._caller.calls_made += 1
        clock = self._calls.clock
        self._caller.score_dropped(stage, lineage)
        first_documents = lineage.source is None
        index, row = 0, 0
        items: Iterator[Task[Any]] | None = None
        ready: list[Task[Any]] = []
        # One ahead of what is passed on, so that the last one can be marked; not needed when writing whole partitions.
        ahead = 1 if self.whole_partitions else 2
        while True:
            start = clock()
            # Repeated for every batch: later stages have reported their positions since the last one.
            self.step_log.at(call, place, 0, 0)
            try:
                if items is None:
                    given = self._calls.call(stage.process, task)
                    items, single = given_tasks(stage, given), isinstance(given, Task)
                    del given
                ready += itertools.islice(items, ahead - len(ready))
            except Exception as error:
                raise failed_stage(stage, task, error) from error
            if not ready:
                break
            current = ready.pop(0)
            if isinstance(current, FailedTask) and isinstance(task, EmptyTask):
                raise UsageError(
                    f"Stage {stage.name!r} is the source and returned a FailedTask, but there is nothing to retry. "
                    "Raise an error instead, or return nothing."
                )
            if isinstance(current, DocumentBatch):
                if first_documents:
                    lineage.source = lineage.order
                    current = settled(current, row)
                    row = max(row, int(current.rows.max()) + 1) if current.num_items else row
                else:
                    created_again(current)
            entry = enter(task)
            one = leave(entry, current)
            counts = account(stage, entry, [one])
            if first_documents and isinstance(one.task, DocumentBatch):
                self._note_identity(one.task, counts)
            seconds = clock() - start
            own = lineage.trail if index == 0 else Trail()
            cost = self._caller.record(stage, counts, own, seconds, one.task.num_items)
            child = lineage if single else lineage.child(index, last=not ready, trail=own)
            spent = perf_of(stage, cost)
            one.task._stage_perf = [*one.task._stage_perf, *spent]
            one.task._metadata = {**task._metadata, **one.task._metadata}
            one.task._metadata.pop("partition", None)
            yield with_lineage(one.task, child)
            index += 1
            del current, entry, one  # its memory is needed for the next one
        if not index:
            self._caller.record(stage, account(stage, enter(task), []), lineage.trail, clock() - start, 0)
            yield with_lineage(NoneTask(task.dataset_name), lineage)

    def _note_identity(self, batch: DocumentBatch, trail: Trail) -> None:
        """Record the ids of documents of the source."""
        if self.settings.output is None:
            return
        from gristmill.ledger.record.tables import make_identity

        identity = make_identity(batch, id_field=self.settings.id_field, url_field=self.settings.url_field)
        trail.identities.append(identity)


def _failing_stage(task: Task[Any]) -> str:
    """The stage that produced the task: the last one that left a record on it."""
    return task._stage_perf[-1].stage_name if task._stage_perf else "unknown"


def _not_writable(sink: Stage, task: Task[Any]) -> StageResultError:
    kind = type(task).__name__
    maker = task._stage_perf[-1].stage_name if task._stage_perf else "before it"
    return StageResultError(
        f"Writer {sink.name!r} writes documents, but stage {maker!r} passed it a {kind}. Add a stage that converts it "
        "to a DocumentBatch, or omit the writer: Pipeline.run() then returns the tasks themselves.",
        stage=maker,
        returned=kind,
        file=None,
        row=None,
    )
