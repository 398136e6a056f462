"""Reads and writes documents in the format of the input, for pipelines that are not tied to one format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.errors import InputNotFoundError, UsageError
from gristmill.stages.base import CompositeStage, ProcessingStage, Spec, own_copy
from gristmill.stages.source_sink import Mode, SourceStage
from gristmill.stages.text.io.reader.dumps import MailReader, StackExchangeReader
from gristmill.stages.text.io.reader.jsonl import JsonlReaderStage
from gristmill.stages.text.io.reader.parquet import ParquetReaderStage
from gristmill.stages.text.io.reader.partitioning import FilePartitioningStage, Paths, partitioned, plain_paths
from gristmill.stages.text.io.reader.pdf import PdfReader
from gristmill.stages.text.io.reader.rows import RowReader
from gristmill.stages.text.io.reader.table_files import ArrowReader, CsvReader, SqlReader
from gristmill.stages.text.io.reader.text import ArchiveReader, HtmlReader, TextReader
from gristmill.stages.text.io.reader.warc import WarcReader
from gristmill.stages.text.io.reader.wikipedia import WikipediaReader
from gristmill.stages.text.io.writer.jsonl import JsonlWriter
from gristmill.stages.text.io.writer.parquet import ParquetWriter
from gristmill.storage.compression import kinds_of
from gristmill.storage.files import InputFile, Survey, survey
from gristmill.storage.formats import (
    EXTENSIONS,
    FORMATS,
    RECORD_FORMATS,
    WRITTEN_FORMATS,
    Format,
    WrittenFormat,
    codec_of,
    format_of,
)
from gristmill.storage.valid_text import TextErrors
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch
from gristmill.tasks.file_group import FileGroupTask

_RECORDS = (*EXTENSIONS["jsonl"], *EXTENSIONS["parquet"])
_MOST_DESCRIPTIONS = 20
_DESCRIPTIONS = ("dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json")
"""Files that `datasets` writes beside its Arrow files."""
Stages = list[ProcessingStage[Any, Any]]
ROW_READERS: Mapping[Format, type[RowReader]] = {
    "archive": ArchiveReader,
    "arrow": ArrowReader,
    "csv": CsvReader,
    "html": HtmlReader,
    "mail": MailReader,
    "mediawiki": WikipediaReader,
    "pdf": PdfReader,
    "sql": SqlReader,
    "stackexchange": StackExchangeReader,
    "text": TextReader,
    "warc": WarcReader,
}


class DocumentReader(CompositeStage[EmptyTask, DocumentBatch]):
    """Reads files of any supported format, compressed or not: JSONL, Parquet, CSV, Arrow, text and others.

    Record files (JSONL, Parquet) take precedence: a README or an index page beside them is not data. Input in two
    formats that could both be data is an error that lists both choices, so that neither is silently skipped. For
    format-specific options, use the reader of that format, such as `CsvReader`.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these. In folders, names that begin with `_` or `.` are
            skipped.
        filetype: Read only files of this format, such as `jsonl`. Detected by default.
        files_per_partition: Number of whole files per partition.
        blocksize: Approximate partition size; large files are split.
        fields: Columns to read; all by default.
        max_documents: Read at most this many documents, from the start (of the sample, if there is one).
        sample: Fraction of documents to sample at random, such as 0.01.
        seed: Random seed of the sample.
        storage_options: File system options for URLs.
        errors: How to handle text that is not UTF-8: `quarantine` its document, or `replace` the invalid bytes with
            U+FFFD and count the document as changed.

    Example:
        >>> pipeline.add_stage(DocumentReader("crawl/", sample=0.01))
    """

    name = "document_reader"
    limit: int | None = None

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
            raise UsageError(f"filetype={filetype!r}: must be one of {known}, or omitted.", value=filetype)
        if errors != "quarantine":
            JsonlReaderStage(errors=errors)  # refuses unknown options
        self.errors = errors
        self.file_paths = plain_paths(file_paths)
        self.filetype = filetype
        self.file_extensions: Sequence[str] | None = None if filetype is None else EXTENSIONS[filetype]
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
            try:
                found = survey(self.file_paths, extensions=_RECORDS, storage_options=self.storage_options)
            except InputNotFoundError:
                found = survey(self.file_paths, storage_options=self.storage_options)
            formats = found.formats()
            kind = "parquet" if "parquet" in formats else "jsonl"
            if formats.keys() - {None, "jsonl", "parquet"}:
                kind = self._format_of(formats)
            elif kind == "jsonl" and found.left_out:
                found, kind = self._without_descriptions(found)
            if len(formats) > 1:
                found = found.only(kind)  # if the rest is records too, the source refuses it with both choices
        if kind in ROW_READERS:
            return self._read_rows(kind, found)
        stage = ParquetReaderStage if kind == "parquet" else JsonlReaderStage
        reader = stage(self.fields, storage_options=self.storage_options, errors=self.errors)
        source, _ = partitioned(self, reader, kind)
        source.found = None if found is None else [found]
        return [source, reader]

    def _format_of(self, formats: Mapping[Format | None, Sequence[InputFile]]) -> Format:
        """The format to read: that of files that are certainly data, not of files that merely accompany it.

        Raises:
            UsageError: Files of several formats were requested, or the choice is ambiguous.
        """
        named = [kind for kind in formats if kind is not None]
        data = [kind for kind in named if not FORMATS[kind].companion] or named
        if len(data) > 1:
            places = " and ".join(f"{FORMATS[kind].label} ({formats[kind][0].relative})" for kind in data)
            choices = " or ".join(f"--input-filetype {kind} (filetype={kind!r})" for kind in data)
            raise UsageError(
                f"{self.file_paths} holds files of several formats: {places}. Choose one: {choices}; to read all of "
                "them, run once for each.",
                paths=self.file_paths,
            )
        return data[0]

    def _without_descriptions(self, found: Survey) -> tuple[Survey, Format]:
        """The files to read and their format, if JSON files may merely describe data of another format beside them."""
        beside = {format_of(item.relative) for item in found.left_out if item.reason == "extension"}
        tables = [kind for kind in FORMATS if kind in beside and not FORMATS[kind].companion]
        if not tables or not all(file.path.endswith(".json") for file in found.files):
            return found, "jsonl"
        files = [file.path for file in found.files if file.path.rpartition("/")[2] not in _DESCRIPTIONS]
        kinds = kinds_of(files[:_MOST_DESCRIPTIONS], storage_options=self.storage_options)
        if {"jsonl", "json_array"}.intersection(kinds.values()):
            return found, "jsonl"
        found = survey(self.file_paths, storage_options=self.storage_options)
        formats = found.formats()
        kind = self._format_of({kind: files for kind, files in formats.items() if kind != "jsonl"})
        return found.only(kind), kind

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
    """Writes JSONL or Parquet, following the input, and JSONL for other inputs, unless a format is set.

    Args:
        path: Output folder. A name such as `clean.jsonl.gz` sets format and compression.
        filetype: `jsonl`, `parquet`, `csv` or `arrow`. Defaults to the input format if it is one of the first two,
            otherwise JSONL.
        compression: `none`, `gz`, `zst` or `bz2` for JSONL and CSV; `none`, `zst` or `lz4` for Arrow; `none`, `gz`,
            `zst`, `snappy`, `lz4` or `brotli` for Parquet. Defaults to Zstandard for Parquet and no compression for the
            others.
        fields: Columns to write, in this order; all by default.
        mode: How to treat existing files: "ignore" resumes an earlier run and refuses to overwrite other files,
            "overwrite" starts over and replaces them, "error" requires an empty folder.
        storage_options: File system options for URLs.

    Example:
        >>> pipeline.add_stage(DocumentWriter("clean/", compression="zst"))
    """

    name = "document_writer"

    def __init__(
        self,
        path: str,
        filetype: WrittenFormat | None = None,
        *,
        compression: str | None = None,
        fields: Sequence[str] | None = None,
        mode: Mode = "ignore",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if filetype not in (None, *WRITTEN_FORMATS):
            known = ", ".join(map(repr, WRITTEN_FORMATS))
            raise UsageError(f"filetype={filetype!r}: must be one of {known}, or omitted.", value=filetype)
        self.path = str(path)
        self.filetype: Format | None = filetype
        self.compression = compression
        self.fields = fields
        self.mode = mode
        self.storage_options = storage_options
        if "." in self.path.rstrip("/").rpartition("/")[2]:
            named = format_of(self.path.rstrip("/"))
            self.filetype = filetype or (named if named in WRITTEN_FORMATS else None)
            if self.filetype in ("jsonl", "csv") and compression is None:
                self.compression = codec_of(self.path.rstrip("/"))
        if self.filetype is not None:
            self.decompose()  # refuses invalid options

    def decompose_and_apply_with(self, before: Sequence[ProcessingStage[Any, Any]] = ()) -> Stages:
        if self.filetype is not None:
            return super().decompose_and_apply_with()
        chosen = own_copy(self)
        chosen.filetype = "jsonl"
        if before and isinstance(before[0], SourceStage) and before[0].format in RECORD_FORMATS:
            chosen.filetype = before[0].format
        return chosen.decompose_and_apply_with()

    def decompose(self) -> Stages:
        writer: Any = ParquetWriter if self.filetype == "parquet" else JsonlWriter
        options = {} if self.compression is None else {"compression": self.compression}
        if self.filetype in ("arrow", "csv"):
            from gristmill.stages.text.io.writer.tables import ArrowWriter, CsvWriter

            writer = ArrowWriter if self.filetype == "arrow" else CsvWriter
            if ".tsv" in self.path.rpartition("/")[2].lower():
                options["delimiter"] = "\t"
        return [writer(self.path, None, self.fields, self.mode, storage_options=self.storage_options, **options)]
