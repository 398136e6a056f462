"""Files of S3 buckets, downloaded piece by piece so that an interruption costs one piece."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

from gristmill.errors import DownloadError, DownloadMissingError
from gristmill.storage.files import filesystem, store_errors
from gristmill.storage.http_files import STATE_SUFFIX, Bandwidth

PIECE_BYTES = 16 << 20


def s3_filesystem(*, requester_pays: bool = False, anonymous: bool = False) -> Any:
    """S3 with the credentials of the environment, or anonymously.

    Raises:
        MissingExtraError: s3fs is not installed.
    """
    fs, _ = filesystem("s3://bucket/key", {"requester_pays": requester_pays, "anon": anonymous})
    return fs


def download_s3(fs: Any, url: str, path: str, *, bandwidth: Bandwidth | None = None) -> int:
    """Download `url` (`s3://…`) to `path`, which may hold its beginning from an earlier attempt; returns its length.

    Raises:
        DownloadError: It cannot be downloaded, or changed meanwhile.
        StoreError: The store cannot be reached, or does not accept the credentials.
    """
    about = facts_of(fs, url)
    size, state = int(about["size"]), {"url": url, "validator": str(about.get("ETag", "")), "total": int(about["size"])}
    have = os.path.getsize(path) if os.path.exists(path) and _state(path) == state else 0
    if not have or have > size:
        have = 0
        with open(path + STATE_SUFFIX, "w", encoding="utf-8") as file:
            json.dump(state, file)
    bandwidth = bandwidth or Bandwidth(None)
    most = bandwidth.piece(PIECE_BYTES)
    with open(path, "ab" if have else "wb") as file, store_errors(url):
        while have < size:
            piece = fs.cat_file(url, start=have, end=min(size, have + most))
            if not piece:
                raise DownloadError(f"{url} ended after {have} of {size} bytes. Run the same command again.", url=url)
            file.write(piece)
            have += len(piece)
            bandwidth.wait(len(piece))
        file.flush()
        os.fsync(file.fileno())
    fs.invalidate_cache()
    if str(facts_of(fs, url).get("ETag", "")) != state["validator"]:
        os.unlink(path)
        raise DownloadError(f"{url} was replaced while it was downloaded. Run the same command again.", url=url)
    with suppress(FileNotFoundError):
        os.unlink(path + STATE_SUFFIX)
    return have


def facts_of(fs: Any, url: str) -> dict[str, Any]:
    """Size and ETag of an object.

    Raises:
        DownloadMissingError: It does not exist.
        DownloadError: It is not readable.
    """
    try:
        with store_errors(url):
            found: dict[str, Any] = fs.info(url)
    except FileNotFoundError as error:
        raise DownloadMissingError(f"{url} does not exist. Check the address.", url=url) from error
    except PermissionError as error:
        raise DownloadError(
            f"{url} is not readable with the credentials of this environment: {error}. Buckets such as Common Crawl's "
            "and arXiv's need those of an AWS account (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile).",
            url=url,
        ) from error
    return found


def _state(path: str) -> Any:
    try:
        with open(path + STATE_SUFFIX, "rb") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None
