"""The layout of a run's files, on any fsspec store: the data, the record beside it, and what may already exist.

The output holds data and nothing else. Its record is in `OUTPUT.gristmill/`, or in the requested place. No other module
knows these names.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import posixpath
import re
import shutil
import socket
import uuid
from typing import Any, BinaryIO, cast

from gristmill.errors import InputNotFoundError, OutputError, UsageError, VerificationError
from gristmill.observe.memory import process_start_time
from gristmill.storage.atomic import (
    output_error,
    output_errors,
    sweep_temporaries,
    temporary_path,
    write_bytes_atomic,
)
from gristmill.storage.files import (
    RECORD_SUFFIX,
    StorageOptions,
    filesystem,
    is_local,
    local_path,
    store_error,
    store_errors,
)

RECORD_FOLDER = "_gristmill"
"""Stands for the record in the paths of a manifest, wherever it is; version 0.1 kept it in the output."""
RECORD_FILES = {
    "run": "run.json",
    "plan": "plan.json",
    "recipe": "recipe.yaml",
    "report": "report.html",
    "workflow": "deduplication.json",
    "contamination": "contamination.json",
    "dataset": "dataset.json",
    "left_out": "left_out.jsonl",
    "stdin": "stdin.jsonl",
    "labels": "labels.jsonl",
    "profile": "profile.json",
    "summary": "summary.json",
    "profile_page": "profile.html",
}
"""Files in the record folder that belong to a run as a whole."""
PARTITION_FILES = {
    "ledger": "ledger/{}.parquet",
    "changes": "ledger/{}.changes.parquet",
    "cuts": "ledger/{}.cuts.parquet",
    "scores": "ledger/{}.scores.parquet",
    "ids": "index/{}.ids",
    "urls": "index/{}.urls",
    "quarantine": "quarantine/{}.jsonl",
    "documents": "documents/{}.parquet",
}
"""Files that the record of a partition may consist of, in addition to its manifest entry."""
STEPS_FOLDER = "steps"
"""The folder in the record folder where a workflow keeps the runs of its earlier steps, each with its own record."""

_PLACES = {
    **RECORD_FILES,
    **PARTITION_FILES,
    "rows": "index/{}.rows",  # only in the steps of a multi-step run
    "manifest": "manifest/{}.json",
    "staging": "staging/{}",
    "input": "input/{}",  # standard input in a format other than JSONL
    "answers": "answers/{}",  # answers of language models
}
RECORD_NAMES = frozenset(place.partition("/")[0] for place in (*_PLACES.values(), STEPS_FOLDER))
"""What is directly in a record folder; a workflow also keeps its lists there."""
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")
_MAX_NAME_BYTES = 230  # leaves room for the endings above within the 255 of most file systems
_STAGING = re.compile(r"(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]+")
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_DATA_ENDING = re.compile(r"\.(jsonl|json|ndjson|parquet|csv|tsv|arrow)(\.(gz|zst|zstd|bz2|xz|lzma))?$", re.IGNORECASE)


class RunFolder:
    """One output with its record: their paths, the file operations that a record needs, and what may exist there.

    An output is a folder, or a single file if it is named like a data file (`clean.jsonl`) and there is no folder of
    that name. Nothing is created until something is written.

    Args:
        path: A local path or a URL.
        storage_options: File system options for URLs.
        record_path: Where the record is, if not beside the output.

    Attributes:
        path: The output.
        record: The folder with its record.
        ending: The file extension if the output is a single file, otherwise None.
        data_folder: The folder with the data files.

    Raises:
        UsageError: There is no place beside the output, and none was specified.

    Example:
        >>> RunFolder("memory://out").record_path("ledger", "part-0")
        'memory://out.gristmill/ledger/part-0.parquet'
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        storage_options: StorageOptions = None,
        *,
        record_path: str | os.PathLike[str] | None = None,
    ) -> None:
        self.storage_options = storage_options
        self.path = _plain(path)
        named = _DATA_ENDING.search(self.path)
        self.ending = named[0].lower() if named and not self._is_folder(self.path) else None
        self.data_folder = self.path if self.ending is None else self.path.rpartition("/")[0]
        if record_path is not None:
            self.record = _plain(record_path)
            return
        self.record = f"{self.path}/{RECORD_FOLDER}"
        if self.ending is not None or not self._is_folder(self.record, empty=False):
            self.record = f"{self.path}{RECORD_SUFFIX}"
            fs, inner = self._at(self.path)
            if "/" not in inner.rstrip("/"):
                whole = "the whole disk" if fs is None else "a whole bucket"
                raise UsageError(
                    f"The output {os.fspath(path)} is {whole}, so the record of the run cannot be stored beside it. "
                    "Write to a folder in it, or choose a place for the record with --record (record_path=…).",
                    path=self.path,
                )

    def __repr__(self) -> str:
        return f"RunFolder({self.path!r})"

    # --- paths ---

    def join(self, relative: str) -> str:
        """The full path of a file, given its name in a manifest.

        Raises:
            VerificationError: The path leads out of the folder.
        """
        if "\\" in relative or "\0" in relative or not {"", ".", ".."}.isdisjoint(relative.split("/")):
            raise VerificationError(
                f"The path {relative!r} in the record of {self.path} leads out of the folder. The record was tampered "
                "with; do not trust this output.",
                path=relative,
            )
        first, _, rest = relative.partition("/")
        if first == RECORD_FOLDER:
            return f"{self.record}/{rest}"
        return self.path if relative == f"output{self.ending}" else f"{self.path}/{relative}"

    def relative(self, path: str) -> str:
        """The name in a manifest of a file of the output or of the record."""
        if path.startswith(f"{self.record}/"):
            return f"{RECORD_FOLDER}{path[len(self.record) :]}"
        # A file may be renamed together with its record.
        return path[len(self.path) + 1 :] if self.ending is None else f"output{self.ending}"

    def shown(self, relative: str) -> str:
        """The name of such a file in messages: its folder's name and the rest."""
        first, _, rest = relative.partition("/")
        if first == RECORD_FOLDER:
            return f"{posixpath.basename(self.record)}/{rest}"
        return relative if self.ending is None else posixpath.basename(self.path)

    def record_path(self, kind: str, partition: str | None = None) -> str:
        """The path of a file in the record.

        Args:
            kind: A key of `RECORD_FILES` or `PARTITION_FILES`, `manifest` or `staging`.
            partition: The id of the partition; without it, the path of a per-partition file is its folder.
        """
        place = _PLACES[kind]
        if partition is not None:
            place = place.format(safe_name(partition))
        elif "/" in place:
            place = place.partition("/")[0]
        return f"{self.record}/{place}"

    def data_path(self, partition_id: str, extension: str) -> str:
        """The output file of a partition; `extension` with its dot, after `~1` for the second of several files."""
        if _UNSAFE.search(extension) or (extension and not extension.startswith((".", "~"))):
            raise UsageError(
                f"The extension {extension!r} must begin with a dot and must not contain a slash.", value=extension
            )
        return f"{self.path}/{safe_name(partition_id)}{extension}" if self.ending is None else self.path

    # --- work in progress ---

    def new_staging(self) -> str:
        """The name of a folder for work in progress that only this process uses; created on first write."""
        try:
            with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
                start = int(file.read().rpartition(")")[2].split()[19])  # as returned by `process_start_time`
        except OSError:
            start = process_start_time(os.getpid()) or 0
        return self.record_path("staging", f"{_HOST}-{os.getpid()}-{start}-{uuid.uuid4().hex[:8]}")

    def sweep(self, own: str | None = None) -> list[str]:
        """Remove temporary files and staging folders of ended processes of this machine; returns the folders' names.

        Staging folders of other machines are left alone: it is unknown whether they are still in use.

        Args:
            own: A staging folder of this process that is no longer needed; removed first.
        """
        if own is not None:
            self.remove_tree(own)
        staging = self.record_path("staging")
        if is_local(staging):
            names = set(os.listdir(staging)) if os.path.isdir(staging) else set()
        else:
            names = {name.split("/", 1)[0] for name in self.walk(staging)}
        gone = []
        for name in sorted(names):
            if _abandoned(name):
                self.remove_tree(f"{staging}/{name}")
                gone.append(name)
        # Other stores publish on completion and have no temporary files. Data files are in the folder itself.
        if is_local(staging):
            with contextlib.suppress(OSError):
                os.rmdir(staging)
            sweep_temporaries(self.record)
        if is_local(self.path):
            sweep_temporaries(self.data_folder, recursive=False)
        return gone

    # --- file operations ---

    def _at(self, path: str) -> tuple[Any, str]:
        """The file system of a path (None for this machine), and the path in its form."""
        return (None, path) if is_local(path) else filesystem(path, self.storage_options)

    def _is_folder(self, path: str, *, empty: bool = True) -> bool:
        """Whether a folder exists; with `empty=False` only if it is not empty."""
        fs, inner = self._at(path)
        if fs is None:
            return os.path.isdir(path) and (empty or bool(os.listdir(path)))
        with store_errors(self.path):  # the first request to the store
            fs.invalidate_cache()
            return bool(fs.isdir(inner))

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFoundError: There is none.
        """
        fs, inner = self._at(path)
        if fs is not None:
            return cast(bytes, fs.cat_file(inner))
        with open(path, "rb") as file:
            return file.read()

    def read_many(self, paths: list[str]) -> dict[str, bytes | Exception]:
        """The bytes of many files of one folder, or for each the reason why it could not be read."""
        found: dict[str, bytes | Exception] = {}
        if paths and not is_local(paths[0]):
            inner = {path: self._at(path)[1] for path in paths}
            got = self._at(paths[0])[0].cat(list(inner.values()), on_error="return")
            if not isinstance(got, dict):
                got = {inner[paths[0]]: got}
            return {path: got.get(name, FileNotFoundError(path)) for path, name in inner.items()}
        for path in paths:
            try:
                found[path] = self.read(path)
            except OSError as error:
                found[path] = error
        return found

    def write(self, path: str, data: bytes) -> None:
        """Write `data` to `path` atomically."""
        write_bytes_atomic(path, data, storage_options=self.storage_options)

    def open(self, path: str) -> BinaryIO:
        """A seekable file for reading."""
        fs, inner = self._at(path)
        return open(path, "rb") if fs is None else cast(BinaryIO, fs.open(inner, "rb"))

    def exists(self, path: str) -> bool:
        """Whether a file exists."""
        fs, inner = self._at(path)
        return os.path.isfile(path) if fs is None else bool(fs.isfile(inner))

    def size(self, path: str) -> int | None:
        """The bytes of a file; None if there is none."""
        fs, inner = self._at(path)
        try:
            return os.stat(path).st_size if fs is None else int(fs.info(inner)["size"])
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> bool:
        """Remove a file; False if there was none."""
        fs, inner = self._at(path)
        with output_errors(path):
            try:
                os.unlink(path) if fs is None else fs.rm_file(inner)
            except FileNotFoundError:
                return False
        return True

    def remove_profile(self) -> None:
        """Remove the profile of an earlier run from the record: it does not describe a later one."""
        for kind in ("profile", "profile_page"):
            self.remove(self.record_path(kind))

    def remove_tree(self, path: str) -> None:
        """Remove a folder below the output or its record with its contents; does nothing if there is none."""
        if not path.startswith((f"{self.record}/", f"{self.path}/")):
            raise OutputError(
                f"{path} is not a folder of {self.path} or of its record, so it is not removed.", path=path
            )
        self.join(self.relative(path))
        fs, inner = self._at(path)
        if fs is None:
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                fs.rm(inner, recursive=True)

    def move(self, source: str, target: str) -> None:
        """Rename a staged file (or copy and delete if the store has no rename), replacing what is at `target`.

        Raises:
            OutputError: The file is gone, or `target` cannot be written.
        """
        fs, inner = self._at(target)
        try:
            if fs is None:
                os.makedirs(os.path.dirname(target), exist_ok=True)
                try:
                    os.replace(source, target)
                except OSError as error:
                    if isinstance(error, FileNotFoundError) or not os.path.isfile(source):
                        raise
                    # Staged on another disk: copy beside the target first, so that it still appears in one step.
                    beside = temporary_path(target)
                    shutil.copyfile(source, beside)
                    os.replace(beside, target)
                    os.unlink(source)
            elif is_local(source):
                fs.put_file(local_path(source), inner)
                os.unlink(local_path(source))
            else:
                with contextlib.suppress(FileNotFoundError):
                    fs.rm_file(inner)
                fs.mv(self._at(source)[1], inner)
        except FileNotFoundError as error:
            raise OutputError(
                f"The staged file {source!r} is gone, so {target!r} could not be put in place. Something deleted "
                "files from the staging folder during the run; run again to redo the partition.",
                path=source,
            ) from error
        except OSError as error:
            raise output_error(target, error) from error
        except Exception as error:  # store libraries have their own exception classes
            if fs is None:
                raise
            raise store_error(target, error) from error

    def walk(self, folder: str | None = None) -> dict[str, int]:
        """All files below `folder` by their path relative to it, with their sizes.

        Without `folder`, those of the output and of its record, by their names in a manifest.
        """
        if folder is None:
            found = self.walk(self.path) if self.ending is None else {}
            size = None if self.ending is None else self.size(self.path)
            if size is not None:
                found[self.relative(self.path)] = size
            for name, size in self.walk(self.record).items():
                found[f"{RECORD_FOLDER}/{name}"] = size
            return dict(sorted(found.items()))
        found = {}
        fs, inner = self._at(folder)
        if fs is not None:
            fs.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                for name, info in fs.find(inner, detail=True).items():
                    found[name[len(inner) :].lstrip("/")] = int(info.get("size") or 0)
            return dict(sorted(found.items()))
        pending = [folder]
        while pending:
            try:
                with os.scandir(pending.pop()) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            pending.append(entry.path)
                        else:
                            found[entry.path[len(folder) + 1 :]] = entry.stat(follow_symlinks=False).st_size
            except FileNotFoundError:
                continue
        return dict(sorted(found.items()))

    # --- what may exist ---

    def has_run(self) -> bool:
        """Whether a run has started here, even if it committed nothing."""
        if self.exists(self.record_path("plan")) or self.exists(self.record_path("run")):
            return True
        return bool(self.walk(self.record_path("manifest")))

    def require_run(self) -> None:
        """Make sure that a run has written here.

        Raises:
            InputNotFoundError: There is no record of a run.
        """
        if self.has_run():
            return
        if self.exists(self.record_path("workflow")):
            raise InputNotFoundError(
                f"{self.path} holds a list of duplicates, not documents. Run the "
                "deduplication without --list-only (perform_removal=True), or remove the listed documents "
                "(TextDuplicatesRemovalWorkflow).",
                path=self.path,
            )
        if is_local(self.path) and not os.path.lexists(self.path):
            found = f"There is no {self.path}"
        elif self.path.endswith(RECORD_SUFFIX):
            found = f"{self.path} is named like the record of a run, not like its output"
        else:
            found = f"{self.path} is not the output of a run: there is no record in {self.record}"
        raise InputNotFoundError(
            f"{found}. Pass the output of a run, and --record (record_path=…) if its record is elsewhere.",
            path=self.path,
        )


def step_folder(path: str, storage_options: StorageOptions = None) -> RunFolder:
    """The folder of a step of a workflow: its record is inside it, so that a step can be deleted as a whole."""
    return RunFolder(path, storage_options, record_path=f"{path.rstrip('/')}/{RECORD_FOLDER}")


def list_folder(output: RunFolder, name: str) -> RunFolder:
    """The folder of a list of documents in the output of a workflow: its record is inside that of the output."""
    folder = RunFolder(output.join(name), output.storage_options)
    if folder.record.endswith(f"/{RECORD_FOLDER}"):
        return folder
    return RunFolder(folder.path, output.storage_options, record_path=f"{output.record}/{name}")


def _plain(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    return local_path(text) if is_local(text) else text.rstrip("/")


def safe_name(partition_id: str) -> str:
    """`partition_id`, after checking that as a file name it stays in its folder.

    Raises:
        UsageError: It would not.
    """
    bad = (
        not partition_id
        or _UNSAFE.search(partition_id)
        or partition_id.startswith((".", RECORD_FOLDER))
        or len(partition_id.encode("utf-8", "surrogatepass")) > _MAX_NAME_BYTES
    )
    if bad:
        raise UsageError(
            f"The partition id {partition_id!r} cannot name a file: it must be 1 to {_MAX_NAME_BYTES} bytes, without "
            f"slashes or control characters, and not begin with a dot or {RECORD_FOLDER!r}.",
            partition=partition_id,
        )
    return partition_id


def _abandoned(name: str) -> bool:
    match = _STAGING.fullmatch(name)
    if match is None or match["host"] != _HOST:
        return False
    pid = int(match["pid"])
    start = process_start_time(pid)
    if start is not None:
        return start != int(match["start"])
    try:
        os.kill(pid, 0)
    except PermissionError:  # another user's process, which the system hides
        return False
    except ProcessLookupError:
        pass
    return True
