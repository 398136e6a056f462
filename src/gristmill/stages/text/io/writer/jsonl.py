"""Writes JSONL; a record that no stage changed is written with its original bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import UsageError
from gristmill.stages.source_sink import BaseWriter, Mode, PartFile
from gristmill.storage.atomic import WrittenFile
from gristmill.storage.formats import codec_of, format_of
from gristmill.storage.jsonl_sink import JsonlSink, RecordLines, concatenate_jsonl
from gristmill.tasks.document import DocumentBatch

_SUFFIXES = {None: "", "none": "", "gzip": ".gz", "gz": ".gz", "zstd": ".zst", "zst": ".zst", "bz2": ".bz2"}


class JsonlWriter(BaseWriter):
    """Writes documents as JSONL.

    NaN and infinities, which exist in Parquet but not in JSON, are written as null. A path that ends with `.jsonl.gz`
    sets the compression.

    Example:
        >>> pipeline.add_stage(JsonlWriter(path="clean/", compression="zstd"))
    """

    name = "jsonl_writer"
    fork_safe = True
    endings = ("jsonl", "json", "ndjson")
    file_extension = "jsonl"
    not_called = (*BaseWriter.not_called, "write_data")

    def __init__(
        self,
        path: str,
        write_kwargs: Mapping[str, Any] | None = None,
        fields: Sequence[str] | None = None,
        mode: Mode = "ignore",
        *,
        compression: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(path, write_kwargs, fields, mode, compression=compression, storage_options=storage_options)
        if self.compression is None and codec_of(self.path) != "none" and format_of(self.path) == "jsonl":
            self.compression = codec_of(self.path)
        if self.compression not in _SUFFIXES:
            raise UsageError(
                f"JsonlWriter(compression={self.compression!r}): must be None, 'gzip', 'zstd' or 'bz2'.",
            )

    @property
    def extension(self) -> str:
        return f".{self.file_extension}{_SUFFIXES[self.compression]}"

    def write_data(self, task: DocumentBatch, file_path: str) -> None:
        """Write one batch to `file_path`, outside of a run and without a record; for use in scripts."""
        self.write_alone(task, file_path)

    def encode(self, batch: DocumentBatch) -> npt.NDArray[np.uint8] | RecordLines:
        return batch.columns.jsonl_lines(self.fields)

    def open_part(self, path: str) -> PartFile:
        return JsonlSink(path, storage_options=self.storage_options)

    def concatenate(self, pieces: Sequence[WrittenFile], path: str) -> list[WrittenFile]:
        return [concatenate_jsonl(pieces, path, storage_options=self.storage_options)]
