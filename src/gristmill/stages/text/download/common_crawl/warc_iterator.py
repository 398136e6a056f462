"""The pages of a WARC file, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from gristmill.stages.text.download.base.iterator import DocumentIterator
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, reading_of, rows_of

# Every response: the extractor drops what is not a page, where it is accounted for.
_READING = reading_of("warc", {"record_types": ["response"], "media_types": []})


class CommonCrawlWarcIterator(DocumentIterator):
    """Yields the responses of a WARC or ARC file: `url`, `warc_id`, `source_id` (file name) and `content` (bytes).

    Chunked encoding and compression of the body are undone. Damaged records are yielded as `Broken`, which the
    iterating stage quarantines. As the start of a pipeline, `WarcReader` reads the same files faster, with more
    columns.

    Args:
        storage_options: File system options for URLs.

    Example:
        >>> pages = CommonCrawlWarcIterator().iterate("crawl.warc.gz")
    """

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        self.storage_options = None if storage_options is None else dict(storage_options)

    def iterate(self, file_path: str) -> Iterator[dict[str, Any] | Broken]:
        name = str(file_path).rstrip("/").rpartition("/")[2]
        part = FileRange(str(file_path), name, 0, "", 0, -1, True, _READING)
        for found in rows_of(part, storage_options=self.storage_options):
            if isinstance(found, Broken):
                yield found
            elif isinstance(found, pa.Table) and "html" in found.column_names:
                rows = found.select(["url", "id", "html", "record_type"]).to_pylist()
                for row in rows:
                    if row["record_type"] == "response":
                        warc_id = row["id"].strip("<>").removeprefix("urn:uuid:")
                        yield {"url": row["url"], "warc_id": warc_id, "source_id": name, "content": row["html"]}

    def output_columns(self) -> list[str]:
        return ["url", "warc_id", "source_id", "content"]
