"""A group of files as a task: the input of a reader and the output of a writer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from gristmill.tasks.base import Task


@dataclass(init=False, eq=False, repr=False)
class FileGroupTask(Task[list[str]]):
    """The paths of some files, with the settings to read them.

    Example:
        >>> FileGroupTask(data=["b.jsonl", "a.jsonl"]).num_items
        2
    """

    data: list[str] = field(default_factory=list)
    reader_config: dict[str, Any] = field(default_factory=dict, kw_only=True)

    def __init__(
        self,
        dataset_name: str = "",
        data: list[str] | None = None,
        _stage_perf: list[Any] | None = None,
        _metadata: dict[str, Any] | None = None,
        *,
        reader_config: dict[str, Any] | None = None,
        task_id: str = "",
    ) -> None:
        self.reader_config = reader_config if reader_config is not None else {}
        super().__init__(dataset_name, data if data is not None else [], _stage_perf, _metadata, task_id=task_id)

    @property
    def num_items(self) -> int:
        return len(self.data)

    def get_deterministic_id(self) -> str:
        """Twelve hexadecimal digits that follow from the set of paths."""
        return hashlib.sha256("\n".join(sorted(self.data)).encode()).hexdigest()[:12]
