"""Reading JSONL partitions as blocks of raw records: byte buffers with spans, ready for a parser.

A line belongs to the range that contains its first byte, so that ranges that tile a file deliver each line once. A
block depends only on the data, the range and `block_bytes`. Memory stays at a small multiple of `block_bytes`, whatever
the size and compression of the file; only a larger record needs a larger buffer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.errors import UsageError
from gristmill.figures import format_size
from gristmill.storage.block_memory import room_for
from gristmill.storage.compression import SALVAGE_HINT, ByteSource, DamagedArchiveError, open_raw, open_source
from gristmill.storage.files import StorageOptions
from gristmill.storage.formats import HEAD_BYTES, codec_of, mismatch, recognise
from gristmill.storage.partitions import (
    MAX_RAW_BYTES,
    BadRecord,
    FileRange,
    Partition,
    SourceFile,
    estimated_records,
    join_small,
)

# Below the 32 MiB up to which malloc keeps memory for the next block instead of asking the kernel for zeroed pages.
DEFAULT_BLOCK_BYTES = 16 * 1024 * 1024
DEFAULT_MAX_RECORD_BYTES = 256 * 1024 * 1024

_BOM = b"\xef\xbb\xbf"
_IS_SPACE = np.isin(np.arange(256), [9, 13, 32])
_SKIP_BYTES = 1 << 20
_OVERRUN_BYTES = 1 << 16
# Room for one newline per byte.
_SCAN_BYTES = 1 << 17


@dataclass(slots=True)
class RecordBlock:
    """Records in one buffer: a piece of a file, or several small files.

    Attributes:
        buffer: The bytes; not written to elsewhere.
        starts: Where each record starts in the buffer.
        ends: One past each record's last byte.
        rows: Row number in the partition of each record.
        offsets: Byte offset of each record in its uncompressed source file.
        sources: The files in order, each with the row number of its first record here.
        bad: Records that could not be read; their row numbers are missing from `rows`.
    """

    buffer: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]
    rows: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sources: list[tuple[int, SourceFile]]
    bad: list[BadRecord] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """The size of the buffer."""
        return len(self.buffer)

    def take(self, chosen: NDArray[np.bool_]) -> RecordBlock:
        """The block with only these records; the bytes of the others stay in the buffer."""
        starts, ends, rows, offsets = (part[chosen] for part in (self.starts, self.ends, self.rows, self.offsets))
        return RecordBlock(self.buffer, starts, ends, rows, offsets, self.sources, self.bad)

    def file_of(self, row: int) -> SourceFile:
        """The file that a row comes from."""
        return next(file for first, file in reversed(self.sources) if first <= row)


def read_blocks(
    partition: Partition,
    *,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
    max_record_bytes: int = DEFAULT_MAX_RECORD_BYTES,
    storage_options: StorageOptions = None,
    strict: bool = False,
    left_out: Mapping[str, BadRecord] | None = None,
) -> Iterator[RecordBlock]:
    """The records of `partition`, block by block, file by file; small files share a block.

    Blank lines, a byte order mark at the start of a file, CRLF and whitespace around records are skipped. A line over
    `max_record_bytes` and the rest of a damaged file are reported as `BadRecord`s, and reading continues.

    Args:
        partition: What to read.
        block_bytes: Bytes per block; a longer record gets a larger block.
        max_record_bytes: Maximum length of a line.
        storage_options: File system options for URLs.
        strict: Raise if an archive is damaged; records read from it before must then be discarded.
        left_out: Damaged files by path; they are skipped, and each is one bad record.

    Raises:
        DamagedArchiveError: An archive is damaged, and `strict` is set.

    Example:
        >>> for block in read_blocks(partition):  # doctest: +SKIP
        ...     records = [bytes(block.buffer[s:e]) for s, e in zip(block.starts, block.ends)]
    """
    for name, value in (("block_bytes", block_bytes), ("max_record_bytes", max_record_bytes)):
        if value < 1:
            raise UsageError(f"{name}={value} must be at least 1.", value=value)
    open_file = partial(
        _FileReader,
        block_bytes=block_bytes,
        max_record_bytes=max_record_bytes,
        storage_options=storage_options,
        strict=strict,
        left_out=left_out or {},
        alone=len(partition.ranges) == 1,
    )
    if len(partition.ranges) == 1:
        return open_file(partition.ranges[0], 0).blocks()
    return join_small(partition.ranges, open_file, block_bytes, _joined)


def _joined(blocks: list[RecordBlock]) -> RecordBlock:
    """Concatenate blocks, with a line end between different buffers."""
    sizes = [int(block.ends[-1]) if len(block.ends) else 0 for block in blocks]
    buffer = np.full(sum(sizes) + len(sizes), 10, np.uint8)
    starts, ends, at = [], [], 0
    for block, size in zip(blocks, sizes, strict=True):
        buffer[at : at + size] = block.buffer[:size]
        starts.append(block.starts + at)
        ends.append(block.ends + at)
        at += size + 1
    return RecordBlock(
        buffer,
        np.concatenate(starts),
        np.concatenate(ends),
        np.concatenate([block.rows for block in blocks]),
        np.concatenate([block.offsets for block in blocks]),
        [source for block in blocks for source in block.sources],
        [bad for block in blocks for bad in block.bad],
    )


def newline_positions(buffer: NDArray[np.uint8], begin: int, end: int) -> NDArray[np.int64]:
    """The index of every newline in ``buffer[begin:end]``, ascending."""
    if "numba" not in sys.modules:  # a driver that only looks at its input loads no kernels
        return np.flatnonzero(buffer[begin:end] == 10) + begin
    from gristmill.kernels.json_scan import find_newlines

    places = np.empty(min(_SCAN_BYTES, max(end - begin, 0)), np.int64)
    found, base = [np.empty(0, np.int64)], buffer.ctypes.data
    for at in range(begin, end, _SCAN_BYTES):
        count = find_newlines(base, at, min(at + _SCAN_BYTES, end), places)
        found.append(places[:count].copy())
    return np.concatenate(found)


def _trim_spans(buffer: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    """Strip spaces, tabs and carriage returns from each span by moving `starts` and `ends` in place."""
    rows = np.flatnonzero(ends > starts)
    ends[rows] -= buffer[ends[rows] - 1] == 13  # most files with white space around records end their lines with CRLF
    rows = rows[ends[rows] > starts[rows]]
    rows = rows[_IS_SPACE[buffer[starts[rows]]] | _IS_SPACE[buffer[ends[rows] - 1]]]
    for row in rows.tolist():
        text = buffer[starts[row] : ends[row]].tobytes()
        starts[row] += len(text) - len(text.lstrip(b" \t\r"))
        ends[row] = starts[row] + len(text.strip(b" \t\r"))


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
                        consumed=self._at - self._part.start,
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
        """Skip to the first line that starts in the range; the byte before the range shows if one starts there."""
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
        """The rest of the last line, which extends beyond the range."""
        count = self._raw.readinto(target[:_OVERRUN_BYTES]) or 0
        cut = bytes(target[:count]).find(b"\n")
        if not count or cut >= 0:
            self._finished = True
        return cut + 1 if cut >= 0 else count


class _FileReader:
    """One pass over the lines of one range."""

    def __init__(
        self,
        part: FileRange,
        row: int,
        *,
        block_bytes: int,
        max_record_bytes: int,
        storage_options: StorageOptions,
        strict: bool,
        left_out: Mapping[str, BadRecord],
        alone: bool,
    ) -> None:
        self.row = self._first_row = row
        self._alone = alone
        self._strict = strict
        self._left_out = left_out.get(part.path)
        self._part = part
        self._file = SourceFile(part.path, part.relative)
        self._block_bytes = max(block_bytes, 16)  # so that the first fill shows a whole byte order mark
        self._max_record_bytes = max_record_bytes
        self._storage_options = storage_options
        self._bad: list[BadRecord] = []
        self._damage: DamagedArchiveError | None = None

    def blocks(self) -> Iterator[RecordBlock]:
        """Blocks in file order; `row` is the next row number afterwards."""
        if self._part.end == self._part.start and self._part.size == 0:
            return
        if self._left_out is not None:
            self._bad.append(replace(self._left_out, row=self.row))
            self.row += 1
            yield self._empty_block()
            return
        path, offset = self._part.path, 0
        if codec_of(path) != "none" or self._part.end < 0:
            source = open_source(path, storage_options=self._storage_options)
        else:
            source = lines = _RangeSource(open_raw(path, storage_options=self._storage_options), self._part)
            offset = lines.begin
        try:
            yield from self._read(source, offset)
        finally:
            source.close()

    def _read(self, source: ByteSource, offset: int) -> Iterator[RecordBlock]:
        # offset: position in the file of buffer[0]; used: bytes already at its front, the first `scanned` of which
        # contain no newline.
        capacity = self._block_bytes
        if self._part.whole and self._part.end >= 0 and codec_of(self._part.path) == "none":
            # One byte more than the data, so that its end is seen by the first fill.
            capacity = min(capacity, self._part.end - self._part.start + 1)
        buffer = room_for(capacity)
        used = scanned = 0
        ended = False
        bom_possible = offset == 0
        while not ended:
            filled, ended = self._fill(source, buffer, used)
            if bom_possible:
                bom_possible = False
                head = buffer[: min(filled, HEAD_BYTES)].tobytes()
                kind = recognise(head)
                if kind == "json_array" and self._part.whole:
                    from gristmill.storage.json_array import ArraySource

                    self._damage = None  # met again behind what was read
                    source = ArraySource(source, buffer[:filled].copy(), path=self._part.path)
                    filled, ended = self._fill(source, buffer, 0)
                elif kind not in (None, "jsonl", "json_array") and (
                    len(head) == HEAD_BYTES or (ended and self._part.whole)
                ):
                    # Planning did not inspect this file, and none of its lines is a record.
                    size = max(self._part.size, filled)
                    problem = str(mismatch(self._part.path, kind, "jsonl"))
                    detail = problem.removeprefix(f"{self._part.path} ").partition(". ")[0]
                    lost = estimated_records(0, 0, size)
                    self._bad.append(BadRecord(self.row, self._file, 0, "other_format", head, size, detail, lost))
                    self.row += 1
                    break
                elif head.startswith(_BOM):
                    buffer[:3] = 32  # whitespace of the same length keeps all offsets
            newlines = newline_positions(buffer, scanned, filled)
            complete = int(newlines[-1]) + 1 if len(newlines) else 0
            if ended and self._damage is None and filled > complete:
                newlines = np.append(newlines, filled)  # the last line needs no newline
                complete = filled
            if len(newlines):
                block = self._block(buffer, newlines, offset)
                if block is not None:
                    yield block
                    del block
            offset += complete
            tail = buffer[complete:filled]
            if complete:  # a line that fills the buffer is not copied
                tail = tail.copy()
            del buffer, newlines  # the next block takes their memory
            if ended:
                if self._damage is not None:
                    self._report_damage(self._damage, tail, offset)
            elif len(tail) > self._max_record_bytes:
                buffer, used, offset = self._skip_oversized(source, tail, offset)
                scanned = 0
            else:
                buffer = self._with_room(tail)
                used = scanned = len(tail)
            del tail
        if self._bad:
            yield self._empty_block()

    def _with_room(self, tail: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """A new buffer that starts with `tail` and has room for more."""
        capacity = self._block_bytes
        while capacity <= len(tail):
            capacity *= 2
        if capacity > self._block_bytes:
            capacity = max(min(capacity, self._max_record_bytes + 1), len(tail) + 1)
        fresh = room_for(capacity)
        fresh[: len(tail)] = tail
        return fresh

    def _fill(self, source: ByteSource, buffer: NDArray[np.uint8], used: int) -> tuple[int, bool]:
        """Read until `buffer` is full or the data ends; short reads must not move block boundaries."""
        view = memoryview(buffer.data)
        while used < len(buffer):
            try:
                count = source.readinto(view[used:]) or 0
            except DamagedArchiveError as error:
                self._damage = error
                return used, True
            if not count:
                return used, True
            used += count
        return used, False

    def _block(self, buffer: NDArray[np.uint8], newlines: NDArray[np.int64], offset: int) -> RecordBlock | None:
        lines = np.empty(len(newlines), np.int64)
        lines[0] = 0
        lines[1:] = newlines[:-1] + 1
        starts, ends = lines.copy(), newlines.copy()
        _trim_spans(buffer, starts, ends)
        filled = ends > starts
        if not filled.all():
            lines, newlines, starts, ends = lines[filled], newlines[filled], starts[filled], ends[filled]
        rows = np.arange(self.row, self.row + len(starts), dtype=np.int64)
        self.row += len(rows)
        large = newlines - lines > self._max_record_bytes
        if large.any():
            for at in np.flatnonzero(large).tolist():
                raw = buffer[lines[at] : min(int(newlines[at]), int(lines[at]) + MAX_RAW_BYTES)].tobytes()
                size = int(newlines[at] - lines[at])
                self._bad.append(self._oversized(int(rows[at]), offset + int(lines[at]), raw, size))
            kept = ~large
            starts, ends, rows = starts[kept], ends[kept], rows[kept]
        if not len(rows) and not self._bad:
            return None
        first = int(rows[0]) if len(rows) else self._bad[0].row
        bad, self._bad = self._bad, []
        used = int(ends[-1]) if len(ends) else 0
        if 2 * used < len(buffer):
            # A block that waits for more small files must not be mostly empty.
            buffer = buffer[: used + 1] if self._alone else buffer[:used].copy()
        return RecordBlock(buffer, starts, ends, rows, starts + offset, [(first, self._file)], bad)

    def _empty_block(self) -> RecordBlock:
        none = np.empty(0, np.int64)
        bad, self._bad = self._bad, []
        return RecordBlock(np.empty(0, np.uint8), none, none, none, none, [(bad[0].row, self._file)], bad)

    def _oversized(self, row: int, offset: int, raw: bytes, size: int) -> BadRecord:
        limit = self._max_record_bytes
        detail = f"the line has {size} bytes, over max_record_bytes={limit} ({format_size(limit)})"
        return BadRecord(row, self._file, offset, "record_too_large", raw, size, detail)

    def _skip_oversized(
        self, source: ByteSource, head: NDArray[np.uint8], offset: int
    ) -> tuple[NDArray[np.uint8], int, int]:
        """Skip the rest of the line that starts with `head`; bytes read beyond it start the next buffer."""
        raw, size, blank = head[:MAX_RAW_BYTES].tobytes(), len(head), bool(_IS_SPACE[head].all())
        buffer = np.empty(self._block_bytes, np.uint8)
        while True:
            filled, ended = self._fill(source, buffer, 0)
            newlines = newline_positions(buffer, 0, filled)
            behind = int(newlines[0]) + 1 if len(newlines) else filled
            if len(raw) < MAX_RAW_BYTES:
                raw += buffer[: min(behind, MAX_RAW_BYTES - len(raw))].tobytes().rstrip(b"\n")
            line_end = behind - (1 if len(newlines) else 0)
            size += line_end
            blank = blank and bool(_IS_SPACE[buffer[:line_end]].all())
            if len(newlines) or ended:
                break
        if not blank:
            self._bad.append(self._oversized(self.row, offset, raw, size))
            self.row += 1
        offset += size + (1 if len(newlines) else 0)
        fresh = np.empty(self._block_bytes, np.uint8)
        used = filled - behind
        fresh[:used] = buffer[behind:filled]
        return fresh, used, offset

    def _report_damage(self, damage: DamagedArchiveError, tail: NDArray[np.uint8], offset: int) -> None:
        """Report the rest of the file as damaged; in an uncompressed file, the complete lines before are valid."""
        if self._strict and codec_of(self._part.path) != "none":
            raise DamagedArchiveError(f"{self._part.path} is damaged: {damage}. {SALVAGE_HINT}", **damage.facts)
        rows = self.row - self._first_row
        lost = estimated_records(rows, damage.consumed, self._part.size) - rows
        raw = tail[:MAX_RAW_BYTES].tobytes()
        self._bad.append(
            BadRecord(self.row, self._file, offset, damage.cause, raw, len(tail), str(damage), lost, salvaged=rows)
        )
        self.row += 1
