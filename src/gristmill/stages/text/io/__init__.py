"""Reading and writing documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
    from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter

__all__ = ["JsonlReader", "JsonlWriter", "ParquetReader", "ParquetWriter"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = "reader" if name.endswith("Reader") else "writer"
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
