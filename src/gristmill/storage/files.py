"""Paths and URLs, and finding input files: a file, a folder, a glob, a list of these, here or on any fsspec store.

The result depends only on what lies there, never on the order in which a store lists it.
"""

from __future__ import annotations

import difflib
import glob
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from gristmill.errors import InputError, InputNotFoundError, InputPermissionError, UsageError

StorageOptions = Mapping[str, Any] | None

COMPRESSED_SUFFIXES = (".gz", ".zst", ".bz2")

_HIDDEN = ("_", ".")
_LOCAL_PREFIXES = ("file://", "local://")
_STAMP_KEYS = ("ETag", "etag", "e_tag", "md5Hash", "checksum", "crc32c", "content_md5", "generation")
_TIME_KEYS = ("LastModified", "last_modified", "updated", "mtime", "created")
_LISTED = 10_000
_READERS = {".jsonl": "JsonlReader", ".json": "JsonlReader", ".ndjson": "JsonlReader", ".parquet": "ParquetReader"}
"""What reads the files of a suffix."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of the input.

    Attributes:
        path: What fsspec opens: an absolute local path, or a URL.
        relative: The path below the input root, with '/'; unique within one listing.
        size: Bytes as stored (compressed files: compressed); -1 where the store does not say.
        stamp: Changes when the content does: mtime in ns locally, etag or checksum elsewhere.
    """

    path: str
    relative: str
    size: int
    stamp: str


@dataclass(frozen=True, slots=True)
class _Found:
    """A file before its relative path is known: the scheme and folder it was searched under come along."""

    scheme: str
    root: str
    inner: str
    path: str
    size: int
    stamp: str


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


def normalize_extensions(extensions: str | Iterable[str]) -> tuple[str, ...]:
    """`extensions` in lower case, each with its dot."""
    given: list[object] = [extensions] if isinstance(extensions, str) else list(extensions)
    found: dict[str, None] = {}
    for item in given or [None]:
        if not isinstance(item, str) or not item.strip(". "):
            raise UsageError(
                f"file_extensions={extensions!r} must be a list such as ['.jsonl', '.json'].", value=extensions
            )
        found["." + item.strip().lstrip(".").lower()] = None
    return tuple(found)


def has_extension(name: str, extensions: Sequence[str]) -> bool:
    """Whether `name` ends with one of `extensions`, a compressed suffix after it allowed."""
    name = name.lower()
    for suffix in COMPRESSED_SUFFIXES:
        if name.endswith(suffix) and not name.endswith(tuple(extensions)):
            name = name[: -len(suffix)]
            break
    return name.endswith(tuple(extensions))


def list_files(
    file_paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    extensions: str | Iterable[str],
    storage_options: StorageOptions = None,
) -> list[InputFile]:
    """Every input file that `file_paths` names, sorted by relative path, each once.

    Folders are searched recursively; names that start with ``_`` or ``.`` (and with them ``_gristmill/``) are passed
    over there. A file named in full is taken whatever its extension.

    Args:
        file_paths: A file, a folder, a glob, a URL (``s3://…``, ``memory://…``) or a list of these.
        extensions: What counts in folders and globs, such as ``[".jsonl", ".json"]``; ``.jsonl.gz`` matches ``.jsonl``.
        storage_options: Handed to fsspec for URLs.

    Raises:
        InputNotFoundError: One of the paths matches no file.
        InputPermissionError: A file or folder may not be read.

    Example:
        >>> [file.relative for file in list_files("corpus/", extensions=[".jsonl"])]  # doctest: +SKIP
        ['en/part-0.jsonl', 'en/part-1.jsonl.gz']
    """
    allowed = normalize_extensions(extensions)
    if isinstance(file_paths, (str, os.PathLike)):
        given: list[object] = [file_paths]
    else:
        given = list(file_paths)
        if not given:
            raise UsageError("file_paths is an empty list. Name at least one file, folder, glob or URL.")
    found: dict[tuple[str, str], _Found] = {}
    for entry in given:
        text = os.fspath(entry) if isinstance(entry, (str, os.PathLike)) else None
        if not isinstance(text, str) or not text:
            raise UsageError(
                f"file_paths contains {entry!r}, which is not a path. Give text or a pathlib.Path.", value=entry
            )
        matches = _local_matches(text, allowed) if is_local(text) else _remote_matches(text, allowed, storage_options)
        for item in matches:
            found.setdefault((item.scheme, item.inner), item)
    if len({scheme for scheme, _ in found}) == 1:
        common = os.path.commonpath(sorted({"/" + item.root.strip("/") for item in found.values()}))
        cut = len(common.rstrip("/")) + 1
        relatives = [("/" + item.inner.lstrip("/"))[cut:] for item in found.values()]
    else:
        # Several stores have no common root, so the scheme becomes the first folder.
        relatives = [f"{item.scheme}/{item.inner.lstrip('/')}" for item in found.values()]
    named = zip(relatives, found.values(), strict=True)
    files = [InputFile(item.path, relative, item.size, item.stamp) for relative, item in named]
    return sorted(files, key=attrgetter("relative"))


def _pattern_root(pattern: str) -> str:
    """The folder above the first component with a wildcard."""
    parts = pattern.split("/")
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:fixed]) or "/"


def _hidden_below(inner: str, root: str, pattern: str) -> bool:
    """Whether a match lies under a hidden name that the pattern did not ask for."""
    asked = {part[0] for part in pattern[len(root) :].split("/") if part}
    names = inner[len(root) :].strip("/").split("/")
    return any(name.startswith(_HIDDEN) and name[0] not in asked for name in names)


# Local paths -----------------------------------------------------------------------------------------------------


def _local_matches(text: str, allowed: tuple[str, ...]) -> list[_Found]:
    path = local_path(text)
    try:
        mode = os.stat(path).st_mode
    except PermissionError as error:
        raise _forbidden(path) from error
    except OSError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        matches = list(_walk(path, path, allowed, ()))
    elif mode is not None:
        matches = [_local_file(path, os.path.dirname(path))]
    elif glob.has_magic(path):
        root = _pattern_root(path)
        matches = []
        for match in glob.iglob(path, recursive=True):
            if _hidden_below(match, root, path):
                continue
            if os.path.isdir(match):
                # "**" names every folder on the way as well; only a last plain wildcard means the folder's contents.
                if not path.rstrip("/").endswith("**"):
                    matches += _walk(match, root, allowed, ())
            elif has_extension(match, allowed):
                matches.append(_local_file(match, root))
    else:
        matches = []
    if not matches:
        raise _missing_error(text, path, allowed)
    return matches


def _walk(folder: str, root: str, allowed: tuple[str, ...], above: tuple[tuple[int, int], ...]) -> Iterator[_Found]:
    try:
        info = os.stat(folder)
        here = (info.st_dev, info.st_ino)
        if here in above:  # a link back to a folder that is being searched
            return
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except PermissionError as error:
        raise _forbidden(folder) from error
    for entry in listed:
        if entry.name.startswith(_HIDDEN):
            continue
        if entry.is_dir():
            yield from _walk(entry.path, root, allowed, (*above, here))
        elif has_extension(entry.name, allowed):
            yield _local_file(entry.path, root)


def _local_file(path: str, root: str) -> _Found:
    try:
        info = os.stat(path)
    except FileNotFoundError as error:
        raise InputNotFoundError(
            f"The input {path!r} is a link to a file that does not exist. Remove the link or restore its target.",
            path=path,
        ) from error
    except PermissionError as error:
        raise _forbidden(path) from error
    if not stat.S_ISREG(info.st_mode):
        raise InputError(
            f"The input {path!r} is not a regular file (a pipe, socket or device). Write it to a file first.", path=path
        )
    if not os.access(path, os.R_OK):
        raise _forbidden(path)
    return _Found("file", root, path, path, info.st_size, str(info.st_mtime_ns))


def _forbidden(path: str) -> InputPermissionError:
    return InputPermissionError(
        f"The input {path!r} may not be read by this user. Grant access (chmod a+r on files, a+rx on folders), "
        "or leave it out of file_paths.",
        path=path,
    )


# Other stores ----------------------------------------------------------------------------------------------------


def _remote_matches(url: str, allowed: tuple[str, ...], storage_options: StorageOptions) -> list[_Found]:
    try:
        fs, inner = filesystem(url, storage_options)
        return _remote_search(fs, url, inner, allowed)
    except PermissionError as error:
        raise InputPermissionError(
            f"The input {url!r} may not be read: {error}. Check the credentials in storage_options.", path=url
        ) from error
    except (ImportError, ValueError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"The input {url!r} cannot be opened: {error}", path=url) from error


def _remote_search(fs: Any, url: str, inner: str, allowed: tuple[str, ...]) -> list[_Found]:
    inner = inner.rstrip("/")
    try:
        info = fs.info(inner)
    except FileNotFoundError:
        info = None
    matches: list[_Found] = []
    if info is not None and info["type"] == "file":
        matches = [_remote_file(fs, inner, info, inner.rpartition("/")[0])]
    elif info is not None and info["type"] == "directory":
        matches = _remote_walk(fs, inner, inner, allowed)
    if not matches and glob.has_magic(inner):
        root = _pattern_root(inner)
        for name, details in fs.glob(inner, detail=True).items():
            if _hidden_below(name, root, inner):
                continue
            if details["type"] == "directory":
                if not inner.endswith("**"):
                    matches += _remote_walk(fs, name, root, allowed)
            elif has_extension(name, allowed):
                matches.append(_remote_file(fs, name, details, root))
    if not matches:
        raise _missing_error(url, inner, allowed, fs=fs)
    return matches


def _remote_walk(fs: Any, folder: str, root: str, allowed: tuple[str, ...]) -> list[_Found]:
    found = []
    for name, details in fs.find(folder, detail=True).items():
        parts = name[len(folder) :].strip("/").split("/")
        if has_extension(name, allowed) and not any(part.startswith(_HIDDEN) for part in parts):
            found.append(_remote_file(fs, name, details, root))
    return found


def _remote_file(fs: Any, inner: str, info: dict[str, Any], root: str) -> _Found:
    size = info.get("size")
    stamp = next((str(info[key]) for key in _STAMP_KEYS if info.get(key)), None)
    if stamp is None:
        stamp = next((str(info[key]) for key in _TIME_KEYS if info.get(key)), None) or str(fs.ukey(inner))
    protocol = fs.protocol if isinstance(fs.protocol, str) else fs.protocol[0]
    return _Found(
        protocol, root, inner, fs.unstrip_protocol(inner), -1 if size is None else int(size), stamp.strip('"')
    )


# What to say when nothing is found ---------------------------------------------------------------------------------


def _missing_error(asked: str, path: str, extensions: tuple[str, ...], *, fs: Any = None) -> InputNotFoundError:
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


def _files_below(folder: str, fs: Any) -> list[str]:
    if fs is not None:
        return [str(name) for name in fs.find(folder)][:_LISTED]
    names: list[str] = []
    for _, _, files in os.walk(folder):
        names += files
        if len(names) >= _LISTED:
            break
    return names[:_LISTED]
