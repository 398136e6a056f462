"""Downloads of Wikipedia's dumps."""

from __future__ import annotations

from gristmill.stages.text.download.base.download import DocumentDownloader


class WikipediaDownloader(DocumentDownloader):
    """Downloads files from Wikimedia's server, which allows two connections per address.

    Args:
        download_dir: Folder for downloads.
        verbose: Log every download.
    """

    def num_workers_per_node(self) -> int | None:
        """Two, the limit of the server."""
        return 2

    def _get_output_filename(self, url: str) -> str:
        return url.rpartition("/")[2]
