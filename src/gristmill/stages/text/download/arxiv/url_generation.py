"""Lists the source files of arXiv's papers."""

from __future__ import annotations

import re
from typing import Any

from gristmill.errors import DownloadError
from gristmill.stages.text.download.base.url_generation import URLGenerator
from gristmill.storage.files import store_errors
from gristmill.storage.s3_files import s3_filesystem

BUCKET = "arxiv"
_NAME = re.compile(r"arXiv_src_(\d{4})_(\d+)\.tar")


class ArxivUrlGenerator(URLGenerator):
    """Lists the tar files with the sources of all papers, oldest first, from arXiv's S3 bucket.

    The requester pays for the transfer (about 0.09 USD per GB outside us-east-1), so AWS credentials are needed.
    """

    def generate_urls(self) -> list[str]:
        """The URLs, `s3://arxiv/src/…`.

        Raises:
            DownloadError: The credentials are not sufficient.
            StoreError: S3 is unreachable, or there are no credentials.
        """
        fs: Any = s3_filesystem(requester_pays=True)
        place = f"s3://{BUCKET}/src"
        try:
            with store_errors(place):
                names = fs.ls(place, detail=False)
        except (FileNotFoundError, PermissionError) as error:
            raise DownloadError(
                f"{place} cannot be listed: {error}. It needs AWS credentials, whose account pays for the download "
                "(AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile).",
                url=place,
            ) from error
        found = [(_order(name), f"s3://{name}") for name in names if _NAME.search(name)]
        return [url for _, url in sorted(found)]


def _order(name: str) -> tuple[int, int, int]:
    """The month of the papers, `9901` before `0001`, and the number of the file."""
    found = _NAME.search(name)
    assert found is not None
    year, month = int(found[1][:2]), int(found[1][2:])
    return (1900 if year >= 91 else 2000) + year, month, int(found[2])
