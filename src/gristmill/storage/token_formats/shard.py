"""The interface of shards under construction, and a temporary file for formats whose header is written last."""

from __future__ import annotations

import os
import tempfile
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.storage.atomic import AtomicFile, WrittenFile, output_errors
from gristmill.storage.files import StorageOptions, is_local, local_path

Integers = npt.NDArray[np.int64]
Tokens = npt.NDArray[Any]

_IN_MEMORY = 8 << 20


class ShardFile(Protocol):
    """A shard under construction."""

    def append(self, ids: Tokens, lengths: Integers, extra: pa.Table | None) -> None:
        """Add sequences; `extra` holds additional columns."""

    def close(self, rows: int, bounds: tuple[Integers, Integers]) -> list[WrittenFile]:
        """Finish the files of the shard.

        Args:
            rows: Number of documents that begin in it.
            bounds: Starts and ends of the runs of documents.
        """

    def abort(self) -> None:
        """Discard it."""


class Spool:
    """Buffers bytes until the header before them is known; more than a few MB go to an unnamed temporary file.

    Args:
        path: The file they are for; the temporary one is on the same disk.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.size = 0
        folder = os.path.dirname(local_path(path)) if is_local(path) else None
        if folder:
            os.makedirs(folder, exist_ok=True)
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_IN_MEMORY, dir=folder)  # noqa: SIM115

    def write(self, data: Any) -> None:
        """Append bytes."""
        view = memoryview(data).cast("B")
        with output_errors(self._path):
            self._file.write(view)
        self.size += view.nbytes

    def publish(self, header: bytes, *, rows: int, storage_options: StorageOptions) -> WrittenFile:
        """Write the header and everything after it."""
        target = AtomicFile(self._path, storage_options=storage_options)
        try:
            target.write(header)
            self._file.seek(0)
            while piece := self._file.read(1 << 20):
                target.write(piece)
            return target.publish(rows=rows)
        except BaseException:
            target.discard()
            raise
        finally:
            self._file.close()

    def discard(self) -> None:
        """Discard them."""
        self._file.close()
