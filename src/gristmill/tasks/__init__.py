"""What flows through a pipeline: `Task`, `DocumentBatch`, `FileGroupTask` and the sentinels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.tasks.base import EmptyTask, FailedTask, NoneTask, Task
    from gristmill.tasks.document import DocumentBatch
    from gristmill.tasks.file_group import FileGroupTask

__all__ = ["DocumentBatch", "EmptyTask", "FailedTask", "FileGroupTask", "NoneTask", "Task"]

_HOMES = {"DocumentBatch": "document", "FileGroupTask": "file_group"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'base')}"), name)
