"""Stages that number, split and join documents."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.text.modules.add_id import AddId
    from gristmill.stages.text.modules.joiner import DocumentJoiner
    from gristmill.stages.text.modules.splitter import DocumentSplitter

_HOMES = {"AddId": "add_id", "DocumentJoiner": "joiner", "DocumentSplitter": "splitter"}

__all__ = ["AddId", "DocumentJoiner", "DocumentSplitter"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
