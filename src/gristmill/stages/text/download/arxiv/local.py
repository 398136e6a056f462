"""Local arXiv archives, instead of downloads."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.stages.text.download.base.download import DocumentDownloader
from gristmill.stages.text.download.base.url_generation import URLGenerator
from gristmill.storage.files import list_files, local_path


class LocalArchives(URLGenerator):
    """Lists the tar files of folders.

    Args:
        paths: A file, folder or glob, or a list of these.
    """

    def __init__(self, paths: str | Sequence[str]) -> None:
        self.paths = paths if isinstance(paths, str) else list(paths)

    def generate_urls(self) -> list[str]:
        """The files, sorted by name."""
        return [f"file://{file.path}" for file in list_files(self.paths, extensions=[".tar"])]


class LocalFiles(DocumentDownloader):
    """Returns local files; nothing is copied or removed."""

    def download(self, url: str) -> str:
        """The path of the file."""
        return local_path(url)
