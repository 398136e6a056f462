"""Arrow tables that several processes read from the same memory: files in a folder that only its owner uses.

The folder is in `/dev/shm` (memory) if that is large enough, otherwise in the temporary folder (page cache). Its name
contains the run, the driver and the driver's start time, so that a later run can distinguish leftovers of a dead driver
from files of a living one. A reader maps the file; the mapping outlives the name, so a segment can be released as soon
as its last reader has it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gristmill.errors import OutputError, UsageError
from gristmill.observe.memory import process_start_time

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["SharedFolder", "SharedSegment", "sweep"]

_MEMORY_BASE = Path("/dev/shm")  # noqa: S108 (the system's shared memory; our folder in it is private)
# Containers often have 64 MB there, which one batch can fill.
_WORTHWHILE_BYTES = 512 << 20
_OWNER_FILE = ".owner"
_OWNED_NAME = re.compile(r".+-(?P<pid>\d+)-(?P<start>\d+)")
_SEGMENT_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.=-]*")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class SharedSegment:
    """One table in shared memory; a few bytes to send, whatever the table's size.

    Attributes:
        path: The file.
        nbytes: Its size.
    """

    path: str
    nbytes: int


def _bases() -> list[Path]:
    """Parent folders for shared folders, best first."""
    bases = [_MEMORY_BASE] if _MEMORY_BASE.is_dir() else []
    return [*bases, Path(tempfile.gettempdir())]


def _user_folder(base: Path) -> Path:
    """Our private folder below `base`, created if needed.

    Raises:
        OSError: Not possible, or another process's file, folder or link has that name.
    """
    folder = base / f"gristmill-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "the name is taken by something else", str(folder))
    if stat.S_IMODE(found.st_mode) != 0o700:
        folder.chmod(0o700)
    return folder


def _free_bytes(base: Path) -> int:
    found = os.statvfs(base)
    return found.f_bavail * found.f_frsize


def sweep(*, bases: Iterable[Path] | None = None) -> list[Path]:
    """Remove the folders whose owners are dead, and nothing else; returns what was removed.

    An owner is dead when its process is gone (or its number now belongs to a process with another start time) and its
    lock on the folder is free. The lock also protects a living owner in another container that shares the same
    memory.
    """
    removed: list[Path] = []
    for base in _bases() if bases is None else bases:
        parent = base / f"gristmill-{os.getuid()}"
        try:
            found = parent.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            entries = list(os.scandir(parent))
        except OSError:
            continue
        for entry in entries:
            named = _OWNED_NAME.fullmatch(entry.name)
            if named is None or not entry.is_dir(follow_symlinks=False):
                continue
            if process_start_time(int(named["pid"])) == int(named["start"]) or _is_locked(Path(entry.path)):
                continue
            shutil.rmtree(entry.path, ignore_errors=True)
            removed.append(Path(entry.path))
    return removed


def _is_locked(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / _OWNER_FILE, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


class SharedFolder:
    """The shared-memory files of one run.

    The driver creates it; workers attach to its `paths` and write; the driver adopts what they announce, passes it on
    and releases it. Only the driver counts: `nbytes` is what it has written or adopted and not released.
    """

    def __init__(self, paths: Iterable[str | os.PathLike[str]], *, lock: int | None = None) -> None:
        self.paths = tuple(os.fspath(path) for path in paths)
        self._lock_descriptor = lock
        self._owner = os.getpid() if lock is not None else None
        self._held: dict[str, int] = {}
        self._mutex = threading.Lock()

    @classmethod
    def create(
        cls, run_id: str, *, base: Path | None = None, worthwhile_bytes: int = _WORTHWHILE_BYTES
    ) -> SharedFolder:
        """A new private folder for the run `run_id`, in memory if there is room.

        Args:
            run_id: Letters, digits, `_`, `.`, `=` and `-`.
            base: Parent folder, instead of `/dev/shm` or the temporary folder.
            worthwhile_bytes: Minimum free space for `/dev/shm` to be used.

        Raises:
            OutputError: No location is writable.
        """
        if not _SEGMENT_NAME.fullmatch(run_id):
            raise UsageError(
                f"A run id of {run_id!r} is not a valid folder name; use letters, digits, _ and -.", run_id=run_id
            )
        name = f"{run_id}-{os.getpid()}-{process_start_time(os.getpid())}"
        tried: list[str] = []
        for place in [base] if base is not None else _bases():
            try:
                if base is None and place == _MEMORY_BASE and _free_bytes(place) < worthwhile_bytes:
                    tried.append(f"{place}: less than {worthwhile_bytes >> 20} MB free")
                    continue
                folder = _user_folder(place) / name
                folder.mkdir(mode=0o700)
                lock = os.open(
                    folder / _OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
                )
            except FileExistsError as error:
                raise UsageError(
                    f"This process already has a shared folder for the run {run_id!r}.", run_id=run_id
                ) from error
            except OSError as error:
                tried.append(f"{place}: {error.strerror}")
                continue
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            paths = [folder]
            if base is None and place == _MEMORY_BASE:
                # Created only if the memory fills up.
                paths.append(Path(tempfile.gettempdir()) / f"gristmill-{os.getuid()}" / name)
            return cls(paths, lock=lock)
        raise OutputError(
            f"No folder for shared data could be created ({'; '.join(tried)}). "
            "Free some space there, or set TMPDIR to a writable folder.",
            tried=tried,
        )

    @classmethod
    def attach(cls, paths: Iterable[str]) -> SharedFolder:
        """Open the same folder in a worker, which can write and read but never removes the folder."""
        return cls(paths)

    @property
    def nbytes(self) -> int:
        """Bytes written or adopted here and not yet released; for an attached folder, only adopted bytes."""
        return sum(self._held.values())

    def write_table(self, table: pa.Table, name: str) -> SharedSegment:
        """Write `table` under `name` (new in this folder) for others to map.

        Raises:
            OutputError: Neither shared memory nor the temporary folder has enough space.
        """
        segment = self._write(name, lambda path: _write_table(table, path), table.nbytes)
        if self._owner is not None:
            self.adopt(segment)  # a worker's file is adopted by the driver and never released by the worker itself
        return segment

    def write_bytes(self, data: bytes, name: str) -> SharedSegment:
        """Write `data` under `name` (new in this folder) for one reader, who releases it; it is not counted.

        Raises:
            OutputError: Neither shared memory nor the temporary folder has enough space.
        """
        return self._write(name, lambda path: _write_bytes(data, path), len(data))

    def _write(self, name: str, write: Callable[[str], int], nbytes: int) -> SharedSegment:
        if not _SEGMENT_NAME.fullmatch(name):
            raise UsageError(f"Invalid segment name {name!r}; use letters, digits, _ and -.", name=name)
        full: OSError | None = None
        for at, folder in enumerate(self.paths):
            path = os.path.join(folder, name)
            try:
                if at > 0:
                    _user_folder(Path(folder).parents[1])
                    os.makedirs(folder, mode=0o700, exist_ok=True)
                return SharedSegment(path, write(path))
            except OSError as error:
                if error.errno == errno.EEXIST:
                    raise UsageError(f"There is already a segment named {name!r}.", name=name) from error
                with contextlib.suppress(OSError):
                    os.unlink(path)
                if error.errno not in _FULL:
                    raise OutputError(f"Shared data could not be written to {path}: {error}.", path=path) from error
                full = error
        raise OutputError(
            f"There is no room for {nbytes:,} bytes of shared data in {' or '.join(self.paths)}. "
            "Free some space there, set TMPDIR to a larger folder, or use a smaller `blocksize`.",
            paths=self.paths,
            nbytes=nbytes,
        ) from full

    def adopt(self, segment: SharedSegment) -> None:
        """Count a segment that another process wrote; this process is now responsible for releasing it."""
        with self._mutex:
            self._held[segment.path] = segment.nbytes

    @staticmethod
    def read_table(segment: SharedSegment) -> pa.Table:
        """Map the table without copying; it stays valid after the segment is released."""
        import pyarrow as pa

        with pa.memory_map(segment.path, "r") as source, pa.ipc.open_stream(source) as reader:
            return reader.read_all()

    def release(self, segment: SharedSegment) -> None:
        """Remove the file; its memory is freed when the last mapping is gone. Releasing twice does nothing."""
        with self._mutex:
            self._held.pop(segment.path, None)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(segment.path)

    def discard(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        """Remove the segments whose name begins with `prefix`, for a writer that died before announcing them.

        Args:
            prefix: Prefix of the names of the writer's segments.
            keep: Paths to keep.

        Returns:
            The number of removed segments.
        """
        if not prefix:
            raise UsageError("An empty prefix would remove every segment; use `close` for that.")
        count = 0
        for folder in self.paths:
            with contextlib.suppress(FileNotFoundError):
                for entry in list(os.scandir(folder)):
                    if entry.name.startswith(prefix) and entry.path not in keep:
                        self.release(SharedSegment(entry.path, 0))
                        count += 1
        return count

    def close(self) -> None:
        """Remove the folder and its contents (only in the process that created it)."""
        if self._owner != os.getpid() or self._lock_descriptor is None:
            return
        for folder in self.paths:
            shutil.rmtree(folder, ignore_errors=True)
            # Other processes of this user may have folders beside it.
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(folder))
        os.close(self._lock_descriptor)
        self._lock_descriptor = None
        self._held.clear()

    def __enter__(self) -> SharedFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _write_table(table: pa.Table, path: str) -> int:
    import pyarrow as pa

    # Created first and only if new, so that Arrow certainly opens our own file.
    os.close(_create(path))
    with pa.OSFile(path, "wb") as sink:
        # The stream format, because dictionaries may differ from chunk to chunk.
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return int(sink.tell())


def _write_bytes(data: bytes, path: str) -> int:
    with open(_create(path), "wb") as file:
        return file.write(data)


def _create(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
