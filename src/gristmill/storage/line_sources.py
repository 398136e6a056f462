"""Byte sources for line readers: a whole file, or exactly the lines that belong to one range of it.

A line belongs to the range in which its first byte lies, so that ranges that tile a file deliver each line once.
"""

from __future__ import annotations

from typing import Any

from gristmill.storage.compression import ByteSource, DamagedArchiveError, codec_of, open_raw, open_source
from gristmill.storage.partitions import FileRange
from gristmill.storage.remote import StorageOptions

_SKIP_BYTES = 1 << 20
_OVERRUN_BYTES = 1 << 16


def open_lines(part: FileRange, *, storage_options: StorageOptions = None) -> tuple[ByteSource, int]:
    """The lines of `part` as a stream of bytes, and the offset in the file at which they start."""
    if codec_of(part.path) != "none" or part.end < 0:
        return open_source(part.path, storage_options=storage_options), 0
    source = _RangeSource(open_raw(part.path, storage_options=storage_options), part)
    return source, source.begin


class _RangeSource:
    """The lines of a plain file that start in [start, end)."""

    def __init__(self, raw: Any, part: FileRange) -> None:
        self._raw = raw
        self._part = part
        self._ahead = memoryview(b"")
        self._last = 10
        self._finished = False
        self.begin = self._at = part.start
        if part.start > 0:
            self._skip_foreign_line()

    def readinto(self, target: memoryview, /) -> int:
        """Fill the front of `target`; 0 after the last line of the range."""
        if self._ahead:
            count = min(len(target), len(self._ahead))
            target[:count] = self._ahead[:count]
            self._ahead = self._ahead[count:]
        elif self._finished:
            return 0
        elif self._at < self._part.end:
            count = self._raw.readinto(target[: self._part.end - self._at]) or 0
            if not count:
                self._finished = True
                if self._part.end > self._part.start:
                    raise DamagedArchiveError(
                        f"the file had {self._part.size} bytes when the run was planned and ends at byte {self._at}",
                        cause="truncated_file",
                        path=self._part.path,
                    )
                return 0
        elif self._last == 10 or self._part.end >= self._part.size >= 0:
            self._finished = True
            return 0
        else:
            count = self._overrun(target)
        if count:
            self._at += count
            self._last = target[count - 1]
        return count

    def close(self) -> None:
        """Close the file."""
        self._raw.close()

    def _skip_foreign_line(self) -> None:
        """Go to the first line that starts at or after the range's start; the byte before tells if one starts there."""
        at = self._part.start - 1
        self._raw.seek(at)
        while at < self._part.end:
            piece = self._raw.read(_SKIP_BYTES) or b""
            cut = piece.find(b"\n")
            if not piece or (cut >= 0 and at + cut + 1 >= self._part.end):
                break
            if cut >= 0:
                self.begin = self._at = at + cut + 1
                self._ahead = memoryview(piece)[cut + 1 : cut + 1 + self._part.end - self._at]
                self._raw.seek(self._at + len(self._ahead))
                return
            at += len(piece)
        self._finished = True

    def _overrun(self, target: memoryview) -> int:
        """The rest of the last line, which reaches over the end of the range."""
        count = self._raw.readinto(target[:_OVERRUN_BYTES]) or 0
        cut = bytes(target[:count]).find(b"\n")
        if not count or cut >= 0:
            self._finished = True
        return cut + 1 if cut >= 0 else count
