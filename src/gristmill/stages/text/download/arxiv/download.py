"""Downloads of arXiv's files."""

from __future__ import annotations

import os

from gristmill.errors import require_module
from gristmill.stages.text.download.base.download import DocumentDownloader
from gristmill.storage.http_files import Bandwidth
from gristmill.storage.s3_files import download_s3, facts_of, s3_filesystem


class ArxivDownloader(DocumentDownloader):
    """Downloads files from arXiv's S3 bucket (`s3://arxiv/src/…`), charged to the AWS account in use.

    URLs that begin with `https://` are downloaded over HTTPS, for mirrors.

    Args:
        download_dir: Folder for downloads.
        verbose: Log every download.
    """

    def check_environment(self) -> None:
        super().check_environment()
        require_module("s3fs", "ArxivDownloader")

    def _get_output_filename(self, url: str) -> str:
        return url.rpartition("/")[2]

    def _download_to_path(self, url: str, path: str) -> tuple[bool, str | None]:
        if not url.startswith("s3://"):
            return super()._download_to_path(url, path)
        bandwidth = Bandwidth(self.http.max_bytes_per_second, os.path.join(self._locks(), "bandwidth"))
        download_s3(s3_filesystem(requester_pays=True), url, path, bandwidth=bandwidth)
        return True, None

    def _is_complete(self, url: str, path: str) -> bool:
        if not url.startswith("s3://"):
            return super()._is_complete(url, path)
        return os.path.getsize(path) == int(facts_of(s3_filesystem(requester_pays=True), url)["size"])
