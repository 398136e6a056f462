"""The error message for an input without a readable file: what it holds instead, and what to do."""

from __future__ import annotations

import difflib
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from gristmill.errors import InputNotFoundError
from gristmill.storage.formats import COMPRESSED_SUFFIXES, FORMATS, HEAD_BYTES, codec_of, format_of, mismatch, recognise

_LISTED = 10_000
_MOST_ENDINGS = 6
"""Longer lists would name every format, which is too long to read."""


def missing_error(
    asked: str, path: str, extensions: tuple[str, ...], left_out: Mapping[str, str | None], *, fs: Any = None
) -> InputNotFoundError:
    """An error that names the path, the most similar path or the existing files, and the fix.

    Args:
        asked: The path as passed by the user.
        path: The same path, absolute (local) or inside its store.
        extensions: The extensions that were looked for.
        left_out: The files that were found but are not read, with the reason.
        fs: The fsspec filesystem; None for local paths.
    """
    wanted = ", ".join(extensions if len(extensions) <= _MOST_ENDINGS else (*extensions[:4], "…"))
    if left_out:
        text = f"The input {asked!r} holds no file with the extension {wanted}; {_contents(left_out, fs)}"
    elif _is_folder(path, fs):
        text = f"The input folder {asked!r} is empty (looked for {wanted}). Point file_paths at a folder with data."
    else:
        kind = "pattern" if any(sign in path for sign in "*?[") else "path"
        text = f"The input {kind} {asked!r} matches no file (looked for {wanted}).{_near(asked, path, fs)}"
    return InputNotFoundError(text, path=asked, extensions=extensions)


def _contents(left_out: Mapping[str, str | None], fs: Any) -> str:
    """The existing files, by suffix, and what can be done with most of them."""
    by_suffix = Counter(_suffix(name) or "(none)" for name in left_out)
    listing = ", ".join(f"{count} × {suffix}" for suffix, count in by_suffix.most_common(5))
    skipped = sum(1 for reason in left_out.values() if reason != "extension")
    note = f" ({skipped} of them skipped, because names start with '_' or '.')" if skipped else ""
    others = [name for name, reason in left_out.items() if reason == "extension"]
    kind = format_of(others[0]) if others else None
    if not others:
        fix = "Rename them, or"
    elif kind is not None:
        fix = f"Read those with {FORMATS[kind].reader}, or"
    else:
        suffix = Counter(map(_suffix, others)).most_common(1)[0][0]
        fix = _advice(next(path for path in others if _suffix(path) == suffix), suffix, fs)
    return f"it holds {listing}{note}. {fix} point file_paths at another folder."


def _advice(example: str, suffix: str, fs: Any) -> str:
    """What to do with files that no reader accepts by name, based on the content of one of them."""
    kind = None
    if fs is None and codec_of(example) == "none" and os.path.isfile(example):
        with open(example, "rb") as file:
            kind = recognise(file.read(HEAD_BYTES))
    problem = mismatch(example, kind, "parquet" if kind == "parquet" else "jsonl")
    if problem is not None:
        return f"{problem} Or"
    if not suffix:
        return "Rename them, or"
    if kind is None:
        return f"If they hold records, pass file_extensions=[{suffix!r}], or"
    return f"Pass file_extensions=[{suffix!r}] to {FORMATS['parquet' if kind == 'parquet' else 'jsonl'].reader}, or"


def _near(asked: str, path: str, fs: Any) -> str:
    """The path most similar to a missing one, in the same notation, or the contents of its folder."""
    parent, name = os.path.split(path.rstrip("/"))
    while parent not in ("", "/") and not _is_folder(parent, fs):
        parent, name = os.path.split(parent)
    siblings = _names_in(parent, fs)
    near = difflib.get_close_matches(name, siblings, n=1, cutoff=0.6)
    if near:
        base = path.removesuffix(asked.rstrip("/"))  # what was put before a relative path
        return f" Did you mean {os.path.join(parent, near[0]).removeprefix(base)!r}?"
    holds = f"holds: {', '.join(sorted(siblings)[:5])}{', …' if len(siblings) > 5 else ''}" if siblings else "is empty"
    return f" The folder {parent!r} {holds}. Correct the path." if _is_folder(parent, fs) else " Correct the path."


def _suffix(name: str) -> str:
    """The suffix of a file's name in lower case; a compression suffix counts only if there is no other."""
    stem, suffix = os.path.splitext(name.rstrip("/").rpartition("/")[2].lower())
    return (os.path.splitext(stem)[1] or suffix) if suffix in COMPRESSED_SUFFIXES else suffix


def _is_folder(path: str, fs: Any) -> bool:
    return bool(os.path.isdir(path) if fs is None else fs.isdir(path))


def _names_in(folder: str, fs: Any) -> list[str]:
    try:
        if fs is None:
            return os.listdir(folder or "/")[:_LISTED]
        return [str(name).rstrip("/").rpartition("/")[2] for name in fs.ls(folder, detail=False)][:_LISTED]
    except OSError:
        return []
