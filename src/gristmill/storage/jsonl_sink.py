"""Writing JSONL parts: encoded lines are written unchanged, or as one compressed member per append.

Members are independent, so joining separately written parts yields the same bytes as writing one file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gristmill.errors import UsageError
from gristmill.storage.atomic import AtomicFile, WrittenFile
from gristmill.storage.compression import compress_member, open_raw
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import codec_of

if TYPE_CHECKING:
    from gristmill.storage.json_records import JsonRecords

# This much stays in the processor's cache between assembly and writing.
_PIECE_BYTES = 1 << 19


class RecordLines:
    """Records that are written unchanged, piece by piece: the output of `JsonRecords.encode` without buffering it.

    Attributes:
        records: The records.
        nbytes: The size of all lines.
    """

    __slots__ = ("nbytes", "records")

    def __init__(self, records: JsonRecords) -> None:
        self.records = records
        self.nbytes = records.nbytes + len(records)

    def __iter__(self) -> Iterator[npt.NDArray[np.uint8]]:
        """Whole lines, valid until the next ones; adjacent records in a buffer are not copied."""
        buffer, starts, ends = self.records.buffer, self.records.starts, self.records.ends
        if (
            len(starts)
            and ends[-1] < len(buffer)
            and (starts[1:] - ends[:-1] == 1).all()
            and (buffer[ends] == 10).all()
        ):
            yield buffer[starts[0] : ends[-1] + 1]
            return
        from gristmill.kernels import json_write

        sizes = np.cumsum(ends - starts + 1)
        out, first = np.empty(0, np.uint8), 0
        while first < len(starts):
            done = int(sizes[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(sizes, done + _PIECE_BYTES, "right")))
            if len(out) < sizes[last - 1] - done:
                out = np.empty(max(_PIECE_BYTES, int(sizes[last - 1]) - done), np.uint8)
            used = json_write.gather(buffer.ctypes.data, starts[first:last], ends[first:last], ord("\n"), out)
            yield out[:used]
            first = last


class JsonlSink:
    r"""A JSONL file under construction.

    Args:
        path: Final path; its suffix sets the compression.
        storage_options: File system options for URLs.

    Example:
        >>> sink = JsonlSink("out/part.jsonl.zst")  # doctest: +SKIP
        >>> sink.append(b'{"text": "hello"}\n')  # doctest: +SKIP
        >>> [file.rows for file in sink.close()]  # doctest: +SKIP
        [1]
    """

    def __init__(self, path: str, *, storage_options: StorageOptions = None) -> None:
        self._codec = codec_of(path)
        self._file = AtomicFile(path, storage_options=storage_options)
        self._rows = 0

    def append(self, data: Any, /, *, rows: int | None = None) -> None:
        """Add whole lines, the last one with its newline.

        Args:
            data: A uint8 array or any bytes-like object, or `RecordLines`.
            rows: Number of lines; counted if None.
        """
        if isinstance(data, RecordLines):
            if self._codec == "none" and rows is not None:
                for piece in data:
                    self._file.write(piece)
                self._rows += rows
                return
            data = data.records.encode()
        view = memoryview(data).cast("B")
        if not view:
            return
        if view[-1] != 10:
            raise UsageError(
                "The bytes appended to a JSONL file must end with a newline, or the next record would join the last."
            )
        if rows is None:
            rows = int(np.count_nonzero(np.frombuffer(view, np.uint8) == 10))
        self._file.write(compress_member(view, self._codec))
        self._rows += rows

    def close(self) -> list[WrittenFile]:
        """Publish the file and return it as the only one; without any append it is empty and still readable."""
        if not self._file.size:
            self._file.write(compress_member(b"", self._codec))
        return [self._file.publish(rows=self._rows)]

    def abort(self) -> None:
        """Discard what was appended."""
        self._file.discard()


def concatenate_jsonl(
    pieces: Sequence[WrittenFile],
    path: str,
    *,
    storage_options: StorageOptions = None,
) -> WrittenFile:
    """Join files; the result has the same bytes as appending directly to one file.

    Args:
        pieces: Files from `JsonlSink` with the same compression.
        path: Path of the result; the pieces are kept.
        storage_options: File system options for URLs.
    """
    target = AtomicFile(path, storage_options=storage_options)
    try:
        for piece in pieces:
            if piece.rows:  # an empty piece is a member that direct writing would not have made
                with open_raw(piece.path, storage_options=storage_options) as source:
                    target.copy(source)
        if not target.size:
            target.write(compress_member(b"", codec_of(path)))
        return target.publish(rows=sum(piece.rows for piece in pieces))
    except BaseException:
        target.discard()
        raise
