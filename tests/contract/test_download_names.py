"""Names, parameters, their order and their defaults of downloads, as scripts of the existing system use them."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

REQUIRED = inspect.Parameter.empty
DATA = "https://data.commoncrawl.org"
SNAPSHOTS = {"start_snapshot_str": REQUIRED, "end_snapshot_str": REQUIRED, "data_prefix": DATA, "limit": None}
NAMES: dict[str, dict[str, Any]] = {
    "arxiv.download:ArxivDownloader": {"download_dir": REQUIRED, "verbose": False},
    "arxiv.url_generation:ArxivUrlGenerator": {},
    "base.download:DocumentDownloader": {"download_dir": REQUIRED, "verbose": False},
    "base.download:DocumentDownloadStage": {"downloader": REQUIRED},
    "base.iterator:DocumentIterateExtractStage": {
        "iterator": REQUIRED,
        "extractor": None,
        "record_limit": None,
        "add_filename_column": True,
        "max_calls_per_worker": None,
    },
    "base.stage:DocumentDownloadExtractStage": {
        "url_generator": REQUIRED,
        "downloader": REQUIRED,
        "iterator": REQUIRED,
        "extractor": None,
        "url_limit": None,
        "record_limit": None,
        "add_filename_column": True,
        "extractor_max_calls_per_worker": None,
    },
    "base.url_generation:URLGenerationStage": {"url_generator": REQUIRED, "limit": None},
    "common_crawl.download:CommonCrawlWARCDownloader": {
        "download_dir": REQUIRED,
        "use_aws_to_download": False,
        "verbose": False,
    },
    "common_crawl.download:CommonCrawlWARCReader": {
        "warc_filename_col": "warc_filename",
        "warc_record_offset_col": "warc_record_offset",
        "warc_record_length_col": "warc_record_length",
        "binary_content_col": "binary_content",
        "drop_failed": True,
        "max_workers": 16,
        "timeout": 30,
        "max_retries": 3,
        "use_s3": None,
        "s3_bucket": None,
        "s3_key_prefix": None,
    },
    "common_crawl.stage:CommonCrawlDownloadExtractStage": {
        "start_snapshot": REQUIRED,
        "end_snapshot": REQUIRED,
        "download_dir": REQUIRED,
        "crawl_type": "main",
        "html_extraction": None,
        "html_extraction_kwargs": None,
        "stop_lists": None,
        "use_aws_to_download": False,
        "verbose": False,
        "url_limit": None,
        "record_limit": None,
        "add_filename_column": True,
        "extractor_max_calls_per_worker": None,
    },
    "common_crawl.url_generation:BaseCommonCrawlUrlGenerator": SNAPSHOTS,
    "common_crawl.url_generation:MainCommonCrawlUrlGenerator": {
        **SNAPSHOTS,
        "index_prefix": "https://index.commoncrawl.org",
    },
    "common_crawl.url_generation:NewsCommonCrawlUrlGenerator": SNAPSHOTS,
    "wikipedia.download:WikipediaDownloader": {"download_dir": REQUIRED, "verbose": False},
    "wikipedia.url_generation:WikipediaUrlGenerator": {
        "language": "en",
        "dump_date": None,
        "wikidumps_index_prefix": "https://dumps.wikimedia.org",
    },
}
METHODS = {
    "base.download:DocumentDownloader": ["download", "num_workers_per_node"],
    "base.extract:DocumentExtractor": ["extract", "input_columns", "output_columns"],
    "base.iterator:DocumentIterator": ["iterate", "output_columns"],
    "base.url_generation:URLGenerator": ["generate_urls"],
    "common_crawl.url_generation:MainCommonCrawlUrlGenerator": [
        "generate_path_urls",
        "generate_data_urls",
        "generate_urls",
    ],
}


def found(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"gristmill.stages.text.download.{module}"), attribute)


@pytest.mark.parametrize("name", NAMES)
def test_parameters(name: str) -> None:
    parameters = inspect.signature(found(name)).parameters.values()
    given = {one.name: one.default for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD}
    assert list(given.items()) == list(NAMES[name].items())


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str) -> None:
    assert all(callable(getattr(found(name), method)) for method in METHODS[name])
