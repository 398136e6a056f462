"""Files that appear complete or not at all, with a hash of their contents.

Locally a file is written under a temporary name in its own folder and renamed; other stores publish on completion.
Temporary names contain a run token, this machine and the process, so that processes never collide and leftovers of dead
processes are distinguishable from work in progress.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Self

import xxhash

from gristmill.errors import OutputError, UsageError
from gristmill.figures import format_size
from gristmill.storage.files import StorageOptions, filesystem, is_local, local_path, store_error, store_errors

TEMPORARY_PREFIX = ".tmp-"

_TEMPORARY = re.compile(r"\.tmp-(?P<token>[A-Za-z0-9]+)-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-\d+-.*", re.DOTALL)
_COPY_BYTES = 1 << 20
_WITH_BUCKETS = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az")
_HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
_counter = itertools.count()


def temporary_path(path: str, *, token: str = "x") -> str:
    """An unused name in the folder of the local `path`."""
    if not re.fullmatch(r"[A-Za-z0-9]+", token):
        raise UsageError(f"token={token!r} must consist of letters and digits.", value=token)
    folder, name = os.path.split(path)
    ending = name.encode("utf-8", "surrogateescape")[-120:].decode("utf-8", "ignore")
    return os.path.join(folder, f"{TEMPORARY_PREFIX}{token}-{_HOST}-{os.getpid()}-{next(_counter)}-{ending}")


@contextlib.contextmanager
def output_errors(path: str) -> Iterator[None]:
    """Turn operating system errors while writing `path` into an OutputError that says what to do."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise output_error(path, error) from error


def output_error(path: str, error: OSError) -> OutputError:
    """The OutputError for `error`, with the free space if the disk is full."""
    facts: dict[str, Any] = {"path": path, "errno": error.errno}
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = _free_bytes(path)
        facts["free_bytes"] = free
        known = "" if free is None else f"; {format_size(free)} are free there"
        kind = "the disk is full" if error.errno == errno.ENOSPC else "the quota is used up"
        text = f"Could not write {path!r}: {kind}{known}. Free some space or choose another output path."
    elif error.errno == errno.EFBIG:
        text = (
            f"Could not write {path!r}: it exceeds the maximum file size here (see `ulimit -f` and the limits of the "
            "file system). Raise that limit, or split the input into smaller partitions with blocksize."
        )
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        text = f"Could not write {path!r}: {error.strerror}. Grant access to its folder or choose another output path."
    else:
        text = f"Could not write {path!r}: {error.strerror or error}. Check the output path."
    return OutputError(text, **facts)


def _free_bytes(path: str) -> int | None:
    folder = os.path.dirname(local_path(path)) if is_local(path) else None
    while folder and not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free if folder else None


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete output file.

    Attributes:
        path: Its path.
        size: Size in bytes, as stored.
        rows: Number of records.
        hash: ``xxh3:`` and 32 hexadecimal digits over the stored bytes.
        record: The kind of record it is, for a file that belongs to the record of its partition and not to the output.
    """

    path: str
    size: int
    rows: int
    hash: str
    record: str = ""


class AtomicFile:
    """A binary file under construction that appears at `path` when it is complete, and knows its size and hash.

    As a context manager it is published at the end of the block and discarded if the block raises. XXH3 with 128 bits
    detects damage and mix-ups at many GB/s; it does not protect against forgery, and need not.

    Example:
        >>> with AtomicFile("out/record.json") as file:  # doctest: +SKIP
        ...     file.write(b"{}")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        token: str = "x",
        fsync: bool = False,
        storage_options: StorageOptions = None,
    ) -> None:
        self.path = os.fspath(path)
        self.size = 0
        self.closed = False
        self._hash = xxhash.xxh3_128()
        self._fsync = fsync
        self._storage_options = storage_options
        self._local = is_local(self.path)
        self._state = "open"
        with output_errors(self.path):
            if self._local:
                self.path = local_path(self.path)
                os.makedirs(os.path.dirname(self.path), exist_ok=True)
                self._temporary = temporary_path(self.path, token=token)
            else:
                # Few stores can take back a half-written object, so it grows here and goes up in one call.
                self._temporary = temporary_path(os.path.join(tempfile.gettempdir(), "upload"), token=token)
            self._file: IO[bytes] = open(self._temporary, "xb", buffering=0)  # noqa: SIM115

    def write(self, data: Any) -> int:
        """Append bytes-like `data` and return its size in bytes."""
        whole = view = memoryview(data).cast("B")
        if self.closed:  # a writer on top may still flush after it was given up
            return whole.nbytes
        with output_errors(self.path):
            while view:
                # A raw file may write less than requested (signals, a nearly full disk).
                view = view[self._file.write(view) :]
        self._hash.update(whole)
        self.size += whole.nbytes
        return whole.nbytes

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Nothing is buffered here."""

    def copy(self, source: Any, count: int = -1) -> None:
        """Append `count` bytes of the open file `source` (the rest of it if negative)."""
        buffer = memoryview(bytearray(min(_COPY_BYTES, count) if count >= 0 else _COPY_BYTES))
        while count:
            got = source.readinto(buffer if count < 0 else buffer[: min(len(buffer), count)])
            if not got:
                break
            self.write(buffer[:got])
            count -= got if count > 0 else 0

    def finish(self) -> None:
        """Complete the temporary file without publishing it yet."""
        if self._state == "open":
            with output_errors(self.path):
                if self._fsync and self._local:
                    os.fsync(self._file.fileno())
                self._file.close()
            self._state = "finished"

    def publish(self, *, rows: int = 0) -> WrittenFile:
        """Publish the file at its path, replacing any existing one, and return its facts."""
        self.finish()
        if self._state == "finished":
            with output_errors(self.path):
                if self._local:
                    os.replace(self._temporary, self.path)
                    if self._fsync:
                        _fsync_folder(os.path.dirname(self.path))
                else:
                    self._upload()
            self._state, self.closed = "published", True
        return WrittenFile(self.path, self.size, rows, "xxh3:" + self._hash.hexdigest())

    def discard(self) -> None:
        """Discard the file; an existing file at its path stays."""
        if self._state in ("open", "finished"):
            self._file.close()
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)
            self._state, self.closed = "discarded", True

    def _upload(self) -> None:
        fs, inner = filesystem(self.path, self._storage_options)
        with contextlib.suppress(OSError, NotImplementedError):  # many stores have no folders
            fs.makedirs(inner.rpartition("/")[0], exist_ok=True)
        try:
            fs.put_file(self._temporary, inner)
        except OSError:
            raise
        except Exception as error:  # store libraries have their own exception classes
            raise store_error(self.path, error) from error
        os.unlink(self._temporary)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.publish()
        except BaseException:
            self.discard()
            raise


def _fsync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes_atomic(
    path: str | os.PathLike[str],
    data: bytes,
    *,
    token: str = "x",
    fsync: bool = False,
    storage_options: StorageOptions = None,
) -> None:
    """Write `data` to `path` atomically."""
    with AtomicFile(path, token=token, fsync=fsync, storage_options=storage_options) as file:
        file.write(data)


def write_json_atomic(
    path: str | os.PathLike[str],
    value: Any,
    *,
    token: str = "x",
    fsync: bool = False,
    storage_options: StorageOptions = None,
) -> None:
    """Write `value` as JSON to `path` atomically, as `json_bytes` formats it."""
    write_bytes_atomic(path, json_bytes(value), token=token, fsync=fsync, storage_options=storage_options)


def json_bytes(value: Any) -> bytes:
    """Serialize `value` as JSON; sorted keys and fixed spacing make equal values equal bytes."""
    return (json.dumps(value, sort_keys=True, indent=2, allow_nan=False) + "\n").encode()


def sweep_temporaries(
    folder: str | os.PathLike[str], *, token: str | None = None, dead_pids: Collection[int] = (), recursive: bool = True
) -> list[str]:
    """Remove abandoned temporary files and return their paths.

    Removes those of `token`, and those written on this machine by a process that is in `dead_pids` or no longer exists.
    All others may be work in progress and are kept.
    """
    removed: list[str] = []
    for where, folders, names in os.walk(os.fspath(folder)):
        if not recursive:
            folders.clear()
        for name in names:
            match = _TEMPORARY.fullmatch(name)
            if match is None:
                continue
            pid = int(match["pid"])
            ours = match["host"] == _HOST and pid != os.getpid()
            if match["token"] == token or (ours and (pid in dead_pids or not _alive(pid))):
                path = os.path.join(where, name)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
                    removed.append(path)
    return sorted(removed)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def check_writable(
    path: str, storage_options: StorageOptions = None, *, advice: str = "Check the path and its permissions."
) -> None:
    """Reject a folder that is not writable, as far as can be determined without leaving anything there.

    Args:
        path: The folder; it need not exist yet.
        storage_options: File system options for URLs.
        advice: What to do, as a sentence.

    Raises:
        OutputError: The user has no write access, or the bucket does not exist.
        StoreError: The store cannot be reached.
        MissingExtraError: The package that opens such stores is not installed.
    """
    if is_local(path):
        place = local_path(path)
        while not os.path.lexists(place) and os.path.dirname(place) != place:
            place = os.path.dirname(place)
        if os.path.isdir(place):
            try:
                tempfile.TemporaryFile(dir=place).close()  # without a name, so that it is invisible
            except OSError as error:
                raise OutputError(
                    f"Cannot write to {path}: {place}: {error.strerror}. {advice}",
                    path=path,
                    errno=error.errno,
                ) from error
        return
    with store_errors(path):
        fs, inner = filesystem(path, storage_options)
        for part in (inner, inner.strip("/").partition("/")[0]):
            try:
                fs.info(part)
                return
            except PermissionError:
                return  # listing may be forbidden where writing is not
            except FileNotFoundError:
                missing = part
        if path.partition(":")[0] in _WITH_BUCKETS:  # elsewhere it is a folder, which is made
            raise OutputError(f"Cannot write to {path}: there is no bucket {missing!r}. Create it first.", path=path)
