"""Where a task comes from: its partition, its way down from it, and what has happened on that way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gristmill.ledger.record.trail import Trail

if TYPE_CHECKING:
    from gristmill.tasks.base import Task


@dataclass(frozen=True, slots=True)
class Step:
    """One step down the tree of a partition's tasks: which child, and whether it is the last one."""

    index: int
    last: bool


@dataclass(slots=True)
class Lineage:
    """The place of a task in the tree of its partition. Owned by the runner.

    Attributes:
        partition: The number of the partition.
        partition_id: Its name.
        path: The way down from the partition's first task.
        trail: What is recorded about the task and has not been handed to another one.
        source: The way down to the task of which the documents were made, from which rows are numbered; None until
            there are documents.
        unscored: Documents that were dropped on the way and are still to be scored by later stages.
    """

    partition: int
    partition_id: str
    path: tuple[Step, ...] = ()
    trail: Trail = field(default_factory=Trail)
    source: tuple[int, ...] | None = None
    unscored: Any = None

    @property
    def order(self) -> tuple[int, ...]:
        """Where the task stands within the partition."""
        return tuple(step.index for step in self.path)

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
    """The place of a task in the tree of the run."""
    assert task._lineage is not None, task
    return task._lineage


def with_lineage(task: Task[Any], lineage: Lineage) -> Task[Any]:
    """The task, put in a place of the tree."""
    task._lineage = lineage
    task.task_id = lineage.task_id
    return task
