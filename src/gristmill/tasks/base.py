"""What flows between stages: the task, and the sentinels that stand for nothing and for failure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from gristmill.ledger.performance import StagePerfStats
from gristmill.tracking.origins import Lineage

T = TypeVar("T")

ROOT_ID = "0"


@dataclass(init=False, eq=False, repr=False)
class Task(ABC, Generic[T]):
    """A unit of work with its data, its user metadata and its history.

    A subclass may be a dataclass, with its own fields after these.

    Args:
        dataset_name: The name of the data set it belongs to.
        data: What the stages work on.
        task_id: Accepted for convenience; a running pipeline assigns every task a deterministic id.
        _stage_perf: The performance records of the stages that made it.
        _metadata: Anything that stages want to pass on.
    """

    dataset_name: str = ""
    data: T = None  # type: ignore[assignment]
    _stage_perf: list[StagePerfStats] = field(default_factory=list)
    _metadata: dict[str, Any] = field(default_factory=dict)
    task_id: str = field(default="", kw_only=True)
    _lineage: Lineage | None = field(default=None, init=False)

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
        self._stage_perf = _stage_perf if _stage_perf is not None else []
        self._metadata = _metadata if _metadata is not None else {}
        self._lineage = None
        self.data = data  # type: ignore[assignment]
        self.validate()

    def __post_init__(self) -> None:
        """Called by the constructor of a subclass that is a dataclass."""
        self.validate()

    @property
    @abstractmethod
    def num_items(self) -> int:
        """Number of items (documents, files) in the task."""

    @property
    def partition(self) -> int:
        """The number of the partition that the task comes from; known while a pipeline runs."""
        assert self._lineage is not None, "a task has a partition only while a pipeline runs"
        return self._lineage.partition

    @property
    def partition_id(self) -> str:
        """The name of that partition, or the task's own id outside of a run."""
        return self.task_id if self._lineage is None else self._lineage.partition_id

    def validate(self) -> bool:
        """Whether the data is usable; called once when the task is made."""
        return True

    def add_stage_perf(self, perf: StagePerfStats) -> None:
        """Append the record of a stage that has worked on this task."""
        self._stage_perf.append(perf)

    def get_deterministic_id(self) -> str | None:
        """An id derived from the content alone, if the kind of task has one."""
        return None

    def get_source_id(self) -> str:
        """The last part of the task's id."""
        return self.task_id.rsplit("/", 1)[-1]

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"{name}(task_id={self.task_id!r}, dataset_name={self.dataset_name!r}, items={self.num_items})"


class SentinelTask(Task[None]):
    """A task without data that signals something to stages."""

    @property
    def num_items(self) -> int:
        return 0


class EmptyTask(SentinelTask):
    """The input of a source stage: only the signal to begin."""

    def __init__(self, dataset_name: str = "", data: None = None, **options: Any) -> None:
        super().__init__(dataset_name, data, **options)
        self.task_id = self.task_id or ROOT_ID


class NoneTask(SentinelTask):
    """An empty task: every item was dropped."""


class FailedTask(SentinelTask):
    """A task that could not be processed; it does not count as finished, so the next run retries it.

    Say why in a sentence: `FailedTask(_metadata={"reason": "…"})`.
    """

    @property
    def reason(self) -> str:
        """The reason, if the stage stated one."""
        return str(self._metadata.get("reason", ""))
