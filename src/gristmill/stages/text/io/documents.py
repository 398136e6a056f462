"""Reads and writes documents in whatever format the input has, for pipelines that are not bound to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.errors import UsageError
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec, own_copy
from gristmill.stages.source_sink import Mode, SourceStage
from gristmill.stages.text.io.reader.jsonl import JsonlReaderStage
from gristmill.stages.text.io.reader.parquet import ParquetReaderStage
from gristmill.stages.text.io.reader.partitioning import FilePartitioningStage, Paths, plain_paths
from gristmill.stages.text.io.writer.jsonl import JsonlWriter
from gristmill.stages.text.io.writer.parquet import ParquetWriter
from gristmill.storage.files import survey
from gristmill.storage.formats import EXTENSIONS, Format, codec_of, format_of
from gristmill.storage.selection import Selection
from gristmill.storage.valid_text import TextErrors
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

Stages = list[ProcessingStage[Any, Any]]
READERS: Mapping[Format, type[JsonlReaderStage] | type[ParquetReaderStage]] = {
    "jsonl": JsonlReaderStage,
    "parquet": ParquetReaderStage,
}


class DocumentReader(CompositeStage[EmptyTask, DocumentBatch]):
    """Reads JSONL or Parquet, compressed or not: the format that the files have.

    Input in both formats is refused with both choices, so that neither half is left out unnoticed.

    Args:
        file_paths: A file, a folder, a glob, a URL, or a list of these. In folders, names that begin with `_` or `.`
            are skipped.
        filetype: `jsonl` or `parquet`, to read only files of this format; by default the one that is there.
        files_per_partition: Whole files per partition.
        blocksize: Partitions of about this size; large files are split.
        fields: Only these columns.
        max_documents: Read at most this many documents, from the start (of the sample, if there is one).
        sample: Only a random share of the documents, such as 0.01.
        seed: Another seed gives another sample.
        storage_options: Options of the file system, for URLs.
        errors: What to do with text that is not UTF-8: `quarantine` its document, or `replace` the invalid bytes by
            U+FFFD and count the document as changed.

    Example:
        >>> pipeline.add_stage(DocumentReader("crawl/", sample=0.01))
    """

    name = "document_reader"

    def __init__(
        self,
        file_paths: Paths,
        filetype: Format | None = None,
        *,
        files_per_partition: int | None = None,
        blocksize: int | str | None = None,
        fields: Sequence[str] | None = None,
        max_documents: int | None = None,
        sample: float | None = None,
        seed: int = 0,
        storage_options: Mapping[str, Any] | None = None,
        errors: TextErrors = "quarantine",
    ) -> None:
        if filetype not in (None, *READERS):
            raise UsageError(f"filetype={filetype!r}: give 'jsonl' or 'parquet', or leave it out.", value=filetype)
        if errors != "quarantine":
            JsonlReaderStage(errors=errors)  # refuses what it does not know
        self.errors = errors
        self.file_paths = plain_paths(file_paths)
        self.filetype = filetype
        self.files_per_partition = files_per_partition
        self.blocksize = blocksize
        self.fields = fields
        self.max_documents = max_documents
        self.sample = sample
        self.seed = seed
        self.storage_options = storage_options

    def inputs(self) -> Spec:
        return [], []

    def outputs(self) -> Spec:
        return ["data"], list(self.fields or [])

    def decompose(self) -> Stages:
        kind, found = self.filetype, None
        if kind is None:
            found, parquet = survey(self.file_paths, storage_options=self.storage_options), 0
            for file in found.files:
                parquet += file.relative.lower().endswith(EXTENSIONS["parquet"])
            kind = "parquet" if parquet else "jsonl"
            if parquet and parquet < len(found.files):
                found = found.only("parquet")  # where the rest is data too, the source refuses it with both choices
        selection = None
        if self.sample is not None or self.max_documents is not None:
            selection = Selection(self.sample, self.seed, self.max_documents)
        source = FilePartitioningStage(
            self.file_paths,
            self.files_per_partition,
            self.blocksize,
            None if self.filetype is None else EXTENSIONS[kind],
            self.storage_options,
            format=kind,
            fields=self.fields,
            selection=selection,
        )
        source.found = None if found is None else [found]
        reader = READERS[kind](self.fields, storage_options=self.storage_options, errors=self.errors)
        if selection is not None:
            reader.select(selection)
        return [source, reader]


class DocumentWriter(CompositeStage[DocumentBatch, FileGroupTask]):
    """Writes JSONL or Parquet: the format of the input, unless another is asked for.

    Args:
        path: The folder. A name such as `clean.jsonl.gz` tells format and compression by itself.
        filetype: `jsonl` or `parquet`; by default what the pipeline reads, and JSONL where it reads no files.
        compression: How files are compressed: `none`, `gz`, `zst` or `bz2` for JSONL, `none`, `gz`, `zst`, `snappy`,
            `lz4` or `brotli` for Parquet. By default JSONL is not compressed, and Parquet by Zstandard.
        fields: Only these columns, in this order.
        mode: How to treat existing files: "ignore" resumes an earlier run and refuses to replace other files,
            "overwrite" starts over and replaces them, "error" requires an empty folder.
        storage_options: Options of the file system, for URLs.

    Example:
        >>> pipeline.add_stage(DocumentWriter("clean/", compression="zst"))
    """

    name = "document_writer"

    def __init__(
        self,
        path: str,
        filetype: Format | None = None,
        *,
        compression: str | None = None,
        fields: Sequence[str] | None = None,
        mode: Mode = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if filetype not in (None, *READERS):
            raise UsageError(f"filetype={filetype!r}: give 'jsonl' or 'parquet', or leave it out.", value=filetype)
        self.path = str(path)
        self.filetype = filetype
        self.compression = compression
        self.fields = fields
        self.mode = mode
        self.storage_options = storage_options
        if "." in self.path.rstrip("/").rpartition("/")[2]:
            self.filetype = filetype or format_of(self.path.rstrip("/"))
            if self.filetype == "jsonl" and compression is None:
                self.compression = codec_of(self.path.rstrip("/"))
        if self.filetype is not None:
            self.decompose()  # refuses options that cannot work

    def decompose_and_apply_with(self, before: Sequence[ProcessingStage[Any, Any]] = ()) -> Stages:
        if self.filetype is not None:
            return super().decompose_and_apply_with()
        chosen = own_copy(self)
        chosen.filetype = before[0].format if before and isinstance(before[0], SourceStage) else "jsonl"
        return chosen.decompose_and_apply_with()

    def decompose(self) -> Stages:
        writer = ParquetWriter if self.filetype == "parquet" else JsonlWriter
        options = {} if self.compression is None else {"compression": self.compression}
        return [writer(self.path, None, self.fields, self.mode, storage_options=self.storage_options, **options)]
