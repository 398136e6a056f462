"""Paths and URLs, and finding input files: a file, a folder, a glob, a list of these, local or in any fsspec store.

The result depends only on the files, never on the order in which a store lists them. Files that are not read are part
of it, with the reason.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Literal

from gristmill.errors import (
    GristmillError,
    InputError,
    InputNotFoundError,
    InputPermissionError,
    StoreError,
    UsageError,
    did_you_mean,
    missing_extra,
)
from gristmill.storage.formats import EXTENSIONS, Format, format_of, has_extension
from gristmill.storage.missing_input import missing_error

StorageOptions = Mapping[str, Any] | None
Reason = Literal["extension", "hidden", "record", "empty", "other_format", "limit", "shard"]

RECORD_SUFFIX = ".gristmill"
"""The suffix of record folders, which are created beside the output."""
_HIDDEN = ("_", ".")
_MOST_WAYS = 100
"""Maximum number of paths by which links may lead to one folder: a dozen folders of links can make millions."""
_WHOLE_NAMES = ("posts.xml",)
"""Extensions that are whole file names, without a dot before them."""
_LOCAL_PREFIXES = ("file://", "local://")
_PASSWORD = re.compile(r"(?i)((?<=[a-z0-9])://[^/@:\s]*:)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of the input.

    Attributes:
        path: An absolute local path, or a URL.
        relative: The path below the input root, with '/'; unique within one listing.
        size: Size in bytes as stored (compressed, for compressed files); -1 if the store does not report it.
        stamp: Changes when the content does: mtime in ns for local files, otherwise etag or checksum.
    """

    path: str
    relative: str
    size: int
    stamp: str


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file of the input that is not read, or a folder that is not searched.

    Attributes:
        path: Its path or URL; that of a folder ends with '/'.
        relative: The path below the input root, as in `InputFile`.
        reason: Why: its `extension`, a `hidden` name (it starts with '_' or '.'), the `record` of a run, `empty`, an
            `other_format` than the reader's, or beyond the `limit` of partitions.
        files: Number of files in a folder; 1 for a file.
    """

    path: str
    relative: str
    reason: Reason
    files: int = 1


@dataclass(frozen=True, slots=True)
class Survey:
    """All files of an input: those to read and those to skip, both sorted by relative path.

    An empty file is in both lists, since it contains nothing to read.
    """

    files: list[InputFile]
    left_out: list[LeftOut]

    def only(self, kind: Format) -> Survey:
        """The same survey, with files of other formats (by name) moved to those that are not read."""
        files: list[InputFile] = []
        left_out = list(self.left_out)
        for file in self.files:
            if format_of(file.relative) in (None, kind):
                files.append(file)
            else:
                left_out.append(LeftOut(file.path, file.relative, "extension"))
        return Survey(files, sorted(left_out, key=attrgetter("relative")))

    def formats(self) -> dict[Format | None, list[InputFile]]:
        """The files to read, by the format that their names indicate; None for unknown names."""
        found: dict[Format | None, list[InputFile]] = {}
        for file in self.files:
            found.setdefault(format_of(file.relative), []).append(file)
        return found


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """What happened to every file of an input.

    Attributes:
        paths: The input as passed; local paths are absolute.
        extensions: The extensions searched for in folders.
        read: Number of files read.
        left_out: The others.
        format: Common name of the format of the files read.
    """

    paths: list[str]
    extensions: list[str]
    read: int
    left_out: list[LeftOut]
    format: str = ""


@dataclass(frozen=True, slots=True)
class Found:
    """A file before its relative path is known, with the scheme and folder it was found under."""

    scheme: str
    root: str
    inner: str
    path: str
    size: int = -1
    stamp: str = ""
    reason: Reason | None = None
    files: int = 1


def is_local(path: str) -> bool:
    """Whether `path` is on this machine: no scheme, or ``file://``."""
    return "://" not in path or path.startswith(_LOCAL_PREFIXES)


def local_path(path: str | os.PathLike[str]) -> str:
    """The absolute path on this machine that `path` (plain or ``file://``) names, with ``~`` expanded."""
    text = os.fspath(path)
    if "\0" in text:
        raise UsageError(f"The path {text!r} contains a NUL character, which is not valid in file names.", path=text)
    for prefix in _LOCAL_PREFIXES:
        if text.startswith(prefix):
            text = text[len(prefix) :]
            break
    return os.path.abspath(os.path.expanduser(text))


def without_passwords(text: str) -> str:
    """`text` with `***` in place of the passwords of URLs in it."""
    return _PASSWORD.sub(r"\1***@", text)


def filesystem(path: str, storage_options: StorageOptions = None) -> tuple[Any, str]:
    """The fsspec filesystem of `path` and the path inside it.

    Raises:
        MissingExtraError: The package that opens such stores is not installed.
        UsageError: The kind of store is unknown, or the URL contains a password, which the record of a run would show.
    """
    from fsspec.core import url_to_fs

    if _PASSWORD.search(path):
        shown = without_passwords(path)
        raise UsageError(
            f"The URL {shown!r} contains a password, and paths are written to the run's record. Pass credentials in "
            "storage_options or through the store's environment variables.",
            path=shown,
        )
    try:
        fs, inner = url_to_fs(path, **dict(storage_options or {}))
    except ImportError as error:
        package = getattr(error.__cause__, "name", None) or f"fsspec for {path.partition(':')[0]}"
        extra = "hub" if package == "huggingface_hub" else None  # the extra of models would bring torch too
        raise missing_extra(package, f"The store of {path!r}", extra=extra) from error
    except ValueError as error:
        if "rotocol not known" not in str(error):
            raise
        from fsspec import available_protocols

        kind = path.partition("://")[0]
        near = did_you_mean(kind, available_protocols())
        raise UsageError(
            f"Unknown kind of store: {kind!r} ({kind}://).{near} Usual ones are s3://, gs://, az:// and "
            "https://; without '://' a path is on this machine.",
            path=path,
        ) from error
    return fs, inner


@contextlib.contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Convert a store library's connection errors into an error that says so.

    Raises:
        StoreError: The store did not respond, or there are no credentials.
    """
    try:
        yield
    except (GristmillError, ImportError, FileNotFoundError, PermissionError, ValueError):
        raise
    except Exception as error:  # store libraries have their own exception classes
        raise store_error(url, error) from error


def store_error(url: str, error: Exception) -> StoreError:
    """The error for a failed store library."""
    return StoreError(
        f"The store of {url!r} cannot be accessed: {type(error).__name__}: {error}. Check the address, the network "
        "and the credentials in storage_options.",
        path=url,
    )


def normalize_extensions(extensions: str | Iterable[str]) -> tuple[str, ...]:
    """`extensions` in lower case, each with its dot."""
    given: list[object] = [extensions] if isinstance(extensions, str) else list(extensions)
    found: dict[str, None] = {}
    for item in given or [None]:
        if not isinstance(item, str) or not item.strip(". "):
            raise UsageError(
                f"file_extensions={extensions!r} must be a list such as ['.jsonl', '.json'].", value=extensions
            )
        plain = item.strip().lstrip(".").lower()
        found[plain if plain in _WHOLE_NAMES else "." + plain] = None
    return tuple(found)


def skip_reason(name: str, *, folder: bool) -> Reason | None:
    """Why a file or folder with this name is skipped unless requested by name; None if it is read."""
    if folder and (name == "_gristmill" or name.endswith(RECORD_SUFFIX)):
        return "record"
    return "hidden" if name.startswith(_HIDDEN) else None


def list_files(
    file_paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    extensions: str | Iterable[str],
    storage_options: StorageOptions = None,
) -> list[InputFile]:
    """The files that `survey` finds to read.

    Example:
        >>> [file.relative for file in list_files("corpus/", extensions=[".jsonl"])]  # doctest: +SKIP
        ['en/part-0.jsonl', 'en/part-1.jsonl.gz']
    """
    return survey(file_paths, extensions=extensions, storage_options=storage_options).files


def survey(
    file_paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    extensions: str | Iterable[str] | None = None,
    storage_options: StorageOptions = None,
) -> Survey:
    """Every file that `file_paths` matches, each once: those to read, and the others with the reason.

    Folders are searched recursively; names that start with ``_`` or ``.`` and the record folders of runs are skipped
    there. A file named explicitly is read whatever its extension.

    Args:
        file_paths: A file, a folder, a glob, a URL (``s3://…``, ``memory://…``) or a list of these.
        extensions: Extensions to read in folders and globs, such as ``[".jsonl", ".json"]``; ``.jsonl.gz`` matches
            ``.jsonl``. Defaults to those of all supported formats.
        storage_options: File system options for URLs.

    Raises:
        InputNotFoundError: One of the paths matches no file.
        InputPermissionError: A file or folder is not readable.

    Example:
        >>> found = survey("corpus/")  # doctest: +SKIP
        >>> {kind: len(files) for kind, files in found.formats().items()}  # doctest: +SKIP
        {'jsonl': 2}
        >>> [(item.relative, item.reason) for item in found.left_out]  # doctest: +SKIP
        [('README.md', 'extension'), ('_old/', 'hidden')]
    """
    allowed = normalize_extensions(sum(EXTENSIONS.values(), ()) if extensions is None else extensions)
    if isinstance(file_paths, (str, os.PathLike)):
        given: list[object] = [file_paths]
    else:
        given = list(file_paths)
        if not given:
            raise UsageError("file_paths is an empty list. Name at least one file, folder, glob or URL.")
    found: dict[tuple[str, str], Found] = {}
    schemes, roots = set[str](), set[str]()
    for entry in given:
        text = os.fspath(entry) if isinstance(entry, (str, os.PathLike)) else None
        if not isinstance(text, str) or not text:
            raise UsageError(
                f"file_paths contains {entry!r}, which is not a path. Pass a string or a pathlib.Path.", value=entry
            )
        if is_local(text):
            matches = _local_matches(text, allowed)
        else:
            from gristmill.storage.remote_files import remote_matches

            matches = remote_matches(text, allowed, storage_options)
        for item in matches:
            key = item.scheme, item.inner
            if item.reason is None:
                schemes.add(item.scheme)
                roots.add("/" + item.root.strip("/"))
            if key not in found or found[key].reason is not None:  # named by one path and skipped by another: taken
                found[key] = item
    taken = Survey([], [])
    cut = len(os.path.commonpath(sorted(roots)).rstrip("/")) + 1
    for item in found.values():
        # Several stores have no common root, so the scheme becomes the first folder.
        inner = item.inner.lstrip("/")
        relative = f"/{inner}"[cut:] if len(schemes) == 1 else f"{item.scheme}/{inner}"
        reason = "empty" if item.size == 0 else item.reason
        if reason is not None:
            taken.left_out.append(LeftOut(item.path, relative, reason, item.files))
        if item.reason is None:
            taken.files.append(InputFile(item.path, relative, item.size, item.stamp))
    taken.files.sort(key=attrgetter("relative"))
    taken.left_out.sort(key=attrgetter("relative"))
    return taken


def pattern_root(pattern: str) -> str:
    """The folder above the first component with a wildcard."""
    parts = pattern.split("/")
    fixed = next(i for i, part in enumerate(parts) if glob.has_magic(part))
    return "/".join(parts[:fixed]) or "/"


def skipped_below(inner: str, root: str, pattern: str = "") -> Reason | None:
    """Why a file (or folder, ending with '/') below `root` is skipped because of its name or that of a parent folder.

    Names that the pattern asks for are not skipped.
    """
    asked = {part[0] for part in pattern[len(root) :].split("/") if part}
    names = inner[len(root) :].lstrip("/").split("/")
    for at, name in enumerate(filter(None, names), 1):
        reason = skip_reason(name, folder=at < len(names))
        if reason is not None and not (name[0] in asked if name.startswith(_HIDDEN) else RECORD_SUFFIX in pattern):
            return reason
    return None


# Local paths -----------------------------------------------------------------------------------------------------


def _local_matches(text: str, allowed: tuple[str, ...]) -> list[Found]:
    path = local_path(text)
    try:
        mode = os.stat(path).st_mode
    except PermissionError as error:
        raise _forbidden(path) from error
    except OSError:
        mode = None
    if mode is not None and stat.S_ISDIR(mode):
        matches = list(_walk(path, path, allowed))
    elif mode is not None:
        matches = [_local_file(path, os.path.dirname(path))]
    elif glob.has_magic(path):
        root = pattern_root(path)
        matches = []
        for match in glob.iglob(path, recursive=True):
            is_folder = os.path.isdir(match)
            reason = skipped_below(f"{match}/" if is_folder else match, root, path)
            if is_folder:
                # "**" names every folder on the way as well; only a last plain wildcard means the folder's contents.
                if not path.rstrip("/").endswith("**"):
                    matches += _unsearched(match, root, reason) if reason else _walk(match, root, allowed)
            elif reason is None and has_extension(match, allowed):
                matches.append(_local_file(match, root))
            else:
                matches.append(Found("file", root, match, match, reason=reason or "extension"))
    else:
        matches = []
    if all(map(attrgetter("reason"), matches)):
        raise missing_error(text, path, allowed, {item.path: item.reason for item in matches})
    return matches


def _walk(folder: str, root: str, allowed: tuple[str, ...]) -> Iterator[Found]:
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [(folder, ())]
    ways: dict[tuple[int, int], int] = {}
    while waiting:
        folder, above = waiting.pop()
        try:
            info = os.stat(folder)
            here = (info.st_dev, info.st_ino)
            if here in above:  # a link back to a folder that is being searched
                continue
            ways[here] = ways.get(here, 0) + 1
            with os.scandir(folder) as entries:
                listed = list(entries)
        except PermissionError as error:
            raise _forbidden(folder) from error
        except OSError as error:
            where = folder if len(folder) < 200 else f"{folder[:200]}…"
            raise InputError(
                f"The input folder {where!r} cannot be searched: {error.strerror}. Move it out of the input.",
                path=folder,
            ) from error
        if ways[here] > _MOST_WAYS:
            raise InputError(
                f"Links below the input {root!r} lead to the folder {folder!r} in more than {_MOST_WAYS} ways. Remove "
                "links between its folders, or name the folders to read in file_paths.",
                path=folder,
            )
        for entry in listed:
            path = entry.path
            try:
                is_folder = entry.is_dir()
            except OSError:  # a link to itself
                is_folder = False
            reason = skip_reason(entry.name, folder=is_folder)
            if reason is None and is_folder:
                waiting.append((path, (*above, here)))
            elif reason is not None and is_folder:
                yield from _unsearched(path, root, reason)
            elif reason is None and has_extension(entry.name, allowed):
                yield _local_file(path, root)
            else:
                yield Found("file", root, path, path, reason=reason or "extension")


def _unsearched(folder: str, root: str, reason: Reason) -> list[Found]:
    """One entry for all files in a folder that is not searched."""
    count, waiting = 0, [folder]
    while waiting:  # os.walk would recurse as deep as the folders are nested
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    count += 1
    path = f"{folder.rstrip('/')}/"
    return [Found("file", root, path, path, reason=reason, files=count)] if count else []


def _local_file(path: str, root: str) -> Found:
    try:
        info = os.stat(path)
    except PermissionError as error:
        raise _forbidden(path) from error
    except OSError as error:
        what = "file that does not exist" if isinstance(error, FileNotFoundError) else "link that leads back to itself"
        raise InputNotFoundError(
            f"The input {path!r} is a link to a {what}. Remove the link or restore its target.", path=path
        ) from error
    if not stat.S_ISREG(info.st_mode):
        raise InputError(
            f"The input {path!r} is not a regular file (a pipe, socket or device). Write it to a file first.", path=path
        )
    if not os.access(path, os.R_OK):
        raise _forbidden(path)
    return Found("file", root, path, path, info.st_size, str(info.st_mtime_ns))


def _forbidden(path: str) -> InputPermissionError:
    return InputPermissionError(
        f"The input {path!r} is not readable by the current user. Grant access (chmod a+r on files, a+rx on folders), "
        "or remove it from file_paths.",
        path=path,
    )
