"""What flows between stages: the task, and the sentinels that stand for nothing and for failure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gristmill.ledger.performance import StagePerfStats
from gristmill.ledger.record.trail import Rows, Trail

T = TypeVar("T")

ROOT_ID = "0"


@dataclass(frozen=True, slots=True)
class Step:
    """One step down the tree of a partition's tasks: which child, and whether it is the last one."""

    index: int
    last: bool


@dataclass(slots=True)
class Lineage:
    """Where a task comes from: its partition and the way down from it. Owned by the runner.

    `source` is the way down to the task from which the documents were made; rows are numbered from there. `followed`
    holds documents that were dropped on the way, where they are still to be scored.
    """

    partition: int
    partition_id: str
    path: tuple[Step, ...] = ()
    trail: Trail = field(default_factory=Trail)
    source: tuple[int, ...] = ()
    followed: Any = None

    @property
    def task_id(self) -> str:
        """The deterministic id: partition / sequence / child."""
        return "/".join([self.partition_id, *(str(step.index) for step in self.path)])

    def child(self, index: int, *, last: bool, trail: Trail) -> Lineage:
        """The lineage of the child number `index`."""
        followed = self.followed if index == 0 else None
        path = (*self.path, Step(index, last))
        return Lineage(self.partition, self.partition_id, path, trail, self.source, followed)


@dataclass(frozen=True, slots=True)
class Carried:
    """The documents that were turned into a task of another kind.

    Attributes:
        rows: Their row numbers.
        id_hashes: The hashes of their ids, where they have any.
        shared: Whether there are other tasks that may hold some of them.
        answers: Whether this task is the one of these that counts for the documents.
    """

    rows: Rows
    id_hashes: Any = None
    shared: bool = False
    answers: bool = True


class Task(ABC, Generic[T]):
    """A unit of work with its data, its user metadata and its history.

    Args:
        dataset_name: The name of the data set it belongs to.
        data: What the stages work on.
        task_id: Accepted for convenience; a running pipeline gives every task its own deterministic id.
        _stage_perf: The performance records of the stages that made it.
        _metadata: Anything that stages want to hand on.
    """

    def __init__(
        self,
        dataset_name: str = "",
        data: T | None = None,
        _stage_perf: list[StagePerfStats] | None = None,
        _metadata: dict[str, Any] | None = None,
        *,
        task_id: str = "",
    ) -> None:
        self.dataset_name = dataset_name
        self.task_id = task_id
        self._stage_perf: list[StagePerfStats] = _stage_perf if _stage_perf is not None else []
        self._metadata: dict[str, Any] = _metadata if _metadata is not None else {}
        self._lineage: Lineage | None = None
        self.data = data  # type: ignore[assignment]
        self.validate()

    data: T
    _carried: Carried | None = None

    @property
    @abstractmethod
    def num_items(self) -> int:
        """How many items (documents, files) the task holds."""

    def validate(self) -> bool:
        """Whether the data is usable; called once when the task is made."""
        return True

    def add_stage_perf(self, perf: StagePerfStats) -> None:
        """Append the record of a stage that has worked on this task."""
        self._stage_perf.append(perf)

    def get_deterministic_id(self) -> str | None:
        """An id that follows from the content alone, where the kind of task has one."""
        return None

    def get_source_id(self) -> str:
        """The last part of the task's id."""
        return self.task_id.rsplit("/", 1)[-1]

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(task_id={self.task_id!r}, dataset_name={self.dataset_name!r}, items={self.num_items})"


class _Sentinel(Task[None]):
    @property
    def num_items(self) -> int:
        return 0


class EmptyTask(_Sentinel):
    """What a source stage gets: nothing but the permission to begin."""

    def __init__(self, dataset_name: str = "", **options: Any) -> None:
        super().__init__(dataset_name, None, **options)
        self.task_id = self.task_id or ROOT_ID


class NoneTask(_Sentinel):
    """A task of which nothing is left: every item was dropped."""


class FailedTask(_Sentinel):
    """A task that could not be processed; it is not taken as finished, so the next run tries it again."""
