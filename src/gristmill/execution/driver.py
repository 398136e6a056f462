"""The driver's side of a run: the tasks to do, and the handling of everything that executors deliver."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from gristmill.backends.plan import ExecutionPlan
from gristmill.errors import ConservationError, ErrorBudgetExceededError, StageFailedError
from gristmill.execution.partition_output import TaskEnd, join_pieces
from gristmill.figures import plural
from gristmill.ledger.record.commit import source_rows
from gristmill.ledger.record.manifest import ManifestEntry
from gristmill.ledger.record.trail import Trail, join_sources
from gristmill.observe.events import EventStream, Notice, PartitionCommitted, PartitionFailed, RecordsQuarantined
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.compression import SALVAGE_HINT
from gristmill.storage.partitions import Partition
from gristmill.tasks.base import Task
from gristmill.tracking.origins import Lineage, Step, with_lineage

_MOST_REASONS = 20
_LARGE_BYTES = 256 * 10**6
"""Twice the target size of split partitions."""
_LEAST_QUARANTINED = 10
"""An error budget given as a share always allows at least this many records."""


@dataclass(slots=True)
class _Node:
    closed: bool = False
    last: int | None = None
    children: dict[int, _Node] = field(default_factory=dict)
    open_children: int = 0


class TaskTree:
    """The tasks of one partition, some of which have ended. Children are numbered, and the last one is marked.

    Example:
        >>> tree = TaskTree()
        >>> tree.close((Step(1, last=True),))
        False
        >>> tree.close((Step(0, last=False),))
        True
    """

    def __init__(self) -> None:
        self._root = _Node()

    def close(self, path: tuple[Step, ...]) -> bool:
        """Record that the task at `path` has ended; True if that completes the whole partition.

        Raises:
            ValueError: The same task was reported as ended twice.
        """
        way = [self._root]
        node = self._root
        for step in path:
            if step.last:
                node.last = step.index
            if step.index not in node.children:
                node.children[step.index] = _Node()
                node.open_children += 1
            node = node.children[step.index]
            way.append(node)
        if node.closed:
            raise ValueError(f"Task {path} has already ended.")
        node.closed = True
        for parent in reversed(way[:-1]):
            parent.open_children -= 1
            complete = parent.last is not None and len(parent.children) == parent.last + 1 and not parent.open_children
            if not complete:
                return False
            parent.closed = True
            parent.children.clear()
            parent.last = None
        return self._root.closed


@dataclass(slots=True)
class _Open:
    """A partition in progress."""

    tree: TaskTree = field(default_factory=TaskTree)
    trails: dict[tuple[int, ...] | None, Trail] = field(default_factory=dict)
    failed: str | None = None
    reason: str = ""
    pieces: dict[tuple[int, ...], WrittenFile] = field(default_factory=dict)
    tasks: dict[tuple[int, ...], Task[Any]] = field(default_factory=dict)


@dataclass(slots=True)
class ErrorBudget:
    """How many records may be quarantined before the run fails.

    Attributes:
        limit: A float in [0, 1] is a share of all records (but at least 10 of them, unless it is zero), an int a
            number, None no limit.
        records: All records so far, including an estimate for damaged files.
        quarantined: Number of these in quarantine or lost with a damaged file.
        damaged: What is wrong with damaged files, one sentence each.
        output: Where the run writes.
    """

    limit: float | int | None
    output: str | None = None
    records: int = 0
    quarantined: int = 0
    damaged: list[str] = field(default_factory=list)

    def check(self, *, final: bool, share_done: float = 1.0) -> None:
        """Fail if the budget is exceeded; a share is only checked once a tenth of the work is done.

        Raises:
            ErrorBudgetExceededError: More records were quarantined than allowed.
        """
        if self.limit is None or not self.quarantined:
            return
        if not self.limit or (isinstance(self.limit, int) and not isinstance(self.limit, bool)):
            allowed = int(self.limit)
        else:
            if not final and share_done < 0.1:
                return
            allowed = max(_LEAST_QUARANTINED, int(self.limit * self.records))
        if self.quarantined > allowed:
            damaged = ""
            if self.damaged:
                damaged = f" {plural(len(self.damaged), 'input file')} damaged: {self.damaged[0]} {SALVAGE_HINT}"
            raise ErrorBudgetExceededError(
                f"{self.quarantined} of {self.records} records could not be processed; the error budget "
                f"{self.limit!r} allows {allowed}.{damaged} See them with "
                f"`gristmill quarantine {self.output or 'OUTPUT'}`. To "
                "accept this many, raise --error-budget (error_budget) and run again; finished partitions are kept.",
                quarantined=self.quarantined,
                records=self.records,
                allowed=allowed,
            )


class Work:
    """The tasks of a run and the place where their results arrive. Used in the driver process only.

    Args:
        plan: The plan that is run.
        partitions: The partitions to do, in source order.
        root: Returns the first task of a partition on demand: there can be very many partitions.
        events: Notified of everything that is final.
        budget: The error budget, already including what earlier runs quarantined.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        partitions: Sequence[Partition],
        root: Callable[[Partition], Task[Any]],
        events: EventStream,
        budget: ErrorBudget,
    ) -> None:
        self.plan = plan
        self.events = events
        self.budget = budget
        self.results: dict[int, list[Task[Any]]] = {}
        self.trail = Trail()
        self._root = root
        # Unfinished partitions only, because there can be very many.
        self._left = {partition.index: partition for partition in partitions}
        self._total = len(self._left)
        self._open: dict[int, _Open] = {}
        self._failures: dict[str, str] = {}
        self._reasons: list[str] = []

    def __len__(self) -> int:
        return self._total

    @property
    def done(self) -> int:
        """How many partitions have finished."""
        return self._total - len(self._left)

    def is_done(self, partition: int) -> bool:
        """Whether a partition has finished."""
        return partition not in self._left

    @property
    def input_bytes(self) -> int:
        """Approximate number of bytes left to read."""
        return sum(map(_input_bytes, self._left.values()))

    def source_files(self) -> Iterator[str]:
        """The files left to read, possibly with repetitions."""
        return (part.path for partition in self._left.values() for part in partition.ranges)

    def go_on_with(self, plan: ExecutionPlan, root: Callable[[Partition], Task[Any]]) -> None:
        """Continue with another plan, because earlier steps have done the rest."""
        self.plan, self._root = plan, root

    def tasks(self) -> Iterator[Task[Any]]:
        """The root tasks of all remaining partitions, ready to run.

        In source order, except that large files that could not be split come first, so that no worker is left with one
        when the others have finished.
        """
        order: list[tuple[int, int]] = []
        for number, left in self._left.items():
            size = _input_bytes(left)
            order.append((-size if size > _LARGE_BYTES else 0, number))
        for _, number in sorted(order):
            partition = self._left.get(number)
            if partition is None:
                continue  # it finished while others were being processed
            # A copy: whatever is attached to it on its way is discarded with it.
            task = with_lineage(copy(self._root(partition)), Lineage(partition.index, partition.id))
            task._metadata = {**task._metadata, "partition": partition}
            yield task

    def deliver(self, end: TaskEnd) -> None:
        """Process the end of one task; commits the partition if it was the last of its tasks."""
        lineage = end.lineage
        partition = self._left[lineage.partition]
        if end.entry is not None or (end.failed is not None and not lineage.path):
            self._ended(partition, lineage.trail, end.entry, end.failed, end.reason)
            return
        state = self._open.setdefault(lineage.partition, _Open())
        if end.piece is not None:
            state.pieces[lineage.order] = end.piece
        if end.task is not None:
            state.tasks[lineage.order] = end.task
        state.failed, state.reason = state.failed or end.failed, state.reason or end.reason
        state.trails.setdefault(lineage.source, Trail()).merge(lineage.trail)
        if not state.tree.close(lineage.path):
            return
        del self._open[lineage.partition]
        trail = join_sources(state.trails)
        sink, entry = self.plan.sink, None
        if state.failed is None and sink is not None:
            pieces = [state.pieces[order] for order in sorted(state.pieces)]
            entry = join_pieces(sink, self.plan.settings, partition, pieces, trail)
        elif state.failed is None:
            self.results[partition.index] = [state.tasks[order] for order in sorted(state.tasks)]
        self._ended(partition, trail, entry, state.failed, state.reason)

    def _ended(
        self, partition: Partition, trail: Trail, entry: ManifestEntry | None, failed: str | None, reason: str
    ) -> None:
        """Add a partition that has finished to the totals, without the rows themselves."""
        del self._left[partition.index]
        if failed is not None:  # a stage declared it failed: it is left for the next run
            self._failures[partition.id] = failed
            self.events.emit(PartitionFailed(partition.index, partition.id, failed))
            if reason:
                self._reasons.append(reason)
                if len(self._reasons) <= _MOST_REASONS:
                    self.events.emit(Notice(f"{failed}: {reason}", level="warning"))
            return
        causes = Counter(map(attrgetter("stage", "cause"), trail.quarantine))
        for (stage, cause), records in causes.items():
            self.events.emit(RecordsQuarantined(partition.index, stage, cause, records))
        counts = {name: trail.counts[name] for name in self.plan.stage_names if name in trail.counts}
        lost = 0
        for record in trail.quarantine:
            if record.lost:
                lost += record.lost - 1
                self.budget.damaged.append(f"{record.file} is damaged: {record.detail}.")
                self.events.emit(Notice(self.budget.damaged[-1], level="warning"))
        self.budget.records += max(source_rows(counts), len(trail.quarantine)) + lost
        self.budget.quarantined += len(trail.quarantine) + lost
        self.trail.merge(Trail(counts=trail.counts, times=trail.times))
        self.budget.check(final=False, share_done=1 - len(self._left) / self._total)
        if entry is not None:
            files = {file.path: file.size for file in entry.files}
            size = sum(files.values())
            self.events.emit(PartitionCommitted(partition.index, partition.id, entry.rows_written, size, tuple(files)))

    def finish(self) -> None:
        """Check that nothing is missing.

        Raises:
            ConservationError: A partition was started and never finished.
            StageFailedError: Stages returned a FailedTask for some partitions.
        """
        if self._left:
            names = [partition.id for partition in self._left.values()]
            raise ConservationError(f"{len(names)} of {len(self)} partitions did not finish: {', '.join(names[:5])}.")
        self.budget.check(final=True)
        if self._failures:
            names = list(self._failures)
            stages = ", ".join(sorted({repr(stage) for stage in self._failures.values()}))
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            raise StageFailedError(
                f"{len(names)} of {len(self)} partitions failed: stage {stages} returned a FailedTask for "
                f"{', '.join(names[:5])}{more}.{f' {self._reasons[0]}' if self._reasons else ''} Everything else is "
                "done and committed; run the same command again to retry only these.",
                stage=next(iter(self._failures.values())),
                file=None,
                row=None,
                partitions=names,
            )


def _input_bytes(partition: Partition) -> int:
    """Approximate number of bytes that a partition reads."""
    size = 0
    for part in partition.ranges:
        to_its_end = part.whole or part.end < 0 or part.end > part.size
        size += max(0, part.size) if to_its_end else part.end - part.start
    return size
