"""Downloads Wikipedia dumps and extracts documents."""

from __future__ import annotations

from gristmill.stages.text.download.base.stage import DocumentDownloadExtractStage
from gristmill.stages.text.download.wikipedia.download import WikipediaDownloader
from gristmill.stages.text.download.wikipedia.extract import WikipediaExtractor
from gristmill.stages.text.download.wikipedia.iterator import WikipediaIterator
from gristmill.stages.text.download.wikipedia.url_generation import WikipediaUrlGenerator


class WikipediaDownloadExtractStage(DocumentDownloadExtractStage):
    """Downloads a Wikipedia dump and converts its articles to text. The first stage of a pipeline.

    Columns are `text`, `id`, `title`, `url`, `language`, `source_id` and `kind`. `WikipediaReader` reads dumps that are
    already on disk.

    Args:
        language: Language code, as in the address of the Wikipedia.
        download_dir: Folder for downloads.
        dump_date: Date of the dump, such as `20240801`; None for the latest complete one.
        wikidumps_index_prefix: Base URL of the dumps: Wikimedia's server or a mirror.
        verbose: Log every download.
        url_limit: Download only the first files.
        record_limit: Read at most this many pages of each file.
        add_filename_column: Add the name of its file to every document, in the column `file_name` or the one named
            here.
        log_frequency: Log progress after this many pages.

    Example:
        >>> stage = WikipediaDownloadExtractStage("simple", "downloads/", url_limit=1)
    """

    name = "wikipedia_download_extract"

    def __init__(
        self,
        language: str = "en",
        download_dir: str = "./wikipedia_downloads",
        dump_date: str | None = None,
        wikidumps_index_prefix: str = "https://dumps.wikimedia.org",
        verbose: bool = False,
        url_limit: int | None = None,
        record_limit: int | None = None,
        add_filename_column: bool | str = True,
        log_frequency: int = 1000,
    ) -> None:
        super().__init__(
            WikipediaUrlGenerator(language, dump_date, wikidumps_index_prefix),
            WikipediaDownloader(download_dir, verbose),
            WikipediaIterator(language, log_frequency),
            WikipediaExtractor(language),
            url_limit,
            record_limit,
            add_filename_column,
        )
        self.language = language
        self.download_dir = download_dir
        self.dump_date = dump_date
        self.wikidumps_index_prefix = wikidumps_index_prefix
        self.verbose = verbose
        self.log_frequency = log_frequency
