"""Finding input files in fsspec stores."""

from __future__ import annotations

import glob
from dataclasses import replace
from operator import attrgetter
from typing import Any, Self

from gristmill.errors import InputPermissionError, UsageError
from gristmill.storage.files import (
    Found,
    Reason,
    StorageOptions,
    filesystem,
    pattern_root,
    skip_reason,
    skipped_below,
    store_errors,
)
from gristmill.storage.formats import has_extension
from gristmill.storage.missing_input import missing_error

_STAMP_KEYS = ("ETag", "etag", "e_tag", "md5Hash", "checksum", "crc32c", "content_md5", "generation")
_TIME_KEYS = ("LastModified", "last_modified", "updated", "mtime", "created")


class StoreFile:
    """A file in a store, open for reading; errors of the store's library name the file."""

    def __init__(self, url: str, storage_options: StorageOptions = None) -> None:
        self._url = url
        with store_errors(url):
            fs, inner = filesystem(url, storage_options)
            self._file = fs.open(inner, "rb")

    def read(self, count: int = -1) -> bytes:
        """The next bytes; all remaining ones if negative."""
        with store_errors(self._url):
            found: bytes = self._file.read(count)
            return found

    def readinto(self, target: Any) -> int:
        """Fill `target` with the next bytes, and return their number."""
        with store_errors(self._url):
            return int(self._file.readinto(target))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()


def remote_matches(url: str, allowed: tuple[str, ...], storage_options: StorageOptions) -> list[Found]:
    """The files that a URL names in its store: a file, the files of a folder, or those that match a pattern."""
    try:
        with store_errors(url):
            fs, inner = filesystem(url, storage_options)
            return _remote_search(fs, url, inner, allowed)
    except PermissionError as error:
        raise InputPermissionError(
            f"The input {url!r} is not readable: {error}. Check the credentials in storage_options.", path=url
        ) from error
    except ValueError as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"The input {url!r} cannot be opened: {error}", path=url) from error


def _remote_search(fs: Any, url: str, inner: str, allowed: tuple[str, ...]) -> list[Found]:
    inner = inner.rstrip("/")
    try:
        info = fs.info(inner)
    except FileNotFoundError:
        info = None
    matches: list[Found] = []
    if info is not None and info["type"] == "file":
        matches = [_remote_file(fs, inner, info, inner.rpartition("/")[0])]
    elif info is not None and info["type"] == "directory":
        matches = _remote_walk(fs, inner, inner, allowed)
    if not matches and glob.has_magic(inner):
        root = pattern_root(inner)
        for name, details in fs.glob(inner, detail=True).items():
            if details["type"] != "directory":
                reason = skipped_below(name, root, inner)
                matches.append(_remote_file(fs, name, details, root, reason, allowed))
            elif not inner.endswith("**"):
                reason = skipped_below(f"{name.rstrip('/')}/", root, inner)
                matches += _remote_walk(fs, name.rstrip("/"), root, allowed, reason)
    if all(map(attrgetter("reason"), matches)):
        raise missing_error(url, inner, allowed, {item.path: item.reason for item in matches}, fs=fs)
    return matches


def _remote_walk(
    fs: Any, folder: str, root: str, allowed: tuple[str, ...], reason: Reason | None = None
) -> list[Found]:
    """The files of a folder, with one entry for each subfolder that is not searched (with `reason`, for all files)."""
    found: dict[str, Found] = {}
    for name, details in fs.find(folder, detail=True).items():
        item = _remote_file(fs, name, details, root, reason or skipped_below(name, folder), allowed)
        below = name[len(folder) :].strip("/").split("/")
        folders = (at for at, part in enumerate(below[:-1], 1) if skip_reason(part, folder=True))
        depth = 0 if reason else next(folders, None)
        if depth is not None:
            inner = "/".join([folder, *below[:depth], ""])
            count = found[inner].files + 1 if inner in found else 1
            item = replace(item, inner=inner, path=fs.unstrip_protocol(inner), files=count)
        found[item.inner] = item
    return list(found.values())


def _remote_file(
    fs: Any,
    inner: str,
    info: dict[str, Any],
    root: str,
    reason: Reason | None = None,
    allowed: tuple[str, ...] = ("",),
) -> Found:
    protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    if reason is not None or not has_extension(inner, allowed):
        return Found(protocol, root, inner, fs.unstrip_protocol(inner), reason=reason or "extension")
    size = info.get("size")
    stamp = next((str(info[key]) for key in _STAMP_KEYS if info.get(key)), None)
    if stamp is None:
        stamp = next((str(info[key]) for key in _TIME_KEYS if info.get(key)), None) or str(fs.ukey(inner))
    return Found(protocol, root, inner, fs.unstrip_protocol(inner), -1 if size is None else int(size), stamp.strip('"'))
