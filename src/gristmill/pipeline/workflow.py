"""A workflow: several pipelines in a row, with files between them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gristmill.tasks.base import Task

if TYPE_CHECKING:
    from gristmill.observe.profile.profile import Profile


@dataclass
class WorkflowRunResult:
    """The result of a workflow: the tasks of each of its pipelines, and facts about the whole.

    Example:
        >>> result = WorkflowRunResult("exact")
        >>> result.add_metadata("removed", 3)
        >>> result.get_metadata("removed")
        3
    """

    workflow_name: str
    pipeline_tasks: dict[str, list[Task[Any]]] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    profile: Profile | None = field(default=None, init=False)
    """The profile of a run with `profile=True`."""

    def add_pipeline_tasks(self, pipeline_name: str, tasks: list[Task[Any]] | None) -> None:
        """Store the tasks that the pipeline `pipeline_name` returned."""
        self.pipeline_tasks[pipeline_name] = list(tasks or [])

    def extend_metadata(self, updates: Mapping[str, Any] | None = None) -> None:
        """Add several facts."""
        self.metadata.update(updates or {})

    def add_metadata(self, key: str, value: Any) -> None:
        """Add one fact."""
        self.metadata[key] = value

    def get_metadata(self, key: str, default: Any = None) -> Any:
        """One fact, or `default`."""
        return self.metadata.get(key, default)


class WorkflowBase(ABC):
    """Base class of workflows, which read and write files themselves."""

    @abstractmethod
    def run(self, *args: Any, **options: Any) -> WorkflowRunResult:
        """Run all pipelines of the workflow."""
