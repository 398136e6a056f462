"""The origins of tasks and rows: the part of a task that user code never sees."""

from __future__ import annotations

from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gristmill.ledger.record.trail import Rows, Trail

if TYPE_CHECKING:
    from gristmill.tasks.base import Task
    from gristmill.tasks.columns import Columns

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Step:
    """One level in the tree of a partition's tasks: the child's index, and whether it is the last one."""

    index: int
    last: bool


@dataclass(slots=True)
class Lineage:
    """The position of a task in the tree of its partition. Owned by the runner.

    Attributes:
        partition: The number of the partition.
        partition_id: Its name.
        path: The path from the partition's first task.
        trail: Records about the task that have not been passed to another one.
        source: The path to the task that the documents were made from, within which rows are numbered; None until there
            are documents.
        unscored: Documents that were dropped earlier and will still be scored by later stages.
    """

    partition: int
    partition_id: str
    path: tuple[Step, ...] = ()
    trail: Trail = field(default_factory=Trail)
    source: tuple[int, ...] | None = None
    unscored: Any = None

    @property
    def order(self) -> tuple[int, ...]:
        """The sort key of the task within the partition."""
        return tuple(map(attrgetter("index"), self.path))

    @property
    def task_id(self) -> str:
        """The deterministic id: partition / sequence / child."""
        return "/".join([self.partition_id, *map(str, self.order)])

    def child(self, index: int, *, last: bool, trail: Trail) -> Lineage:
        """The lineage of the child number `index`."""
        unscored = self.unscored if index == 0 else None
        path = (*self.path, Step(index, last))
        return Lineage(self.partition, self.partition_id, path, trail, self.source, unscored)


def lineage_of(task: Task[Any]) -> Lineage:
    """The position of a task in the tree of the run."""
    assert task._lineage is not None, task
    return task._lineage


def with_lineage(task: Task[Any], lineage: Lineage) -> Task[Any]:
    """The task with a position in the tree."""
    task._lineage = lineage
    task.task_id = lineage.task_id
    return task


class RowTracking:
    """The rows of one batch.

    While a stage works on a batch, everything derived from it shares its trail, so that drops, changes and scores are
    recorded once, on whichever batch the stage reports them.

    Attributes:
        rows: The row number of each document within its partition; None before a source has numbered them.
        trail: Records of stages since the current call began.
        positions: For each row, the row of the call's input that it continues; None if the rows are the same.
        in_call: Whether the batch is derived from the input of a call, so that `positions` holds for that input.
        all_scores: Whether every score is requested, so that none may be skipped.
        keeps_dropped: Whether these documents were dropped before and are only scored.
        frame_shown: The pandas frame that user code received, the name of its index, and its columns.
        polars_shown: The Polars frame that user code received.
    """

    __slots__ = (
        "all_scores",
        "frame_shown",
        "in_call",
        "keeps_dropped",
        "polars_shown",
        "positions",
        "rows",
        "trail",
    )

    def __init__(
        self,
        rows: Rows | None = None,
        *,
        trail: Trail | None = None,
        positions: Indices | None = None,
        in_call: bool = False,
        all_scores: bool = False,
        keeps_dropped: bool = False,
    ) -> None:
        self.rows = rows
        self.trail = Trail() if trail is None else trail
        self.positions = positions
        self.in_call = in_call
        self.all_scores = all_scores
        self.keeps_dropped = keeps_dropped
        self.frame_shown: tuple[Any, str, Columns] | None = None
        self.polars_shown: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # What was recorded about a batch has been collected before it leaves the process.
        return RowTracking, (self.rows,)

    def entering(self, *, all_scores: bool = False, keeps_dropped: bool = False) -> RowTracking:
        """The same rows as the input of a new call."""
        return RowTracking(self.rows, in_call=True, all_scores=all_scores, keeps_dropped=keeps_dropped)

    def taken(self, indices: Indices | slice, length: int) -> RowTracking:
        """The rows at `indices`, out of `length` rows."""
        positions = np.arange(length) if self.positions is None else self.positions
        return self._with(None if self.rows is None else self.rows[indices], positions[indices])

    def same(self) -> RowTracking:
        """The same rows, for a batch with other columns."""
        return self._with(self.rows, self.positions)

    def _with(self, rows: Rows | None, positions: Indices | None) -> RowTracking:
        return RowTracking(
            rows,
            trail=self.trail,
            positions=positions,
            in_call=self.in_call,
            all_scores=self.all_scores,
            keeps_dropped=self.keeps_dropped,
        )
