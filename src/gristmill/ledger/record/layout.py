"""The output folder of a run, on any fsspec store: which file lies where, and what may be there already.

Data files lie in the output folder itself, everything else below `_gristmill/`, which readers skip. Nothing else in the
package knows these names.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import socket
import uuid
from collections.abc import Sequence
from typing import Any, BinaryIO, cast

import psutil

from gristmill.errors import InputNotFoundError, OutputError, OutputExistsError, UsageError, VerificationError
from gristmill.storage.atomic import output_error, output_errors, sweep_temporaries, temporary_path, write_bytes_atomic
from gristmill.storage.files import StorageOptions, filesystem, is_local, local_path
from gristmill.storage.partitions import Partition

RECORD_FOLDER = "_gristmill"
RECORD_FILES = {
    "run": "run.json",
    "plan": "plan.json",
    "recipe": "recipe.yaml",
    "report": "report.html",
    "workflow": "deduplication.json",
    "left_out": "left_out.jsonl",
    "stdin": "stdin.jsonl",
}
"""Files in the record folder that belong to a run as a whole."""
PARTITION_FILES = {
    "ledger": "ledger/{}.parquet",
    "changes": "ledger/{}.changes.parquet",
    "scores": "ledger/{}.scores.parquet",
    "ids": "index/{}.ids",
    "urls": "index/{}.urls",
    "quarantine": "quarantine/{}.jsonl",
}
"""Files that the record of a partition may consist of, besides its manifest entry."""
STEPS_FOLDER = "steps"
"""The folder in the record folder where a workflow keeps the runs of its earlier steps, each with its own record."""

_PLACES = {
    **RECORD_FILES,
    **PARTITION_FILES,
    "rows": "index/{}.rows",  # only in the steps of a longer run
    "manifest": "manifest/{}.json",
    "staging": "staging/{}",
}
_UNSAFE = re.compile(r"[/\\\x00-\x1f\x7f]")
_MAX_NAME_BYTES = 230  # leaves room for the endings above within the 255 of most file systems
_STAGING = re.compile(r"(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]+")
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]


class RunFolder:
    """One output folder: its paths, the file operations that a record needs, and the rules for what may lie there.

    Nothing is created until something is written.

    Args:
        path: A local path or a URL.
        storage_options: Handed to fsspec for URLs.

    Example:
        >>> RunFolder("memory://out").record_path("ledger", "part-0")
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
        if "\\" in relative or "\0" in relative or not {"", ".", ".."}.isdisjoint(relative.split("/")):
            raise VerificationError(
                f"The path {relative!r} in the record of {self.path} leads out of the folder. The record was tampered "
                "with; do not trust this output.",
                path=relative,
            )
        return f"{self.path}/{relative}"

    def relative(self, path: str) -> str:
        """The path below the output folder of a full path that this object gave."""
        return path[len(self.path) + 1 :]

    def record_path(self, kind: str, partition: str | None = None) -> str:
        """The path of a file in the record.

        Args:
            kind: A key of `RECORD_FILES` or `PARTITION_FILES`, `manifest` or `staging`.
            partition: The id of the partition; without it, what every partition has is the folder of these files.
        """
        place = _PLACES[kind]
        if partition is not None:
            place = place.format(safe_name(partition))
        elif "/" in place:
            place = place.partition("/")[0]
        return f"{self.path}/{RECORD_FOLDER}/{place}"

    def data_path(self, partition_id: str, extension: str) -> str:
        """The output file of a partition; `extension` with its dot."""
        if _UNSAFE.search(extension) or (extension and not extension.startswith(".")):
            raise UsageError(f"The extension {extension!r} must begin with a dot and hold no folder.", value=extension)
        return f"{self.path}/{safe_name(partition_id)}{extension}"

    # --- work in progress ---

    def new_staging(self) -> str:
        """A name for a folder of work in progress that only this process uses; made by whoever writes into it."""
        start = int(psutil.Process().create_time() * 1000)
        return self.record_path("staging", f"{_HOST}-{os.getpid()}-{start}-{uuid.uuid4().hex[:8]}")

    def sweep(self, own: str | None = None) -> list[str]:
        """Remove temporary files and staging folders of ended processes of this machine; returns the folders' names.

        What another machine stages is left alone: nothing tells whether it is still at work.

        Args:
            own: A staging folder of this process that is no longer needed; it goes first.
        """
        if own is not None:
            self.remove_tree(own)
        staging = self.record_path("staging")
        if self.local:
            names = set(os.listdir(staging)) if os.path.isdir(staging) else set()
        else:
            names = {name.split("/", 1)[0] for name in self.walk(staging)}
        gone = []
        for name in sorted(names):
            if _abandoned(name):
                self.remove_tree(f"{staging}/{name}")
                gone.append(name)
        if self.local:
            with contextlib.suppress(OSError):
                os.rmdir(staging)
            # Other stores publish on completion and have no temporaries. Data files lie in the folder itself.
            sweep_temporaries(self.path, recursive=False)
            sweep_temporaries(f"{self.path}/{RECORD_FOLDER}")
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

    def write(self, path: str, data: bytes) -> None:
        """Put `data` at `path` in one step."""
        write_bytes_atomic(path, data, storage_options=self.storage_options)

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
        with output_errors(path):
            try:
                os.unlink(path) if self.local else self._fs.rm_file(self.inner(path))
            except FileNotFoundError:
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
        """Rename a staged file (or where the store has no rename: copy and delete), replacing what is at `target`.

        Raises:
            OutputError: The file is gone, or `target` cannot be written.
        """
        try:
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
        except FileNotFoundError as error:
            raise OutputError(
                f"The staged file {source!r} is gone, so {target!r} could not be put in place. Something cleaned the "
                "staging folder during the run; run again to redo the partition.",
                path=source,
            ) from error
        except OSError as error:
            raise output_error(target, error) from error

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

    # --- what may be there ---

    def has_run(self) -> bool:
        """Whether a run has begun here, even if it came to nothing."""
        if self.exists(self.record_path("plan")) or self.exists(self.record_path("run")):
            return True
        return bool(self.walk(self.record_path("manifest")))

    def require_run(self) -> None:
        """Make sure that a run has written here.

        Raises:
            InputNotFoundError: There is no record of a run.
        """
        if self.local and not os.path.isdir(self.path):
            found = f"{self.path} is a file" if os.path.exists(self.path) else f"There is no {self.path}"
            raise InputNotFoundError(f"{found}. Pass the output folder of a run.", path=self.path)
        if self.has_run():
            return
        if self.exists(self.record_path("workflow")):
            raise InputNotFoundError(
                f"{self.path} holds a list of duplicates, and no documents that a run has written. Run the "
                "deduplication without --list-only (perform_removal=True), or remove what is listed "
                "(TextDuplicatesRemovalWorkflow).",
                path=self.path,
            )
        raise InputNotFoundError(
            f"{self.path} is not the output of a run: there is no {RECORD_FOLDER}/ in it. Pass the output folder of a "
            "run.",
            path=self.path,
        )

    def check_usable(self, *, write: bool = True) -> None:
        """Fail now, and not after the first partition, if this cannot be an output folder.

        Args:
            write: Also try to write a file.

        Raises:
            OutputError: The path is a file or goes through one, or nothing can be written.
        """
        place = self.path
        while self.local and not os.path.lexists(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        if self.local and not os.path.isdir(place):
            raise OutputError(
                f"The output folder {self.path} cannot be made: {place} is a file. Check the output path.",
                path=self.path,
            )
        if not write:
            return
        probe = f"{self.path}/{RECORD_FOLDER}/.probe"
        try:
            self.write(probe, b"")
            self.remove(probe)
        except OutputError as error:
            raise OutputError(
                f"The output folder {self.path} cannot be used. {error}", path=self.path, errno=error.errno
            ) from error
        except OSError as error:
            raise OutputError(
                f"Cannot write to {self.path}: {error.strerror or error}. Check the path and its permissions.",
                path=self.path,
            ) from error

    def check_apart(self, partitions: Sequence[Partition], searched: Sequence[str]) -> None:
        """Make sure that an output and its input are not mixed up.

        Args:
            partitions: The input.
            searched: The folders in which input files are looked for.

        Raises:
            OutputError: The output holds files of the input, which it could replace, or lies where input files are
                looked for, so that the next run would take it for input.
        """
        root = self.path.rstrip("/")
        for partition in partitions:
            for piece in partition.ranges:
                if _is_read_below(piece.path, root):
                    raise OutputError(
                        f"The output folder {root} holds the input file {piece.path}. Write to another folder.",
                        path=root,
                    )
        for path in searched:
            if _is_read_below(root, path.rstrip("/")):
                raise OutputError(
                    f"The output folder {root} lies inside the input folder {path}, so that the next run would read "
                    "it as input. Write beside the input, or name the input files by a pattern that leaves the output "
                    "out.",
                    path=root,
                )

    def check_strangers(self, mode: str, extension: str, partitions: Sequence[Partition]) -> None:
        """Refuse to replace files that no run has written, unless the writer is told to.

        Args:
            mode: That of the writer.
            extension: The end of its file names.
            partitions: What will be written.

        Raises:
            OutputExistsError: There are some.
        """
        if mode == "overwrite" or self.has_run():
            return
        there = [name for name in self.walk() if not name.startswith(f"{RECORD_FOLDER}/")]
        # Asked again: another process may have begun meanwhile, and it notes its plan before it writes anything.
        if not there or self.has_run():
            return
        if mode == "error":
            raise OutputExistsError(
                f"The output folder {self.path} is not empty (it holds {there[0]!r}), and the writer has mode='error'. "
                "Write to another folder, or use mode='ignore' to write beside what is there.",
                path=self.path,
            )
        ours = {self.relative(self.data_path(partition.id, extension)) for partition in partitions}
        replaced = sorted(ours.intersection(there))
        if replaced:
            more = f" and {len(replaced) - 1} more" if len(replaced) > 1 else ""
            raise OutputExistsError(
                f"The output folder {self.path} holds {replaced[0]!r}{more}, written by no run, and the output would "
                "replace it. Write to another folder, move it away, or use the writer's mode='overwrite'.",
                path=self.path,
            )


def _is_read_below(path: str, folder: str) -> bool:
    """Whether a reader of `folder` would read `path`: it lies there, and no name on the way is one that it skips."""
    below = path.removeprefix(f"{folder}/")
    return below != path and not any(name.startswith(("_", ".")) for name in below.split("/"))


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


def _abandoned(name: str) -> bool:
    match = _STAGING.fullmatch(name)
    if match is None or match["host"] != _HOST:
        return False
    try:
        return int(psutil.Process(int(match["pid"])).create_time() * 1000) != int(match["start"])
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False
