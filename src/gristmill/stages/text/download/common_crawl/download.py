"""Files of Common Crawl: whole, or record by record from an index."""

from __future__ import annotations

import gzip
import os
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow as pa

from gristmill.errors import DownloadError, UsageError, require_module
from gristmill.stages.base import ProcessingStage, Spec
from gristmill.stages.text.download.base.download import DocumentDownloader
from gristmill.stages.text.download.common_crawl.url_generation import DATA_PREFIX
from gristmill.storage.http_files import Bandwidth, HttpFiles
from gristmill.storage.s3_files import download_s3, facts_of, s3_filesystem
from gristmill.tasks.document import DocumentBatch

BUCKET = "commoncrawl"


class CommonCrawlWARCDownloader(DocumentDownloader):
    """Downloads files of Common Crawl over HTTPS, or from its S3 bucket.

    Args:
        download_dir: Folder for downloads.
        use_aws_to_download: Read from the bucket `commoncrawl` in S3, with the credentials of the environment; faster
            from within AWS (us-east-1), and requires an AWS account.
        verbose: Log every download.
    """

    def __init__(self, download_dir: str, use_aws_to_download: bool = False, verbose: bool = False) -> None:
        super().__init__(download_dir, verbose)
        self.use_aws_to_download = use_aws_to_download

    def check_environment(self) -> None:
        super().check_environment()
        if self.use_aws_to_download:
            require_module(
                "s3fs", "use_aws_to_download (--aws)", instead="Without it, files are downloaded over HTTPS."
            )

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        if not self.use_aws_to_download:
            return super()._download_to_path(url, path)
        bandwidth = Bandwidth(self.http.max_bytes_per_second, os.path.join(self._locks(), "bandwidth"))
        download_s3(s3_filesystem(), s3_url(url), path, bandwidth=bandwidth)
        return True, None

    def _is_complete(self, url: str, path: str) -> bool:
        if not self.use_aws_to_download:
            return super()._is_complete(url, path)
        return os.path.getsize(path) == int(facts_of(s3_filesystem(), s3_url(url))["size"])


def s3_url(url: str) -> str:
    """The S3 location of a Common Crawl URL.

    Example:
        >>> s3_url("https://data.commoncrawl.org/crawl-data/CC-MAIN-2024-10/warc.paths.gz")
        's3://commoncrawl/crawl-data/CC-MAIN-2024-10/warc.paths.gz'
    """
    return url if url.startswith("s3://") else f"s3://{BUCKET}/{urlsplit(url).path.lstrip('/')}"


class CommonCrawlWARCReader(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Fetches the pages listed in a Common Crawl index, each by the position of its record.

    Args:
        warc_filename_col: Column that holds the name of the file.
        warc_record_offset_col: Column that holds the first byte of the record.
        warc_record_length_col: Column that holds its length.
        binary_content_col: Column for the content of the page.
        drop_failed: If True, drop pages that cannot be fetched, with the reason `not_fetched`; otherwise their content
            is null.
        max_workers: Number of pages to fetch at the same time.
        timeout: Maximum seconds without a response.
        max_retries: Number of retries per page.
        use_s3: Read from S3 instead of HTTPS; None does so if `s3_bucket` is set.
        s3_bucket: The bucket.
        s3_key_prefix: Prefix of the file names in the bucket.
        data_prefix: Base URL of the files.
    """

    name = "common_crawl_warc_reader"
    notes_changes = True

    def __init__(
        self,
        warc_filename_col: str = "warc_filename",
        warc_record_offset_col: str = "warc_record_offset",
        warc_record_length_col: str = "warc_record_length",
        binary_content_col: str = "binary_content",
        drop_failed: bool = True,
        max_workers: int = 16,
        timeout: float = 30,
        max_retries: int = 3,
        use_s3: bool | None = None,
        s3_bucket: str | None = None,
        s3_key_prefix: str | None = None,
        *,
        data_prefix: str = DATA_PREFIX,
    ) -> None:
        for name, value, least in (("max_workers", max_workers, 1), ("max_retries", max_retries, 0)):
            if value < least:
                raise UsageError(f"CommonCrawlWARCReader({name}={value!r}): must be at least {least}.", value=value)
        self.warc_filename_col = warc_filename_col
        self.warc_record_offset_col = warc_record_offset_col
        self.warc_record_length_col = warc_record_length_col
        self.binary_content_col = binary_content_col
        self.drop_failed = drop_failed
        self.max_workers = max_workers
        self.timeout = timeout
        self.max_retries = max_retries
        self.use_s3 = use_s3
        self.s3_bucket = s3_bucket
        self.s3_key_prefix = s3_key_prefix
        self.data_prefix = data_prefix.rstrip("/")

    def inputs(self) -> Spec:
        return ["data"], [self.warc_filename_col, self.warc_record_offset_col, self.warc_record_length_col]

    def outputs(self) -> Spec:
        return ["data"], [self.binary_content_col]

    def process(self, batch: DocumentBatch) -> DocumentBatch:
        columns = [batch.column(name).to_pylist() for name in self.inputs()[1]]
        with ThreadPoolExecutor(self.max_workers) as pool:
            contents = list(pool.map(self._fetched, *columns))
        batch = batch.with_column(self.binary_content_col, pa.array(contents, pa.large_binary()))
        if not self.drop_failed:
            return batch
        return batch.drop(np.array([content is None for content in contents], bool), reason="not_fetched")

    def _fetched(self, name: Any, offset: Any, length: Any) -> bytes | None:
        """The content of one page; None if there is none at this position."""
        try:
            place = str(name).lstrip("/"), int(offset), int(length)
        except (TypeError, ValueError):
            return None
        if not name or place[1] < 0 or place[2] < 1:
            return None
        try:
            return _content(self._record(*place))
        except DownloadError:
            return None

    def _record(self, name: str, offset: int, length: int) -> bytes:
        in_s3 = self.s3_bucket is not None if self.use_s3 is None else self.use_s3
        if in_s3:
            key = f"{self.s3_key_prefix.strip('/')}/{name}" if self.s3_key_prefix else name
            url = f"s3://{self.s3_bucket or BUCKET}/{key}"
            try:
                found: bytes = s3_filesystem().cat_file(url, start=offset, end=offset + length)
            except FileNotFoundError as error:
                raise DownloadError(f"{url} does not exist.", url=url) from error
            return found
        http = HttpFiles(attempts=self.max_retries + 1, timeout_s=self.timeout)
        return http.read_range(f"{self.data_prefix}/{name}", offset, length)


def _content(record: bytes) -> bytes | None:
    """The content of the page in a WARC record, as stored; None if these bytes are not such a record."""
    try:
        data = gzip.decompress(record) if record.startswith(b"\x1f\x8b") else record
    except (OSError, EOFError, zlib.error):
        return None
    head, _, block = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?im)^content-length:\s*(\d+)\s*$", head)
    if not head.startswith(b"WARC/") or length is None or len(block) < int(length[1]):
        return None
    block = block[: int(length[1])]
    return block.partition(b"\r\n\r\n")[2] if block.startswith(b"HTTP/") else block
