"""Downloads arXiv's papers and extracts their text."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.stages.text.download.arxiv.download import ArxivDownloader
from gristmill.stages.text.download.arxiv.extract import ArxivExtractor
from gristmill.stages.text.download.arxiv.iterator import ArxivIterator
from gristmill.stages.text.download.arxiv.local import LocalArchives, LocalFiles
from gristmill.stages.text.download.arxiv.url_generation import ArxivUrlGenerator
from gristmill.stages.text.download.base.stage import DocumentDownloadExtractStage


class ArxivDownloadExtractStage(DocumentDownloadExtractStage):
    """Downloads the sources of arXiv's papers and extracts their text. The first stage of a pipeline.

    Args:
        download_dir: Folder for downloads.
        url_limit: Download only the first files.
        record_limit: Read at most this many papers of each file.
        add_filename_column: Add the name of its file to every document, in the column `file_name` or the one named
            here.
        log_frequency: Log progress after this many papers of a file.
        verbose: Log every download.
        archives: Read these local tar files (a file, folder, glob, or a list) instead of downloading.

    Example:
        >>> stage = ArxivDownloadExtractStage("downloads/", url_limit=2)
        >>> stage = ArxivDownloadExtractStage(archives="mirror/src/")
    """

    name = "arxiv_download_extract"

    def __init__(
        self,
        download_dir: str = "./arxiv_downloads",
        url_limit: int | None = None,
        record_limit: int | None = None,
        add_filename_column: bool | str = True,
        log_frequency: int = 1000,
        verbose: bool = False,
        *,
        archives: str | Sequence[str] | None = None,
    ) -> None:
        self.download_dir = download_dir
        self.log_frequency = log_frequency
        self.verbose = verbose
        self.archives = archives
        super().__init__(
            ArxivUrlGenerator() if archives is None else LocalArchives(archives),
            ArxivDownloader(download_dir, verbose) if archives is None else LocalFiles(download_dir),
            ArxivIterator(log_frequency),
            ArxivExtractor(),
            url_limit,
            record_limit,
            add_filename_column,
        )
