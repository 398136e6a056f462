"""Runs the stages of one segment on tasks: the same code in the calling process, in a local worker and on Ray.

A task is pushed through all stages of the segment before the next one is taken, so that a partition streams through
a fused segment batch by batch. Every call of a stage is accounted for; a call that fails is narrowed down to its
document.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.plan import RunSettings, Segment, member_names
from gristmill.errors import StageFailedError, StageResultError, UsageError
from gristmill.execution.calls import Calls, DirectCalls, Hints, NoProgress, Progress
from gristmill.execution.failures import failed_stage, raised_in
from gristmill.execution.lineages import is_empty, lineage_of, numbered, with_lineage
from gristmill.execution.partition_output import Leaf, PartitionOutput, piece_leaf
from gristmill.execution.stage_call import OneByOne, StageCaller
from gristmill.ledger.record.trail import Trail
from gristmill.stages.base import ProcessingStage
from gristmill.tasks.base import FailedTask, Lineage, NoneTask, Task
from gristmill.tasks.document import DocumentBatch
from gristmill.tracking.accounting import account, enter, given_tasks, leave
from gristmill.tracking.carrying import Return

Stage = ProcessingStage[Any, Any]
T = TypeVar("T")


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
        self._caller = StageCaller(settings, progress=self.progress, calls=self._calls, can_be_killed=can_be_killed)
        self._set_up: list[Stage] = []

    @property
    def call_counts(self) -> Trail:
        """What all calls of the present `run` have come to so far."""
        return self._caller.counts

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
        self._caller.begin(hints or Hints())
        for task in tasks:
            if self.first and isinstance(task, DocumentBatch):
                self._note_identity(task, lineage_of(task).trail)
        if self.whole_partitions:
            for task in tasks:
                yield self._whole_partition(task)
            return
        yield from self._advance(list(tasks), 0)

    def _whole_partition(self, task: Task[Any]) -> Leaf:
        sink = self.segment.sink
        lineage = lineage_of(task)
        assert sink is not None
        output = PartitionOutput(sink, self.settings, lineage)
        try:
            for item in self._advance([task], 0):
                assert isinstance(item, Task)
                if isinstance(item, FailedTask):
                    output.failed = _failing_stage(item)
                elif isinstance(item, DocumentBatch):
                    self._append(output, item)
                output.note(lineage_of(item))
            self._at_sink()
            return output.commit(task)
        except BaseException:
            output.abort()
            raise

    def _at_sink(self) -> None:
        """Say that the writer is at work: it has no document in hand that could be blamed."""
        self.progress.at(self._caller.call, len(self.segment.stages) - 1, 0, 0)

    def _append(self, output: PartitionOutput, batch: DocumentBatch) -> None:
        sink = self.segment.stages[-1]
        self._at_sink()
        start = time.perf_counter()
        written = output.append(batch)
        seconds = time.perf_counter() - start
        trail = lineage_of(batch).trail
        counts = Trail()
        count = counts.count(sink.name)
        count.rows_in = count.rows_out = batch.num_items
        count.bytes_in, count.bytes_out = batch.columns.nbytes, written
        self._caller.record(sink, counts, trail, seconds, batch.num_items)

    def _advance(self, tasks: list[Task[Any]], place: int) -> Iterator[Task[Any] | Leaf]:
        stages = self.segment.stages
        live = [task for task in tasks if not is_empty(task)]
        for task in tasks:
            if is_empty(task):
                yield self._emptied(task, place)
        if not live:
            return
        if place == len(stages):
            for task in live:
                if self._is_last:
                    lineage_of(task).followed = None
                yield task
            return
        stage = stages[place]
        if stage is self.segment.sink:
            for task in live:
                lineage_of(task).followed = None
                if not isinstance(task, DocumentBatch):
                    raise _not_writable(stage, task)
                yield task if self.whole_partitions else self._piece(task)
            return
        together = stage.supports_batch_processing() and (len(live) > 1 or self.segment.batch_size > 1)
        results = self._together(stage, place, live) if together else self._each(stage, place, live)
        for group in _groups(results, self.segment.batch_size):
            yield from self._advance(group, place + 1)

    @property
    def _is_last(self) -> bool:
        """Whether no segment comes behind this one."""
        names = self.settings.stage_names
        return not names or names[-1] == member_names(self.segment.stages[-1])[-1]

    def _emptied(self, task: Task[Any], place: int) -> Task[Any] | Leaf:
        """What goes on of a task without documents: dropped ones that must still be scored, or just its trail."""
        lineage = lineage_of(task)
        if lineage.followed is not None and not isinstance(task, FailedTask):
            for stage in self.segment.stages[place:]:
                if stage is not self.segment.sink:
                    self._caller.follow(stage, lineage)
            if lineage.followed is not None and not self._is_last:
                return with_lineage(NoneTask(task.dataset_name), lineage)
        lineage.followed = None
        return self._husk(lineage, task)

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
        self._caller.record(sink, counts, lineage_of(task).trail, seconds, task.num_items)
        return leaf

    def _each(self, stage: Stage, place: int, tasks: Sequence[Task[Any]]) -> Iterator[Task[Any]]:
        for task in tasks:
            yield from self._one(stage, place, task)

    def _together(self, stage: Stage, place: int, tasks: Sequence[Task[Any]]) -> Iterator[Task[Any]]:
        if self._caller.takes_together(stage, tasks):
            return self._caller.many(stage, place, [task for task in tasks if isinstance(task, DocumentBatch)])
        return self._each(OneByOne(stage), place, tasks)

    def _one(self, stage: Stage, place: int, task: Task[Any]) -> Iterator[Task[Any]]:
        if isinstance(task, DocumentBatch):
            return self._caller.each(stage, place, task)
        return self._streamed(stage, place, self._caller.next_call(), task)

    def _streamed(self, stage: Stage, place: int, call: int, task: Task[Any]) -> Iterator[Task[Any]]:
        """Call a stage that does not get documents (a reader, say) and hand on what it gives as it comes."""
        lineage = lineage_of(task)
        clock = self._calls.clock
        start = clock()
        self.progress.at(call, place, 0, 0)
        carried = task._carried
        back = None if carried is None else Return(stage, carried, id_field=self.settings.id_field)
        self._caller.follow(stage, lineage)
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
            self._caller.record(stage, counts, trail, seconds, 0)
            yield with_lineage(NoneTask(task.dataset_name), lineage)
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
                row = numbered(current, row)
                one = leave(entry, current)
                account(stage, entry, [one], counts)
                if isinstance(one.task, DocumentBatch):
                    self._note_identity(one.task, counts)
            seconds += clock() - start
            own = lineage.trail if index == 0 else Trail()
            self._caller.record(stage, counts, own, seconds, one.task.num_items)
            child = lineage if single else lineage.child(index, last=following is None, trail=own)
            self._caller.record_perf(stage, one.task, seconds)
            one.task._metadata = {**task._metadata, **one.task._metadata}
            one.task._metadata.pop("partition", None)
            yield with_lineage(one.task, child)
            current, seconds, index = following, 0.0, index + 1

    def _note_identity(self, batch: DocumentBatch, trail: Trail) -> None:
        if self.settings.output is None:
            return
        from gristmill.ledger.record.identity import make_identity

        identity = make_identity(batch, id_field=self.settings.id_field, url_field=self.settings.url_field)
        trail.identities.append(identity)


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


def _groups(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while group := list(itertools.islice(items, size)):
        yield group
