"""Files, folders and paths, under the names in `nemo_curator.utils` (`file_utils`, `client_utils`, `hash_utils` …)."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fsspec.core import split_protocol, url_to_fs

from gristmill.errors import NotSupportedError, UsageError
from gristmill.figures import parse_size

if TYPE_CHECKING:
    import pandas as pd

FILETYPE_TO_DEFAULT_EXTENSIONS = {
    "parquet": [".parquet"],
    "jsonl": [".jsonl", ".json"],
    "megatron": [".bin", ".idx"],
}
Options = Mapping[str, Any] | None
Extensions = str | Sequence[str] | None


# --- utils.client_utils ---


class FSPath:
    """A path together with its file system.

    Example:
        >>> FSPath(fsspec.filesystem("memory"), "/a.txt").as_posix()
        'memory:///a.txt'
    """

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        self._path = path

    def open(self, mode: str = "rb", **options: Any) -> Any:
        """The opened file."""
        return self._fs.open(self._path, mode, **options)

    def as_posix(self) -> str:
        """The path, with the protocol of a remote file system."""
        return f"{_protocol(self._fs)}://{self._path}" if _protocol(self._fs) != "file" else self._path

    def get_bytes_cat_ranges(self, *, part_size: int = 10 << 20) -> bytes:
        """The whole content, read in parallel parts."""
        starts = range(0, self._fs.size(self._path) or 0, part_size)
        ends = [start + part_size for start in starts]
        parts = self._fs.cat_ranges([self._path] * len(starts), list(starts), ends, on_error="raise")
        return b"".join(parts)

    def __str__(self) -> str:
        return self._path

    def __repr__(self) -> str:
        return f"FSPath({self._path})"


def is_remote_url(url: str) -> bool:
    """Whether a path is a URL that is not on this machine."""
    return _protocol(url_to_fs(url)[0]) not in ("file", "local")


def _protocol(fs: Any) -> str:
    return fs.protocol if isinstance(fs.protocol, str) else str(fs.protocol[0])


# --- utils.file_utils ---


def get_default_file_extensions(input_filetype: str) -> list[str]:
    """The file extensions of a format.

    Example:
        >>> get_default_file_extensions("jsonl")
        ['.jsonl', '.json']
    """
    if input_filetype not in FILETYPE_TO_DEFAULT_EXTENSIONS:
        known = ", ".join(map(repr, FILETYPE_TO_DEFAULT_EXTENSIONS))
        raise UsageError(f"input_filetype={input_filetype!r} is unknown; known are {known}.", value=input_filetype)
    return list(FILETYPE_TO_DEFAULT_EXTENSIONS[input_filetype])


def get_fs(path: str, storage_options: Options = None) -> Any:
    """The file system of a path."""
    return url_to_fs(str(path), **dict(storage_options or {}))[0]


def read_json_file(path: str, fs: Any) -> Any:
    """The content of a JSON file."""
    return json.loads(fs.cat_file(path))


def write_json_file(path: str, payload: Any, fs: Any) -> None:
    """Write a JSON file, atomically on a local disk."""
    if _protocol(fs) in ("file", "local"):
        write_json_atomically(Path(path), payload)
        return
    fs.makedirs(posixpath.dirname(path), exist_ok=True)
    fs.pipe_file(path, (json.dumps(payload, sort_keys=True) + "\n").encode())


def is_not_empty(path: str, fs: Any = None, storage_options: Options = None) -> bool:
    """Whether a folder exists and is not empty."""
    fs = _file_system(path, fs, storage_options)
    return bool(fs.isdir(path) and fs.ls(path, detail=False))


def delete_dir(path: str, fs: Any = None, storage_options: Options = None) -> None:
    """Remove a folder with its contents, if it exists."""
    fs = _file_system(path, fs, storage_options)
    if fs.isdir(path):
        fs.rm(path, recursive=True)


def create_or_overwrite_dir(path: str, fs: Any = None, storage_options: Options = None) -> None:
    """Create an empty folder; existing contents are removed."""
    fs = _file_system(path, fs, storage_options)
    delete_dir(path, fs)
    fs.makedirs(path, exist_ok=True)


def _file_system(path: str, fs: Any, storage_options: Options) -> Any:
    if fs is not None and storage_options is not None:
        raise UsageError("fs and storage_options are mutually exclusive: pass one.")
    return get_fs(path, storage_options) if fs is None else fs


def filter_files_by_extension(files_list: Iterable[str], keep_extensions: str | Sequence[str]) -> list[str]:
    """The files with one of the extensions, given with or without the dot."""
    endings = _endings(keep_extensions) or ()
    return [file for file in files_list if file.endswith(tuple(endings))]


def get_all_file_paths_under(
    path: str,
    recurse_subdirectories: bool = False,
    keep_extensions: Extensions = None,
    storage_options: Options = None,
    fs: Any = None,
) -> list[str]:
    """The paths of all files below a folder, sorted; local ones are absolute.

    Args:
        path: A folder, a file or a glob.
        recurse_subdirectories: Whether to look into subfolders.
        keep_extensions: Only files with these extensions.
        storage_options: Options of the file system, for URLs.
        fs: The file system, if already created.

    Example:
        >>> get_all_file_paths_under("in/", recurse_subdirectories=True, keep_extensions="jsonl")  # doctest: +SKIP
    """
    return sorted(dict(_listed(path, recurse_subdirectories, keep_extensions, storage_options, fs)))


def get_all_file_paths_and_size_under(
    path: str,
    recurse_subdirectories: bool = False,
    keep_extensions: Extensions = None,
    storage_options: Options = None,
    fs: Any = None,
    sort_by_size: bool = True,
) -> list[tuple[str, int]]:
    """The same with the size of each file in bytes (-1 if unknown), sorted by size or by path."""
    found = sorted(_listed(path, recurse_subdirectories, keep_extensions, storage_options, fs))
    return sorted(found, key=lambda pair: pair[1]) if sort_by_size else found


def _listed(
    path: str, recurse: bool, extensions: Extensions, storage_options: Options, fs: Any
) -> Iterable[tuple[str, int]]:
    fs = fs or get_fs(path, storage_options)
    endings = _endings(extensions)
    remote = _protocol(fs) not in ("file", "local")
    for root in fs.expand_path(str(path), recursive=False):
        if fs.isdir(root):
            files = fs.find(root, maxdepth=None if recurse else 1, detail=True)
        else:
            files = {root: fs.info(root)}
        for name, info in files.items():
            if endings is None or posixpath.splitext(name)[1].casefold() in endings:
                size = info.get("size")
                yield (fs.unstrip_protocol(name) if remote else name), -1 if size is None else int(size)


def _endings(extensions: Extensions) -> set[str] | None:
    if extensions is None:
        return None
    given = [extensions] if isinstance(extensions, str) else extensions
    return {f".{ending.casefold().lstrip('.')}" for ending in given}


def infer_protocol_from_paths(paths: Iterable[str]) -> str | None:
    """The protocol of the first path that is a URL; None if all are local."""
    found = (split_protocol(path)[0] for path in paths)
    return next((protocol for protocol in found if protocol not in (None, "file", "local")), None)


def pandas_select_columns(df: pd.DataFrame, columns: Sequence[str] | None, file_path: str) -> pd.DataFrame | None:
    """The requested columns that exist; None if none does."""
    if columns is None:
        return df
    there = [name for name in columns if name in df.columns]
    return df[there] if there else None


def check_output_mode(mode: str, fs: Any, path: str, append_mode_implemented: bool = False) -> None:
    """Prepare the output folder for a write mode.

    Raises:
        FileExistsError: The mode is `error` and the folder exists.
    """
    mode = mode.strip().lower()
    if mode not in ("overwrite", "append", "error", "ignore"):
        raise UsageError(f"mode={mode!r}: must be 'ignore', 'overwrite', 'append' or 'error'.", mode=mode)
    if mode == "append" and not append_mode_implemented:
        raise NotSupportedError("This writer does not support mode='append'; 'ignore' adds what is missing.")
    if mode == "error" and fs.exists(path):
        raise FileExistsError(f"The output folder {path} exists. Choose another folder or mode.")
    if mode == "overwrite":
        delete_dir(path, fs)
    fs.makedirs(path, exist_ok=True)


def infer_dataset_name_from_path(path: str, *, path_kind: str = "file") -> str:
    """A name for the data at a path: the folder's, in lower case.

    Example:
        >>> infer_dataset_name_from_path("data/Books/part-0.jsonl")
        'books'
    """
    protocol, below = split_protocol(str(path))
    parts: list[str] = below.rstrip("/").split("/")
    if path_kind == "directory" or protocol is not None:
        return parts[-1].lower()
    folder = parts[-2] if len(parts) > 1 else ""
    return str(folder if folder not in ("", ".") else posixpath.splitext(parts[-1])[0]).lower()


def check_disallowed_kwargs(
    kwargs: Mapping[str, Any], disallowed_keys: Iterable[str], raise_error: bool = True
) -> None:
    """Reject keys that a stage sets itself, or warn about them."""
    found = sorted(set(kwargs).intersection(disallowed_keys))
    if found:
        message = f"{', '.join(map(repr, found))}: the stage sets this itself; remove it."
        if raise_error:
            raise UsageError(message, keys=found)
        import warnings

        warnings.warn(message, stacklevel=2)


def tar_safe_extract(tar: tarfile.TarFile, path: str) -> None:
    """Unpack an archive; a member that is a device or would be written outside `path` is an error."""
    tar.extractall(path, filter="data")


def parse_bytes_string_to_int(size: float | str) -> int:
    """A size such as `128MB` or `1GiB` in bytes.

    Example:
        >>> parse_bytes_string_to_int("1MiB"), parse_bytes_string_to_int("5 kB")
        (1048576, 5000)
    """
    return int(size) if isinstance(size, int | float) else parse_size(size, name="size")


# --- utils.hash_utils, utils.storage_utils, utils.column_utils ---


def get_deterministic_hash(inputs: Iterable[str], seed: str = "") -> str:
    """Twelve hexadecimal digits computed from the texts, independent of their order.

    Example:
        >>> get_deterministic_hash(["b", "a"]) == get_deterministic_hash(["a", "b"])
        True
    """
    return hashlib.sha256("|".join([*sorted(inputs), seed]).encode()).hexdigest()[:12]


def get_full_path(path: str | os.PathLike[str], *args: str) -> Path:
    """A path of several parts."""
    return Path(path, *args)


def resolve_filename_column(add_filename_column: bool | str) -> str | None:
    """The column for file names: the given one, `file_name` for True, None for False."""
    if isinstance(add_filename_column, str):
        return add_filename_column
    if not isinstance(add_filename_column, bool):
        raise UsageError(f"add_filename_column={add_filename_column!r}: must be True, False or the name of a column.")
    return "file_name" if add_filename_column else None


# --- utils.atomic_io ---


def fsync_directory(path: str | os.PathLike[str]) -> None:
    """Flush the entries of a folder to disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_json_atomically(
    path: str | os.PathLike[str],
    payload: Any,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = True,
) -> None:
    """Write a JSON file atomically."""
    temporary = _written(Path(path), payload, indent, separators, sort_keys)
    os.replace(temporary, path)
    fsync_directory(Path(path).parent)


def write_json_atomically_if_absent(
    path: str | os.PathLike[str],
    payload: Any,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = True,
) -> bool:
    """The same, unless the file exists; returns whether it was written."""
    temporary = _written(Path(path), payload, indent, separators, sort_keys)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    fsync_directory(Path(path).parent)
    return True


def _written(path: Path, payload: Any, indent: int | None, separators: Any, sort_keys: bool) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(json.dumps(payload, indent=indent, separators=separators, sort_keys=sort_keys) + "\n")
        file.flush()
        os.fsync(file.fileno())
    return temporary
