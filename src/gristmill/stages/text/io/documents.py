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
from gristmill.stages.text.io.reader.rows import RowReader
from gristmill.stages.text.io.reader.table_files import ArrowReader, CsvReader
from gristmill.stages.text.io.reader.text import HtmlReader, TextReader
from gristmill.stages.text.io.reader.warc import WarcReader
from gristmill.stages.text.io.writer.jsonl import JsonlWriter
from gristmill.stages.text.io.writer.parquet import ParquetWriter
from gristmill.storage.files import Survey, survey
from gristmill.storage.formats import EXTENSIONS, FORMATS, RECORD_FORMATS, Format, codec_of, format_of
from gristmill.storage.selection import Selection
from gristmill.storage.valid_text import TextErrors
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

Stages = list[ProcessingStage[Any, Any]]
ROW_READERS: Mapping[Format, type[RowReader]] = {
    "arrow": ArrowReader,
    "csv": CsvReader,
    "html": HtmlReader,
    "text": TextReader,
    "warc": WarcReader,
}


class DocumentReader(CompositeStage[EmptyTask, DocumentBatch]):
    """Reads files in the format that they have, compressed or not: JSONL, Parquet, CSV, Arrow, text and others.

    Records that lie ready (JSONL, Parquet) go before all else: a README or an index page beside them is not data.
    Input in two formats that could both be meant is refused with both choices, so that neither half is left out
    unnoticed. A reader with options of its own, such as `CsvReader`, does what this one cannot guess.

    Args:
        file_paths: A file, a folder, a glob, a URL, or a list of these. In folders, names that begin with `_` or `.`
            are skipped.
        filetype: A format, such as `jsonl`, to read only files of this format; by default the one that is there.
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
        if filetype not in (None, *FORMATS):
            known = ", ".join(map(repr, FORMATS))
            raise UsageError(f"filetype={filetype!r}: give one of {known}, or leave it out.", value=filetype)
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
            found = survey(self.file_paths, storage_options=self.storage_options)
            kind = self._format_of(found)
            found = found.only(kind)  # where the rest is records too, the source refuses it with both choices
        if kind in ROW_READERS:
            return self._read_rows(kind, found)
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
        stage = ParquetReaderStage if kind == "parquet" else JsonlReaderStage
        reader = stage(self.fields, storage_options=self.storage_options, errors=self.errors)
        if selection is not None:
            reader.select(selection)
        return [source, reader]

    def _format_of(self, found: Survey) -> Format:
        """The format to read: what is surely data, and not a file that lies beside it."""
        formats = found.formats()
        named = [kind for kind in formats if kind is not None]
        for ready in ("parquet", "jsonl"):
            if ready in formats or not named:
                return "parquet" if ready in formats and ready == "parquet" else "jsonl"
        data = [kind for kind in named if not FORMATS[kind].companion] or named
        if len(data) > 1:
            places = " and ".join(f"{FORMATS[kind].label} ({formats[kind][0].relative})" for kind in data)
            choices = " or ".join(f"--input-filetype {kind} (filetype={kind!r})" for kind in data)
            raise UsageError(
                f"{self.file_paths} holds files of several formats: {places}. Say which to read: {choices}; for all of "
                "them, one run for each.",
                paths=self.file_paths,
            )
        return data[0]

    def _read_rows(self, kind: Format, found: Survey | None) -> Stages:
        reader = ROW_READERS[kind](
            self.file_paths,
            files_per_partition=self.files_per_partition,
            blocksize=self.blocksize,
            fields=self.fields,
            max_documents=self.max_documents,
            sample=self.sample,
            seed=self.seed,
            storage_options=self.storage_options,
            errors=self.errors,
        )
        source, *rest = reader.decompose()
        assert isinstance(source, FilePartitioningStage)
        source.found = None if found is None else [found]
        return [source, *rest]


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
        if filetype not in (None, *RECORD_FORMATS):
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
        chosen.filetype = "jsonl"
        if before and isinstance(before[0], SourceStage) and before[0].format in RECORD_FORMATS:
            chosen.filetype = before[0].format
        return chosen.decompose_and_apply_with()

    def decompose(self) -> Stages:
        writer = ParquetWriter if self.filetype == "parquet" else JsonlWriter
        options = {} if self.compression is None else {"compression": self.compression}
        return [writer(self.path, None, self.fields, self.mode, storage_options=self.storage_options, **options)]
