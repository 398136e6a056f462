"""Writers: documents in, committed files out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names
from gristmill.stages.text.io.writer.jsonl import JsonlWriter
from gristmill.stages.text.io.writer.parquet import ParquetWriter

if TYPE_CHECKING:
    from gristmill.stages.text.io.writer.megatron_tokenizer import MegatronTokenizerWriter
    from gristmill.stages.text.io.writer.tokens import TokenWriter

__all__ = ["JsonlWriter", "MegatronTokenizerWriter", "ParquetWriter", "TokenWriter"]

__getattr__, __dir__ = lazy_names(
    __name__, {"megatron_tokenizer": ["MegatronTokenizerWriter"], "tokens": ["TokenWriter"]}
)
