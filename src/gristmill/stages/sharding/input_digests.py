"""Digests of the input files, computed in the background while a run reads the same files."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import xxhash

from gristmill.storage.files import is_local, local_path
from gristmill.storage.partitions import Partition

_PART_BYTES = 8 << 20


class InputDigests:
    """Hashes every local input file once; files of object stores are identified by their ETag.

    Args:
        partitions: The partitions of each source.
    """

    def __init__(self, partitions: Sequence[Sequence[Partition]]) -> None:
        self._files: list[dict[str, dict[str, Any]]] = []
        for one in partitions:
            files: dict[str, dict[str, Any]] = {}
            for partition in one:
                for part in partition.ranges:
                    files[part.path] = {"file": part.relative, "bytes": part.size, "stamp": part.stamp, "hash": None}
            self._files.append(files)
        self._over = threading.Event()
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._work, daemon=True, name="input-digests")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def found(self) -> list[list[dict[str, Any]]]:
        """Path, size, modification stamp and hash of every file of each source; waits for the last one.

        Raises:
            OSError: A file is no longer readable.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return [list(files.values()) for files in self._files]

    def _work(self) -> None:
        try:
            for files in self._files:
                for path, facts in files.items():
                    if is_local(path) and not self._over.is_set():
                        facts["hash"] = self._hash(local_path(path))
        except OSError as error:
            self._error = error

    def _hash(self, path: str) -> str:
        digest = xxhash.xxh3_128()
        size = os.path.getsize(path)
        with open(path, "rb") as file:
            # Memory-mapped: the pages are those that workers read anyway.
            for start in range(0, size, _PART_BYTES):
                if self._over.is_set():
                    break
                length = min(_PART_BYTES, size - start)
                with mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ, offset=start) as part:
                    digest.update(part)
        return "xxh3:" + digest.hexdigest()
