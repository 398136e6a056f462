"""Reading and writing documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.io.documents import DocumentReader, DocumentWriter
    from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
    from gristmill.stages.text.io.reader.warc import WarcReader
    from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter

__all__ = [
    "DocumentReader",
    "DocumentWriter",
    "JsonlReader",
    "JsonlWriter",
    "ParquetReader",
    "ParquetWriter",
    "WarcReader",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "documents": ["DocumentReader", "DocumentWriter"],
        "reader": ["JsonlReader", "ParquetReader"],
        "reader.warc": ["WarcReader"],
        "writer": ["JsonlWriter", "ParquetWriter"],
    },
)
