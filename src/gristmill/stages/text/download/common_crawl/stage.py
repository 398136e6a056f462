"""Downloads Common Crawl snapshots and extracts documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from gristmill.errors import UsageError
from gristmill.figures import parse_size
from gristmill.stages.text.download.base.extract import DocumentExtractor
from gristmill.stages.text.download.base.iterator import DocumentIterator
from gristmill.stages.text.download.base.stage import DocumentDownloadExtractStage
from gristmill.stages.text.download.common_crawl.download import CommonCrawlWARCDownloader
from gristmill.stages.text.download.common_crawl.url_generation import (
    DATA_PREFIX,
    INDEX_PREFIX,
    BaseCommonCrawlUrlGenerator,
    MainCommonCrawlUrlGenerator,
    NewsCommonCrawlUrlGenerator,
)

CrawlType = Literal["main", "news"]


class CommonCrawlDownloadExtractStage(DocumentDownloadExtractStage):
    """Downloads snapshots of Common Crawl and extracts the text of their pages. The first stage of a pipeline.

    Args:
        start_snapshot: The first snapshot: `2024-10` (year and week) of the main crawl, `2024-03` (year and month) of
            the news crawl.
        end_snapshot: The last snapshot, inclusive.
        download_dir: Folder for downloads.
        crawl_type: `main` or `news`.
        html_extraction: The algorithm that extracts the text of a page; see `CommonCrawlHTMLExtractor`.
        html_extraction_kwargs: Its parameters, if it is passed by name.
        stop_lists: Stop words by language; see `CommonCrawlHTMLExtractor`.
        use_aws_to_download: Download from S3 instead of HTTPS.
        verbose: Log every download.
        url_limit: Download only the first files.
        record_limit: Read at most this many pages of each file.
        add_filename_column: Add the name of its file to every document, in the column `file_name` or the one named
            here.
        extractor_max_calls_per_worker: Replace a worker after this many calls, on executors that support it.
        keep_downloads: Whether to keep files in `download_dir` after reading.
        max_bytes_per_second: Bandwidth limit of all downloads of a machine together, such as "20MB".
        data_prefix: Base URL of the files.
        index_prefix: Base URL of the list of snapshots.

    Example:
        >>> stage = CommonCrawlDownloadExtractStage("2024-10", "2024-10", "downloads/", url_limit=2)
    """

    name = "common_crawl_download_extract"

    def __init__(
        self,
        start_snapshot: str,
        end_snapshot: str,
        download_dir: str,
        crawl_type: CrawlType = "main",
        html_extraction: Any = None,
        html_extraction_kwargs: Mapping[str, Any] | None = None,
        stop_lists: Mapping[str, frozenset[str]] | None = None,
        use_aws_to_download: bool = False,
        verbose: bool = False,
        url_limit: int | None = None,
        record_limit: int | None = None,
        add_filename_column: bool | str = True,
        extractor_max_calls_per_worker: int | None = None,
        *,
        keep_downloads: bool = True,
        max_bytes_per_second: int | str | None = None,
        data_prefix: str = DATA_PREFIX,
        index_prefix: str = INDEX_PREFIX,
    ) -> None:
        downloader = CommonCrawlWARCDownloader(download_dir, use_aws_to_download, verbose)
        downloader.keep_downloads = keep_downloads
        if max_bytes_per_second is not None:
            downloader.http.max_bytes_per_second = parse_size(max_bytes_per_second, name="max_bytes_per_second")
        iterator, extractor = _parts(html_extraction, html_extraction_kwargs, stop_lists)
        super().__init__(
            url_generator(start_snapshot, end_snapshot, crawl_type, url_limit, data_prefix, index_prefix),
            downloader,
            iterator,
            extractor,
            url_limit,
            record_limit,
            add_filename_column,
            extractor_max_calls_per_worker,
        )


def url_generator(
    start_snapshot: str,
    end_snapshot: str,
    crawl_type: CrawlType = "main",
    limit: int | None = None,
    data_prefix: str = DATA_PREFIX,
    index_prefix: str = INDEX_PREFIX,
) -> BaseCommonCrawlUrlGenerator:
    """The generator that lists the files of snapshots of a crawl.

    Raises:
        UsageError: There is no such crawl, or a snapshot has the wrong form.
    """
    if crawl_type == "main":
        return MainCommonCrawlUrlGenerator(start_snapshot, end_snapshot, data_prefix, limit, index_prefix)
    if crawl_type == "news":
        return NewsCommonCrawlUrlGenerator(start_snapshot, end_snapshot, data_prefix, limit)
    raise UsageError(f"crawl_type={crawl_type!r}: must be 'main' or 'news'.", value=crawl_type)


def _parts(
    algorithm: Any, algorithm_kwargs: Mapping[str, Any] | None, stop_lists: Mapping[str, frozenset[str]] | None
) -> tuple[DocumentIterator, DocumentExtractor]:
    # Here, because they need libraries that a list of URLs does not.
    from gristmill.stages.text.download.common_crawl.extract import CommonCrawlHTMLExtractor
    from gristmill.stages.text.download.common_crawl.warc_iterator import CommonCrawlWarcIterator

    return CommonCrawlWarcIterator(), CommonCrawlHTMLExtractor(algorithm, algorithm_kwargs, stop_lists)
