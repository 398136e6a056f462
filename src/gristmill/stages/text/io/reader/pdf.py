"""Reads PDF files: a reader reads their bytes, and a separate stage extracts the text.

PDFium is a C++ library, and a file may crash or hang it. Inside a stage, the engine finds the one document that does,
and quarantines it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, optional_module, require_module
from gristmill.execution.failures import quarantined_row
from gristmill.figures import format_size, parse_size
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader
from gristmill.storage.formats import Format
from gristmill.tasks.document import DocumentBatch

MAX_PDF_BYTES = 256 << 20
_SHOWN_BYTES = 1 << 16
_SIGNS = {0: None, 0xFFFE: None}
"""PDFium's mark for a hyphen at the end of a line, whose word it has joined; and zeros, which are not text."""
_PASSWORD_NEEDED = 4
"""PDFium's error code."""


class PdfReader(RowReader):
    """Reads PDF files, one document per file: the text of its pages, separated by blank lines.

    Columns are `text`, `pages` (their number), `file_name` and `id`. Files that are encrypted, broken, too large or too
    slow are quarantined; those without any text, such as scans, are dropped (`no_text`).

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        max_pages: Maximum number of pages to read per file.
        max_file_bytes: Larger files are quarantined.
        time_limit_s: Maximum time per file; slower files are quarantined. Needs a worker process.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(PdfReader("reports/", time_limit_s=20))
    """

    name = "pdf_reader"
    format: ClassVar[Format] = "pdf"

    def __init__(
        self,
        file_paths: Paths,
        max_pages: int | None = None,
        max_file_bytes: int | str = MAX_PDF_BYTES,
        time_limit_s: float | None = 60.0,
        **options: Any,
    ) -> None:
        self.max_pages = max_pages
        self.max_file_bytes = max_file_bytes
        self.time_limit_s = time_limit_s
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        return {"column": "pdf"}

    def outputs(self) -> Spec:
        return self.decompose()[-1].outputs()

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        wanted, self.fields = self.fields, None  # the columns of the documents, not of the files
        try:
            files = super().decompose()
        finally:
            self.fields = wanted
        text = PdfExtractor(self.max_pages, self.max_file_bytes, fields=wanted)
        text.time_limit_s = self.time_limit_s
        return [*files, text]


class PdfExtractor(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Extracts text from PDF files: replaces their bytes by the text of their pages.

    Args:
        max_pages: Maximum number of pages to read per file.
        max_file_bytes: Larger files are quarantined (`record_too_large`).
        pdf_field: Column that holds the files; it is removed.
        fields: Columns to keep; all by default.

    Example:
        >>> pipeline.add_stage(PdfExtractor(max_pages=100))
    """

    name = "pdf_extractor"
    notes_changes = True

    def __init__(
        self,
        max_pages: int | None = None,
        max_file_bytes: int | str = MAX_PDF_BYTES,
        *,
        pdf_field: str = "pdf",
        fields: Any = None,
    ) -> None:
        if max_pages is not None and (isinstance(max_pages, bool) or not isinstance(max_pages, int) or max_pages < 1):
            raise UsageError(f"max_pages={max_pages!r}: must be a whole number, at least 1.", value=max_pages)
        parse_size(max_file_bytes, name="max_file_bytes")
        self.max_pages = max_pages
        self.max_file_bytes = max_file_bytes
        self.pdf_field = pdf_field
        self.fields = None if fields is None else list(fields)

    def check_environment(self) -> None:
        """Raise if the library is not installed."""
        require_module("pypdfium2", "PdfReader")

    def inputs(self) -> Spec:
        return ["data"], [self.pdf_field]

    def outputs(self) -> Spec:
        return ["data"], ["text", "pages"] if self.fields is None else self.fields

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with the text of its files, without those that have none."""
        kept: list[int] = []
        texts: list[str] = []
        pages: list[int] = []
        empty = np.zeros(batch.num_items, bool)
        for row, content in enumerate(batch.column(self.pdf_field).to_pylist()):
            try:
                text, count = self._text(content or b"")
            except _BrokenPdfError as broken:
                self._set_aside(batch, row, content or b"", *broken.args)
                continue
            if not text:
                empty[row] = True
                continue
            kept.append(row)
            texts.append(text)
            pages.append(count)
        if empty.any():
            batch.drop(empty, reason="no_text")
        result = batch.take(np.array(kept, np.int64)).without([self.pdf_field])
        result = result.with_column("text", pa.array(texts, pa.large_string()))
        result = result.with_column("pages", pa.array(pages, pa.int64()))
        return result if self.fields is None else result.select(self.fields)

    def _text(self, content: bytes) -> tuple[str, int]:
        pdfium = optional_module("pypdfium2", "PdfReader")
        most = parse_size(self.max_file_bytes)
        if len(content) > most:
            told = f"the file has {format_size(len(content))}; max_file_bytes allows {format_size(most)}"
            raise _BrokenPdfError("record_too_large", told)
        try:
            document = pdfium.PdfDocument(content)
        except pdfium.PdfiumError as error:
            if getattr(error, "err_code", None) == _PASSWORD_NEEDED or "assword" in str(error):
                raise _BrokenPdfError("encrypted_pdf", "the file needs a password") from error
            raise _BrokenPdfError("corrupt_pdf", f"PDFium cannot open the file: {error}") from error
        try:
            texts = []
            for number in range(min(len(document), self.max_pages or len(document))):
                page = document[number]
                found = page.get_textpage()
                texts.append(found.get_text_range().translate(_SIGNS).replace("\r\n", "\n").strip())
                found.close()
                page.close()
            # Halves of surrogate pairs have no bytes in UTF-8.
            text = "\n\n".join(filter(None, texts)).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            return text, len(document)
        except pdfium.PdfiumError as error:
            raise _BrokenPdfError("corrupt_pdf", f"page {len(texts) + 1} cannot be read: {error}") from error
        finally:
            document.close()

    def _set_aside(self, batch: DocumentBatch, row: int, content: bytes, cause: str, detail: str) -> None:
        """Quarantine a file, keeping only the beginning of a large one."""
        one = batch.slice(row, 1)
        one = one.with_column(self.pdf_field, pa.array([content[:_SHOWN_BYTES]], pa.large_binary()))
        batch.note_quarantine(quarantined_row(one, 0, stage=self.name, cause=cause, detail=detail))


class _BrokenPdfError(Exception):
    """A file without extractable text: cause and detail."""
