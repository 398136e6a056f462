"""Download, iteration and extraction as one stage."""

from __future__ import annotations

from typing import Any

from gristmill.stages.base import CompositeStage, ProcessingStage, Spec
from gristmill.stages.text.download.base.download import DocumentDownloader, DocumentDownloadStage
from gristmill.stages.text.download.base.extract import DocumentExtractor, DocumentExtractStage
from gristmill.stages.text.download.base.iterator import DocumentIterateExtractStage, DocumentIterator
from gristmill.stages.text.download.base.url_generation import URLGenerationStage, URLGenerator
from gristmill.tasks.base import EmptyTask
from gristmill.tasks.document import DocumentBatch


class DocumentDownloadExtractStage(CompositeStage[EmptyTask, DocumentBatch]):
    """From URLs to documents: lists them, downloads each, reads its records and extracts documents.

    The first stage of a pipeline. Every URL is a partition: downloaded, read and committed separately, so that an
    interrupted run resumes with the remaining URLs.

    Args:
        url_generator: Lists the URLs.
        downloader: Downloads one file.
        iterator: Reads the records of a file.
        extractor: Turns a record into a document; by default the records are the documents.
        url_limit: Download only the first URLs.
        record_limit: Read at most this many records of each file.
        add_filename_column: Add the name of its file to every document, in the column `file_name` or the one named
            here.
        extractor_max_calls_per_worker: Replace a worker after this many calls, on executors that support it.
    """

    name = "download_extract"

    def __init__(
        self,
        url_generator: URLGenerator,
        downloader: DocumentDownloader,
        iterator: DocumentIterator,
        extractor: DocumentExtractor | None = None,
        url_limit: int | None = None,
        record_limit: int | None = None,
        add_filename_column: bool | str = True,
        extractor_max_calls_per_worker: int | None = None,
    ) -> None:
        self.url_generator = url_generator
        self.downloader = downloader
        self.iterator = iterator
        self.extractor = extractor
        self.url_limit = url_limit
        self.record_limit = record_limit
        self.add_filename_column = add_filename_column
        self.extractor_max_calls_per_worker = extractor_max_calls_per_worker

    def inputs(self) -> Spec:
        return [], []

    def outputs(self) -> Spec:
        return self.decompose()[-1].outputs()

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        source = URLGenerationStage(self.url_generator, self.url_limit)
        # Extraction is a separate stage, so that a record that crashes or hangs its extractor is found and quarantined.
        reader = DocumentIterateExtractStage(
            self.iterator,
            None,
            self.record_limit,
            self.add_filename_column,
            None if self.extractor else self.extractor_max_calls_per_worker,
        )
        source.record_columns = reader.record_columns()
        stages: list[ProcessingStage[Any, Any]] = [source, DocumentDownloadStage(self.downloader), reader]
        if self.extractor is not None:
            carried = () if reader.file_name_field is None else (reader.file_name_field,)
            stages.append(
                DocumentExtractStage(self.extractor, carried, max_calls_per_worker=self.extractor_max_calls_per_worker)
            )
        return stages
