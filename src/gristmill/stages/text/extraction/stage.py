"""The stage that extracts text from web pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from gristmill.errors import UsageError, did_you_mean, is_of_environment, require_module
from gristmill.execution.failures import quarantined_row
from gristmill.figures import format_size
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.extraction.facts import FACTS
from gristmill.stages.text.extraction.page import Page, PageProblemError
from gristmill.tasks.document import DocumentBatch

Method = Literal["auto", "fast", "trafilatura", "resiliparse", "justext"]
OutputFormat = Literal["text", "markdown"]
NO_TEXT, NO_HTML = "no_main_text", "no_html"
_NEEDS = {"justext": ("justext", "lxml"), "trafilatura": ("trafilatura", "lxml"), "auto": ("trafilatura", "lxml")}
_SHOWN_BYTES = 1 << 16


class HtmlExtractor(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Extracts text from web pages: replaces their bytes by their main text and, optionally, facts about them.

    A page without main text is dropped (`no_main_text`), and so is a document that is not a page, such as a text of a
    WET file (`no_html`). A page that is too large, has more than 100,000 tags, is nested too deeply or makes a library
    fail is quarantined with the cause. Tables become rows with `|` between cells, code keeps its lines, and formulas
    become LaTeX between dollars.

    Args:
        method: `fast` (Resiliparse with our own rules), `trafilatura` (careful and slow), plain `resiliparse` or
            `justext`, or `auto`: `fast` if that is good enough, otherwise the better of `fast` and `trafilatura`.
        output_format: `text` or `markdown`.
        metadata: Additional columns: any of `title`, `date`, `author`, `language`, `links` and `license`
            (`cc-by-sa-4.0`). A mapping renames them: `{"date": "published"}`.
        html_field: Column of pages, as bytes or text; it is removed unless it is also the `text_field`.
        text_field: Column for the text.
        url_field: Column of URLs, for relative links and dates in URLs; used if present.
        charset_field: Column that holds the charset or `Content-Type` declared by the server. None uses `charset` or
            `content_type`, if present. A declaration that does not match the bytes is ignored.
        keep_html: Keep the column of pages.
        fix_encoding: Repair text that was decoded wrongly before it was served, with ftfy.
        max_page_bytes: Larger pages are quarantined (`page_too_large`).
        max_depth: Pages with deeper nesting are quarantined (`nested_too_deeply`).
        time_limit_s: Maximum time per page; slower pages are quarantined (`time limit`). Needs a worker process. None
            means 60 s on the local executor, or its own limit if that is shorter, and no limit on Ray.

    Example:
        >>> page = b"<main><h1>Mills</h1><p>A mill grinds grain between two stones, as it did long ago.</p></main>"
        >>> batch = DocumentBatch(data=pa.table({"html": [page]}))
        >>> print(HtmlExtractor("fast", output_format="markdown").process(batch).to_pyarrow()["text"][0])
        # Mills
        <BLANKLINE>
        A mill grinds grain between two stones, as it did long ago.
    """

    name = "html_extractor"
    notes_changes = True
    default_time_limit_s = 60.0

    def __init__(
        self,
        method: Method = "auto",
        *,
        output_format: OutputFormat = "text",
        metadata: Sequence[str] | Mapping[str, str] = (),
        html_field: str = "html",
        text_field: str = "text",
        url_field: str = "url",
        charset_field: str | None = None,
        keep_html: bool = False,
        fix_encoding: bool = False,
        max_page_bytes: int = 10_000_000,
        max_depth: int = 2000,
        time_limit_s: float | None = None,
    ) -> None:
        for given, known, what in (
            (method, get_args(Method), "method"),
            (output_format, get_args(OutputFormat), "output_format"),
        ):
            if given not in known:
                raise UsageError(
                    f"HtmlExtractor({what}={given!r}): must be one of "
                    f"{', '.join(known)}.{did_you_mean(str(given), known)}"
                )
        if isinstance(metadata, str):
            raise UsageError(f"HtmlExtractor(metadata={metadata!r}): must be a list, such as [{metadata!r}].")
        named = dict(metadata) if isinstance(metadata, Mapping) else {fact: fact for fact in metadata}
        for fact in named:
            if fact not in FACTS:
                raise UsageError(
                    f"HtmlExtractor(metadata=…): there is no {fact!r}; choose any of "
                    f"{', '.join(FACTS)}.{did_you_mean(str(fact), FACTS)}"
                )
        if time_limit_s is not None:
            self.time_limit_s = time_limit_s
        self.method = method
        self.output_format = output_format
        self.metadata = named
        self.html_field = html_field
        self.text_field = text_field
        self.url_field = url_field
        self.charset_field = charset_field
        self.keep_html = keep_html
        self.fix_encoding = fix_encoding
        self.max_page_bytes = max_page_bytes
        self.max_depth = max_depth

    def check_environment(self) -> None:
        """Raise if a library that the method needs is not installed."""
        for package in ("resiliparse", *_NEEDS.get(self.method, ())):
            require_module(package, f"HtmlExtractor(method={self.method!r})")
        if self.fix_encoding:
            require_module("ftfy", "HtmlExtractor(fix_encoding=True)", extra="web")

    def inputs(self) -> Spec:
        """The pages."""
        given = [] if self.charset_field is None else [self.charset_field]
        return ["data"], [self.html_field, *given]

    def outputs(self) -> Spec:
        """The text and the requested facts."""
        return ["data"], [self.text_field, *self.metadata.values()]

    def validate_input(self, batch: DocumentBatch) -> bool:
        """Whether the batch has pages, or texts in their place, as with WET files beside WARC files."""
        return self._is_text(batch) or super().validate_input(batch)

    def _is_text(self, batch: DocumentBatch) -> bool:
        return not batch.columns.has(self.html_field) and batch.columns.has(self.text_field)

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch with the text of its pages, without those that have none."""
        if self._is_text(batch):
            batch.drop(np.ones(batch.num_items, bool), reason=NO_HTML)
            return batch.take(np.zeros(0, np.int64))
        pages = batch.column(self.html_field)
        urls, charsets = self._column(batch, self.url_field), self._column(batch, *self._charset_fields())
        wanted = frozenset(self.metadata)
        kept: list[int] = []
        texts: list[str] = []
        facts: list[dict[str, Any]] = []
        no_text, no_html = np.zeros(batch.num_items, bool), ~np.asarray(pages.is_valid())
        for row, content in enumerate(pages):
            try:
                page = self._page(content.as_py(), charsets[row], urls[row])
                text = None if page is None else page.text(self.method, self.output_format)
                if page is None or not text:
                    no_text[row] = True
                    continue
                found = page.facts(wanted, text) if wanted else {}
            except Exception as error:
                if is_of_environment(error) or isinstance(error, MemoryError):
                    raise
                self._set_aside(batch, row, error)
                continue
            kept.append(row)
            texts.append(text)
            facts.append(found)
        result = batch
        replaced = [] if self.keep_html or self.html_field == self.text_field else [self.html_field]
        if replaced != batch.get_columns():
            result = result.without(replaced)  # before rows are taken, which copies the pages
            replaced = []
        for without, reason in ((no_html, NO_HTML), (no_text & ~no_html, NO_TEXT)):
            if without.any():
                result.drop(without, reason=reason)
        if len(kept) < batch.num_items:
            result = result.take(np.array(kept, np.int64))
        result = result.without(replaced)
        result = result.with_column(self.text_field, pa.array(texts, pa.large_string()))
        for fact, column in self.metadata.items():
            kind = pa.list_(pa.string()) if fact == "links" else pa.string()
            result = result.with_column(column, pa.array([one.get(fact) for one in facts], kind))
        return result

    def _page(self, content: bytes | str | None, charset: str | None, url: str | None) -> Page | None:
        """The page of a row; None if it is empty."""
        if not content:
            return None
        if len(content) > self.max_page_bytes:
            told = f"the page has {format_size(len(content))}; max_page_bytes allows {format_size(self.max_page_bytes)}"
            raise PageProblemError("page_too_large", told)
        return Page(content, charset, url, max_depth=self.max_depth, fix_encoding=self.fix_encoding)

    def _set_aside(self, batch: DocumentBatch, row: int, error: Exception) -> None:
        """Quarantine a page, keeping only the beginning of a large one."""
        cause = error.cause if isinstance(error, PageProblemError) else "extraction_failed"
        detail = str(error) if isinstance(error, PageProblemError) else f"{type(error).__name__}: {error}"
        one = batch.slice(row, 1)
        content = one.column(self.html_field)[0].as_py()
        if len(content) > _SHOWN_BYTES:
            kind = one.column(self.html_field).type
            one = one.with_column(self.html_field, pa.array([content[:_SHOWN_BYTES]], kind))
        batch.note_quarantine(quarantined_row(one, 0, stage=self.name, cause=cause, detail=detail))

    def _charset_fields(self) -> tuple[str, ...]:
        return ("charset", "content_type") if self.charset_field is None else (self.charset_field,)

    @staticmethod
    def _column(batch: DocumentBatch, *names: str) -> list[Any]:
        """The values of the first of these columns that exists; nothing if none does."""
        for name in names:
            if batch.columns.has(name):
                return list(batch.text(name).to_pylist())
        return [None] * batch.num_items
