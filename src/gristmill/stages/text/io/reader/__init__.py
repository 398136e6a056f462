"""Readers: files in, documents out."""

from __future__ import annotations

from gristmill.stages.text.io.reader.jsonl import JsonlReader, JsonlReaderStage
from gristmill.stages.text.io.reader.parquet import ParquetReader, ParquetReaderStage
from gristmill.stages.text.io.reader.partitioning import FilePartitioningStage

__all__ = ["FilePartitioningStage", "JsonlReader", "JsonlReaderStage", "ParquetReader", "ParquetReaderStage"]
