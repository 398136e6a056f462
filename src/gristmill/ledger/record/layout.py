"""The folder of a run: where its data, manifest, ledger, index and quarantine lie, on any fsspec store.

Data files lie in the output folder itself, everything else below `_gristmill/`, which readers pass over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import uuid
from typing import Any, BinaryIO, cast

import psutil

from gristmill.errors import InputNotFoundError, UsageError, VerificationError
from gristmill.storage.atomic import output_errors, sweep_temporaries, temporary_path, write_bytes_atomic
from gristmill.storage.files import StorageOptions, filesystem, is_local, local_path

RECORD_FOLDER = "_gristmill"
KNOWN_RECORDS = ("run.json", "plan.json", "recipe.yaml", "report.html", "deduplication.json")
"""Files directly in the record folder that belong to a run."""
STEPS_FOLDER = "steps"
"""The folder in the record folder where a workflow keeps the runs of its earlier steps, each with its own record."""

_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")
_MAX_NAME_BYTES = 230  # leaves room for the endings below within the 255 of most file systems
_STAGING = re.compile(r"(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]+")


class RunFolder:
    """The paths of one output folder and the few file operations the record of a run needs.

    Nothing is created until something is written.

    Args:
        path: A local path or a URL.
        storage_options: Handed to fsspec for URLs.

    Example:
        >>> RunFolder("memory://out").ledger_file("part-0")
        'memory://out/_gristmill/ledger/part-0.parquet'
    """

    def __init__(self, path: str | os.PathLike[str], storage_options: StorageOptions = None) -> None:
        text = os.fspath(path)
        self.local = is_local(text)
        self.path = local_path(text) if self.local else text.rstrip("/")
        self.storage_options = storage_options
        self._fs: Any = None
        self._root = self.path
        if not self.local:
            self._fs, self._root = filesystem(self.path, storage_options)
            self._root = self._root.rstrip("/")

    def __repr__(self) -> str:
        return f"RunFolder({self.path!r})"

    # --- paths ---

    def join(self, relative: str) -> str:
        """The full path of a file given by its path below the output folder.

        Raises:
            VerificationError: The path leads out of the folder.
        """
        parts = relative.split("/")
        if not relative or "\\" in relative or "\0" in relative or any(part in ("", ".", "..") for part in parts):
            raise VerificationError(
                f"The path {relative!r} in the record of {self.path} leads out of the folder. The record was tampered "
                "with; do not trust this output.",
                path=relative,
            )
        return f"{self.path}/{relative}"

    def relative(self, path: str) -> str:
        """The path below the output folder of a full path that this object gave."""
        return path[len(self.path) + 1 :]

    @property
    def run_file(self) -> str:
        """`run.json`: the record of the last run."""
        return self.join(f"{RECORD_FOLDER}/run.json")

    @property
    def plan_file(self) -> str:
        """`plan.json`: the plan that made this output."""
        return self.join(f"{RECORD_FOLDER}/plan.json")

    @property
    def recipe_file(self) -> str:
        """The recipe that was run, for runs that were made from one."""
        return self.join(f"{RECORD_FOLDER}/recipe.yaml")

    @property
    def manifest_folder(self) -> str:
        """The folder of the manifest entries."""
        return self.join(f"{RECORD_FOLDER}/manifest")

    @property
    def index_folder(self) -> str:
        """The folder of the index files."""
        return self.join(f"{RECORD_FOLDER}/index")

    @property
    def staging_folder(self) -> str:
        """The folder of work in progress."""
        return self.join(f"{RECORD_FOLDER}/staging")

    def data_file(self, partition_id: str, extension: str) -> str:
        """The output file of a partition; `extension` with its dot."""
        if _UNSAFE.search(extension) or (extension and not extension.startswith(".")):
            raise UsageError(f"The extension {extension!r} must begin with a dot and hold no folder.", value=extension)
        return self.join(safe_name(partition_id) + extension)

    def manifest_file(self, partition_id: str) -> str:
        """The manifest entry of a partition."""
        return self._record("manifest", partition_id, ".json")

    def ledger_file(self, partition_id: str) -> str:
        """The decisions on the rows of a partition."""
        return self._record("ledger", partition_id, ".parquet")

    def changes_file(self, partition_id: str) -> str:
        """The changes of the texts of a partition."""
        return self._record("ledger", partition_id, ".changes.parquet")

    def scores_file(self, partition_id: str) -> str:
        """All scores of the rows of a partition."""
        return self._record("ledger", partition_id, ".scores.parquet")

    def ids_file(self, partition_id: str) -> str:
        """The hashes of the ids of a partition's rows."""
        return self._record("index", partition_id, ".ids")

    def urls_file(self, partition_id: str) -> str:
        """The hashes of the URLs of a partition's rows."""
        return self._record("index", partition_id, ".urls")

    def quarantine_file(self, partition_id: str) -> str:
        """The quarantined records of a partition."""
        return self._record("quarantine", partition_id, ".jsonl")

    def record_files(self, partition_id: str) -> list[str]:
        """Every file that the record of a partition may consist of, the manifest entry excepted."""
        makers = (
            self.ledger_file, self.changes_file, self.scores_file, self.ids_file, self.urls_file, self.quarantine_file,
        )  # fmt: skip
        return [make(partition_id) for make in makers]

    def _record(self, kind: str, partition_id: str, ending: str) -> str:
        return self.join(f"{RECORD_FOLDER}/{kind}/{safe_name(partition_id)}{ending}")

    # --- work in progress ---

    def new_staging(self) -> str:
        """A name for a folder of work in progress that only this process uses; made by whoever writes into it."""
        start = int(psutil.Process().create_time() * 1000)
        return f"{self.staging_folder}/{_host()}-{os.getpid()}-{start}-{uuid.uuid4().hex[:8]}"

    def sweep(self) -> None:
        """Remove what dead processes of this machine left behind: staging folders and temporary files."""
        self.sweep_staging()
        if self.local:
            # Other stores publish on completion and have no temporaries. Data files lie in the folder itself.
            sweep_temporaries(self.path, recursive=False)
            sweep_temporaries(self.join(RECORD_FOLDER))

    def sweep_staging(self) -> list[str]:
        """Remove the staging folders of processes of this machine that have ended; returns their names.

        What another machine stages is left alone: nothing tells whether it is still at work.
        """
        names = {name.split("/", 1)[0] for name in self.walk(self.staging_folder)}
        if self.local and os.path.isdir(self.staging_folder):
            names |= set(os.listdir(self.staging_folder))
        gone = [name for name in sorted(names) if _abandoned(name)]
        for name in gone:
            self.remove_tree(f"{self.staging_folder}/{name}")
        if self.local:
            with contextlib.suppress(OSError):
                os.rmdir(self.staging_folder)
        return gone

    # --- file operations ---

    def inner(self, path: str) -> str:
        """`path` as the filesystem object wants it."""
        if path.startswith(self.path):
            return self._root + path[len(self.path) :]
        return filesystem(path, self.storage_options)[1]

    def read(self, path: str) -> bytes:
        """The bytes of a file.

        Raises:
            FileNotFoundError: There is none.
        """
        if self.local:
            with open(path, "rb") as file:
                return file.read()
        return cast(bytes, self._fs.cat_file(self.inner(path)))

    def read_many(self, paths: list[str]) -> dict[str, bytes | Exception]:
        """The bytes of many files, or why one could not be read."""
        if self.local:
            found: dict[str, bytes | Exception] = {}
            for path in paths:
                try:
                    found[path] = self.read(path)
                except OSError as error:
                    found[path] = error
            return found
        if not paths:
            return {}
        got = self._fs.cat([self.inner(path) for path in paths], on_error="return")
        if not isinstance(got, dict):
            got = {self.inner(paths[0]): got}
        return {path: got.get(self.inner(path), FileNotFoundError(path)) for path in paths}

    def write(self, path: str, data: bytes, *, fsync: bool = False) -> None:
        """Put `data` at `path` in one step."""
        write_bytes_atomic(path, data, fsync=fsync, storage_options=self.storage_options)

    def open(self, path: str) -> BinaryIO:
        """A seekable file to read from."""
        if self.local:
            return open(path, "rb")
        return cast(BinaryIO, self._fs.open(self.inner(path), "rb"))

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        return os.path.isfile(path) if self.local else bool(self._fs.isfile(self.inner(path)))

    def size(self, path: str) -> int | None:
        """The bytes of a file; None if there is none."""
        try:
            return os.stat(path).st_size if self.local else int(self._fs.info(self.inner(path))["size"])
        except FileNotFoundError:
            return None

    def remove(self, path: str) -> bool:
        """Remove a file; False if there was none."""
        try:
            with output_errors(path):
                if self.local:
                    os.unlink(path)
                else:
                    self._fs.rm_file(self.inner(path))
        except OSError as error:
            missing = isinstance(error.__cause__, FileNotFoundError)
            if not missing:
                raise
            return False
        return True

    def remove_tree(self, path: str) -> None:
        """Remove a folder below the output folder with all that is in it; nothing happens when there is none."""
        self.join(self.relative(path))
        if self.local:
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm(self.inner(path), recursive=True)

    def move(self, source: str, target: str) -> None:
        """Rename a file (or where the store has no rename: copy and delete), replacing what is at `target`."""
        with output_errors(target):
            if self.local:
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
                self._fs.put_file(local_path(source), self.inner(target))
                os.unlink(local_path(source))
            else:
                with contextlib.suppress(FileNotFoundError):
                    self._fs.rm_file(self.inner(target))
                self._fs.mv(self.inner(source), self.inner(target))

    def walk(self, folder: str | None = None) -> dict[str, int]:
        """All files below `folder` (by default the output) by their path relative to it, with their sizes."""
        start = folder or self.path
        found: dict[str, int] = {}
        if self.local:
            pending = [start]
            while pending:
                here = pending.pop()
                try:
                    with os.scandir(here) as entries:
                        for entry in entries:
                            if entry.is_dir(follow_symlinks=False):
                                pending.append(entry.path)
                            else:
                                found[entry.path[len(start) + 1 :]] = entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
        else:
            self._fs.invalidate_cache()
            inner = self.inner(start)
            with contextlib.suppress(FileNotFoundError):
                for name, info in self._fs.find(inner, detail=True).items():
                    found[name[len(inner) :].lstrip("/")] = int(info.get("size") or 0)
        return dict(sorted(found.items()))

    def require_run(self) -> None:
        """Make sure that a run has written here.

        Raises:
            InputNotFoundError: There is no record of a run.
        """
        if is_local(self.path) and not os.path.isdir(local_path(self.path)):
            found = f"{self.path} is a file" if os.path.exists(local_path(self.path)) else f"There is no {self.path}"
            raise InputNotFoundError(f"{found}. Give the folder that a writer was told to write to.", path=self.path)
        if self.exists(self.run_file) or self.exists(self.plan_file) or self.walk(self.manifest_folder):
            return
        if self.exists(self.join(f"{RECORD_FOLDER}/deduplication.json")):
            raise InputNotFoundError(
                f"{self.path} holds a list of duplicates, and no documents that a run has written. Run the "
                "deduplication without --list-only (perform_removal=True), or remove what is listed "
                "(TextDuplicatesRemovalWorkflow).",
                path=self.path,
            )
        raise InputNotFoundError(
            f"{self.path} is not the output of a run: there is no {RECORD_FOLDER}/ in it. Give the folder that a "
            "writer was told to write to.",
            path=self.path,
        )


def safe_name(partition_id: str) -> str:
    """`partition_id`, once it is clear that as a file name it stays in its folder.

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


def _host() -> str:
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


def _abandoned(name: str) -> bool:
    match = _STAGING.fullmatch(name)
    if match is None or match["host"] != _host():
        return False
    try:
        return int(psutil.Process(int(match["pid"])).create_time() * 1000) != int(match["start"])
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
