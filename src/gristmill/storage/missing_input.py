"""The error for an input path that matches nothing: what was asked, what lies there, what to type instead."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from typing import Any

from gristmill.errors import InputNotFoundError

_LISTED = 10_000
_COMPRESSED = (".gz", ".zst", ".bz2")
_READERS = {".jsonl": "JsonlReader", ".json": "JsonlReader", ".ndjson": "JsonlReader", ".parquet": "ParquetReader"}
"""What reads the files of a suffix."""


def missing_input_error(asked: str, path: str, extensions: tuple[str, ...], *, fs: Any = None) -> InputNotFoundError:
    """An error that names the path, its nearest neighbour or the folder's contents, and the fix.

    Args:
        asked: The path as the user wrote it.
        path: The same path, absolute (local) or inside its store.
        extensions: The extensions that were looked for.
        fs: The fsspec filesystem; None for local paths.
    """
    wanted = ", ".join(extensions)
    if _is_folder(path, fs):
        others = Counter(_suffix(name) or "(none)" for name in _files_below(path, fs))
        if not others:
            text = f"The input folder {asked!r} is empty (looked for {wanted}). Point file_paths at a folder with data."
        else:
            listing = ", ".join(f"{count} × {suffix}" for suffix, count in others.most_common(5))
            best = next((suffix for suffix, _ in others.most_common() if suffix.startswith(".")), None)
            if best is None or best in extensions:
                fix = " Rename them, or"
            elif best in _READERS:  # a reader of another format would read nothing in them
                fix = f" Read those with {_READERS[best]}, or"
            else:
                fix = f" Pass file_extensions=[{best!r}] to read those, or"
            text = (
                f"The input folder {asked!r} holds no file with the extension {wanted}; it holds {listing}"
                f" (names that start with '_' or '.' are passed over).{fix} point file_paths at another folder."
            )
        return InputNotFoundError(text, path=asked, extensions=extensions)
    parent, name = os.path.split(path.rstrip("/"))
    while parent not in ("", "/") and not _is_folder(parent, fs):
        parent, name = os.path.split(parent)
    siblings = _names_in(parent, fs)
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if near:
        hint = f" Did you mean {os.path.join(parent, near[0])!r}?"
    elif siblings:
        shown = ", ".join(sorted(siblings)[:5]) + (", …" if len(siblings) > 5 else "")
        hint = f" The folder {parent!r} holds: {shown}."
    else:
        hint = f" The folder {parent!r} is empty." if _is_folder(parent, fs) else ""
    kind = "pattern" if any(sign in path for sign in "*?[") else "path"
    return InputNotFoundError(
        f"The input {kind} {asked!r} matches no file (looked for {wanted}).{hint} Correct the path.",
        path=asked,
        extensions=extensions,
    )


def _suffix(name: str) -> str:
    """The suffix of a file's name, in small letters; that of a compression does not count where there is another."""
    stem, suffix = os.path.splitext(name.lower())
    return (os.path.splitext(stem)[1] or suffix) if suffix in _COMPRESSED else suffix


def _is_folder(path: str, fs: Any) -> bool:
    return bool(os.path.isdir(path) if fs is None else fs.isdir(path))


def _names_in(folder: str, fs: Any) -> list[str]:
    try:
        if fs is None:
            return os.listdir(folder or "/")[:_LISTED]
        return [str(name).rstrip("/").rpartition("/")[2] for name in fs.ls(folder, detail=False)][:_LISTED]
    except OSError:
        return []


def _files_below(folder: str, fs: Any) -> list[str]:
    if fs is not None:
        return [str(name) for name in fs.find(folder)][:_LISTED]
    names: list[str] = []
    for _, _, files in os.walk(folder):
        names += files
        if len(names) >= _LISTED:
            break
    return names[:_LISTED]
