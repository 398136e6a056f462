"""Writers: documents in, committed files out."""

from __future__ import annotations

from gristmill.stages.text.io.writer.jsonl import JsonlWriter
from gristmill.stages.text.io.writer.parquet import ParquetWriter

__all__ = ["JsonlWriter", "ParquetWriter"]
