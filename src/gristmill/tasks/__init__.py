"""What flows through a pipeline: `Task`, `DocumentBatch`, `FileGroupTask` and the sentinels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.tasks.base import EmptyTask, FailedTask, NoneTask, SentinelTask, Task
    from gristmill.tasks.document import DocumentBatch
    from gristmill.tasks.file_group import FileGroupTask

__all__ = ["DocumentBatch", "EmptyTask", "FailedTask", "FileGroupTask", "NoneTask", "SentinelTask", "Task"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": ["EmptyTask", "FailedTask", "NoneTask", "SentinelTask", "Task"],
        "document": ["DocumentBatch"],
        "file_group": ["FileGroupTask"],
    },
)
