"""The local engine: worker processes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.backends.local.executor import LocalExecutor

__all__ = ["LocalExecutor"]


def __getattr__(name: str) -> Any:
    if name != "LocalExecutor":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gristmill.backends.local.executor import LocalExecutor

    return LocalExecutor
