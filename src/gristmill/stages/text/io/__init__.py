"""Reading and writing documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.stages.text.io.documents import DocumentReader, DocumentWriter
    from gristmill.stages.text.io.hugging_face import HuggingFaceReader
    from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
    from gristmill.stages.text.io.reader.table_files import ArrowReader, CsvReader, SqlReader
    from gristmill.stages.text.io.reader.text import ArchiveReader, HtmlReader, TextReader
    from gristmill.stages.text.io.reader.warc import WarcReader
    from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
    from gristmill.stages.text.io.writer.tables import ArrowWriter, CsvWriter

__all__ = [
    "ArchiveReader",
    "ArrowReader",
    "ArrowWriter",
    "CsvReader",
    "CsvWriter",
    "DocumentReader",
    "DocumentWriter",
    "HtmlReader",
    "HuggingFaceReader",
    "JsonlReader",
    "JsonlWriter",
    "ParquetReader",
    "ParquetWriter",
    "SqlReader",
    "TextReader",
    "WarcReader",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "documents": ["DocumentReader", "DocumentWriter"],
        "hugging_face": ["HuggingFaceReader"],
        "reader": ["JsonlReader", "ParquetReader"],
        "reader.table_files": ["ArrowReader", "CsvReader", "SqlReader"],
        "reader.text": ["ArchiveReader", "HtmlReader", "TextReader"],
        "reader.warc": ["WarcReader"],
        "writer": ["JsonlWriter", "ParquetWriter"],
        "writer.tables": ["ArrowWriter", "CsvWriter"],
    },
)
