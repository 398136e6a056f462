"""What every writer of output parts shares: the facts of a written file, and a file that hashes itself as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from gristmill.storage.atomic import AtomicFile
from gristmill.storage.compression import open_raw
from gristmill.storage.remote import StorageOptions

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A complete output file.

    Attributes:
        path: Where it lies.
        size: Stored bytes.
        rows: Records in it.
        hash: ``xxh3:`` and 32 hexadecimal digits over the stored bytes.
    """

    path: str
    size: int
    rows: int
    hash: str


class HashedFile:
    """An `AtomicFile` without compression of its own that knows the size and hash of what went through it.

    XXH3 with 128 bits notices damage and mix-ups at many GB/s; it is no defence against forgery, and needs to be none.
    """

    def __init__(
        self, path: str, *, token: str = "x", fsync: bool = False, storage_options: StorageOptions = None
    ) -> None:
        self._file = AtomicFile(path, compressed=False, token=token, fsync=fsync, storage_options=storage_options)
        self._hash = xxhash.xxh3_128()
        self.path = self._file.path
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        """Append bytes-like `data`."""
        if self.closed:  # a writer on top may still flush after it was given up
            return memoryview(data).nbytes
        count = self._file.write(data)
        self._hash.update(data)
        self.size += count
        return count

    def tell(self) -> int:
        """Bytes written so far."""
        return self.size

    def flush(self) -> None:
        """Nothing is buffered here."""

    def copy(self, source: Any, count: int = -1) -> None:
        """Append `count` bytes of the open file `source` (all that is left when negative)."""
        buffer = memoryview(bytearray(min(_COPY_BYTES, count) if count >= 0 else _COPY_BYTES))
        while count:
            got = source.readinto(buffer if count < 0 else buffer[: min(len(buffer), count)])
            if not got:
                break
            self.write(buffer[:got])
            count -= got if count > 0 else 0

    def finish(self) -> None:
        """Complete the file without making it appear yet."""
        self._file.finish()

    def publish(self, *, rows: int) -> WrittenFile:
        """Make the file appear and return its facts."""
        self._file.publish()
        self.closed = True
        return WrittenFile(self.path, self.size, rows, "xxh3:" + self._hash.hexdigest())

    def discard(self) -> None:
        """Throw the file away."""
        self._file.discard()
        self.closed = True


def hash_file(path: str, *, storage_options: StorageOptions = None) -> tuple[int, str]:
    """Size and hash of a stored file, to hold against its `WrittenFile`."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_COPY_BYTES))
    size = 0
    with open_raw(path, storage_options=storage_options) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return size, "xxh3:" + digest.hexdigest()


def total_rows(pieces: Sequence[WrittenFile]) -> int:
    """Records in all `pieces` together."""
    return sum(piece.rows for piece in pieces)
