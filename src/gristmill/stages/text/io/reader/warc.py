"""Reads web archives: WARC, WET and ARC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow.compute as pc

from gristmill.errors import UsageError
from gristmill.figures import parse_size
from gristmill.ledger.record.trail import DROPPED, Decisions
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.source_sink import field_names
from gristmill.stages.text.io.reader.partitioning import Paths
from gristmill.stages.text.io.reader.rows import RowReader, RowReaderStage, one_of
from gristmill.storage.formats import Format
from gristmill.tasks.columns import one_chunk
from gristmill.tasks.document import DocumentBatch

_TYPE, _BODIES = "record_type", ("html", "text")


class WarcReader(RowReader):
    """Reads the pages of WARC, WET and ARC files, uncompressed or compressed with gzip or Zstandard.

    Columns are `id` (the WARC-Record-ID), `url`, `date`, `record_type`, `status`, `content_type`, `charset`,
    `language`, `digest`, `truncated`, `file_name`, `offset` and `length` (the range of the stored file), and `html`:
    the bytes of the page, with chunked encoding and compression removed. Records of WET files have `text` instead.
    `HtmlExtractor` extracts text from `html`.

    A page whose media type is not in `media_types` is dropped with the reason `media_type`, a revisit (the crawler had
    seen the same page before) with `revisit`. Requests, metadata and other records that are not pages do not count as
    documents; the reader counts them as metrics (`skipped_request` and so on). Damaged records are quarantined
    individually, and reading continues with the next one.

    Args:
        file_paths: A file, folder, glob or URL, or a list of these.
        record_types: Record types that are documents; a `revisit` has no body.
        media_types: Pages to keep, by their declared or identified media type; an empty list keeps all.
        max_body_bytes: Larger pages are quarantined before they use memory.
        **options: See `RowReader`.

    Example:
        >>> pipeline.add_stage(WarcReader("crawl/")).add_stage(HtmlExtractor())
    """

    name = "warc_reader"
    format: ClassVar[Format] = "warc"

    def __init__(
        self,
        file_paths: Paths,
        record_types: Sequence[str] | None = None,
        media_types: Sequence[str] | None = None,
        max_body_bytes: int | str | None = None,
        **options: Any,
    ) -> None:
        from gristmill.storage.row_formats.warc_rows import RECORD_TYPES

        for kind in field_names(record_types) or ():
            one_of("WarcReader", "record_types", kind, RECORD_TYPES)
        if any("/" not in kind for kind in field_names(media_types) or ()):
            raise UsageError(f"WarcReader(media_types={media_types!r}): must be media types such as 'text/html'.")
        self.record_types = record_types
        self.media_types = media_types
        self.max_body_bytes = max_body_bytes
        super().__init__(file_paths, **options)

    def options(self) -> dict[str, Any]:
        size = self.max_body_bytes
        return {
            "record_types": None if self.record_types is None else list(self.record_types),
            "media_types": None if self.media_types is None else list(self.media_types),
            "max_body_bytes": None if size is None else parse_size(size, name="max_body_bytes"),
        }

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        source, reader = super().decompose()
        assert isinstance(reader, RowReaderStage)
        if reader.fields is not None:
            reader.fields = tuple(dict.fromkeys((*reader.fields, _TYPE, *_BODIES)))
        return [source, reader, WarcPages(self.record_types, self.fields)]


class WarcPages(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Drops records that are not pages of the wanted type, each with its reason; the second part of `WarcReader`.

    Args:
        record_types: Record types that are documents.
        fields: Columns to keep; all by default.
    """

    name = "warc_pages"
    notes_changes = True
    fork_safe = True

    def __init__(self, record_types: Sequence[str] | None = None, fields: Sequence[str] | None = None) -> None:
        self.record_types = None if record_types is None else list(record_types)
        self.fields = field_names(fields)

    def inputs(self) -> Spec:
        return ["data"], []

    def outputs(self) -> Spec:
        return ["data"], list(self.fields or [])

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        """The batch without revisits and without pages of other media types."""
        if batch.num_items:
            revisits = np.asarray(pc.equal(one_chunk(batch.column(_TYPE)), "revisit"))
            bodies = [batch.column(name) for name in _BODIES if name in batch.get_columns()]
            others = ~np.any([np.asarray(pc.is_valid(body)) for body in bodies], axis=0) & ~revisits
            if "revisit" in (self.record_types or ()):
                revisits[:] = False
            decisions = [
                Decisions("", DROPPED, reason, batch.rows[mask])
                for reason, mask in (("revisit", revisits), ("media_type", others))
                if mask.any()
            ]
            batch = batch.drop_decided(revisits | others, decisions)
        return batch if self.fields is None else batch.select(self.fields)
