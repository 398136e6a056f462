"""Decoding row groups within bounded memory, whatever their footers say.

A few kilobytes of Parquet can represent gigabytes: a dictionary or a run repeats a value at no cost, a page of zeros
compresses to almost nothing, and a footer may lie. So decoding has a memory limit, which the kernel enforces before a
page is touched, and data that does not fit is decoded again in smaller steps. Ordinary files are not slowed down.
"""

from __future__ import annotations

import mmap
import resource
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

_FIRST_ROWS = 16
_MORE_ROWS = 8
_FEWER_ROWS = 64
"""A row group that looks like a bomb is begun with few rows and continued with at most this many times more; if a batch
does not fit into memory, the next try is with this many times fewer rows."""
_MOST_ROWS = 1 << 20
_ROW_BYTES = 64
"""Minimum size of a row: its number and its records take memory too."""
_FIRST_BYTES = 256 << 20
_MOST_COMPRESSION = 30
"""Real text compresses to a third or a tenth."""


def decoded(opened: pq.ParquetFile, number: int, names: Sequence[str], rows: int, room: int) -> Iterator[pa.Table]:
    """The rows of a row group in order, `rows` at a time, and fewer if these do not fit into `room` bytes.

    Raises:
        MemoryError: A single row does not fit.
    """
    done, most = 0, min(rows, _MOST_ROWS)
    step = min(most, _FIRST_ROWS) if _is_suspicious(opened, number, most, room) else most
    while True:
        batches = opened.iter_batches(batch_size=step, row_groups=[number], columns=names, use_threads=False)
        again = done
        try:
            while True:
                with BoundedMemory(room):
                    batch = next(batches, None)
                if batch is None:
                    return
                if step < most:
                    fitting = room * batch.num_rows // (16 * max(1, batch.nbytes))
                    step = max(1, min(most, _MORE_ROWS * step, fitting))
                    opened.reader.set_batch_size(step)
                known = min(again, batch.num_rows)
                again -= known
                if known < batch.num_rows:
                    done += batch.num_rows - known
                    yield pa.Table.from_batches([batch.slice(known) if known else batch])
                del batch
        except MemoryError:
            if step == 1:
                raise
            step = most = max(1, step // _FEWER_ROWS)


def _is_suspicious(opened: pq.ParquetFile, number: int, rows: int, room: int) -> bool:
    """Whether this many rows could take more than `room`, if a highly compressed row group repeats a value."""
    group = opened.metadata.row_group(number)
    if group.total_byte_size <= _MOST_COMPRESSION * opened.file_bytes // opened.metadata.num_row_groups:
        return False
    return bool(group.total_byte_size * rows > room)


def fits_its_footer(opened: pq.ParquetFile, number: int) -> bool:
    """Whether the first row of a row group can be read, so that its footer has been compared with its columns."""
    try:
        with BoundedMemory(_FIRST_BYTES):
            next(opened.iter_batches(batch_size=1, row_groups=[number], use_threads=False), None)
    except (pa.ArrowException, OSError, MemoryError):
        return False
    return True


def decoded_bytes(table: pa.Table) -> int:
    """Approximate memory of the table with dictionaries expanded and rows numbered."""
    typed = any("dictionary<" in str(field.type) for field in table.schema)
    return max(_ROW_BYTES * int(table.num_rows), int(row_sizes(table).sum() if typed else table.nbytes))


def row_sizes(table: pa.Table) -> NDArray[np.int64]:
    """The share of each row in `decoded_bytes`."""
    sizes = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        if table.num_rows:
            sizes += np.concatenate([_sizes(chunk) for chunk in column.chunks])
    return np.maximum(sizes, _ROW_BYTES)


def _sizes(array: pa.Array) -> Any:
    kind = array.type
    if not len(array):
        return np.zeros(0, np.int64)
    if pa.types.is_dictionary(kind):
        places = pc.fill_null(array.indices, 0).to_numpy()
        return _sizes(array.dictionary)[places] if len(array.dictionary) else np.zeros(len(array), np.int64)
    if pa.types.is_struct(kind):
        return np.sum([_sizes(array.field(at)) for at in range(kind.num_fields)], axis=0, dtype=np.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        until = np.concatenate([[0], np.cumsum(_sizes(array.values))])[array.offsets.to_numpy()]
        return 8 + np.diff(until)
    if kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return 4 + pc.fill_null(pc.binary_length(array), 0).to_numpy().astype(np.int64)
    return np.full(len(array), -(-array.nbytes // len(array)), np.int64)


class BoundedMemory:
    """Limits the process to about `nbytes` of additional memory while active.

    The allocator may already hold some memory, which is not limited. If the system does not report the memory of a
    process (no `/proc`), there is no limit. The limit applies to the whole process: of several threads, only the first
    sets it, so the block must be short.
    """

    _lock = threading.Lock()

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._before: tuple[int, int] | None = None

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
            wanted = _data_bytes() + self._nbytes
            if soft == resource.RLIM_INFINITY or wanted < soft:
                resource.setrlimit(resource.RLIMIT_DATA, (wanted, hard))
            self._before = soft, hard
        except (OSError, ValueError):
            self._lock.release()

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            resource.setrlimit(resource.RLIMIT_DATA, self._before)
            self._before = None
            self._lock.release()


def _data_bytes() -> int:
    """The private writable memory of this process, which is what RLIMIT_DATA counts."""
    with open("/proc/self/statm", "rb", buffering=0) as file:
        return int(file.read(128).split()[5]) * mmap.PAGESIZE
