"""The pages of a WARC file, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from gristmill.stages.text.download.base.iterator import DocumentIterator
from gristmill.storage.partitions import FileRange
from gristmill.storage.row_formats import Broken, reading_of, rows_of

# Every response: what is no page is for the extractor to drop, where it is accounted for.
_READING = reading_of("warc", {"record_types": ["response"], "media_types": []})


class CommonCrawlWarcIterator(DocumentIterator):
    """Gives the responses of a WARC or ARC file: `url`, `warc_id`, `source_id` (the file's name) and `content` (bytes).

    Chunks and compression of the body are undone. What is damaged is given as `Broken`, which the stage that iterates
    quarantines. `WarcReader` reads the same files faster, with more columns, as the beginning of a pipeline.

    Args:
        storage_options: Options of the file system, for URLs.

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
