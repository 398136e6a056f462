"""Paths and URLs: which are local, and the fsspec filesystem behind the others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

StorageOptions = Mapping[str, Any] | None

_LOCAL_PREFIXES = ("file://", "local://")


def is_local(path: str) -> bool:
    """Whether `path` lies on this machine: no scheme at all, or ``file://``."""
    return "://" not in path or path.startswith(_LOCAL_PREFIXES)


def local_path(path: str | os.PathLike[str]) -> str:
    """The absolute path on this machine that `path` (plain or ``file://``) names, with ``~`` expanded."""
    text = os.fspath(path)
    for prefix in _LOCAL_PREFIXES:
        if text.startswith(prefix):
            text = text[len(prefix) :]
            break
    return os.path.abspath(os.path.expanduser(text))


def filesystem(path: str, storage_options: StorageOptions = None) -> tuple[Any, str]:
    """The fsspec filesystem of `path` and the path inside it."""
    from fsspec.core import url_to_fs

    fs, inner = url_to_fs(path, **dict(storage_options or {}))
    return fs, inner
