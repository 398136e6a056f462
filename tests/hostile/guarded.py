"""Memory with forbidden pages on both sides: one byte read or written outside of it ends the process at once."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import numpy as np
import pyarrow as pa

PAGE = mmap.PAGESIZE
_LIBC = ctypes.CDLL(None, use_errno=True)


def guarded(values: Any, *, at_start: bool = False, writeable: bool = False) -> Any:
    """A copy of an array that ends (or starts) where forbidden memory begins.

    Args:
        values: The array.
        at_start: Let the array begin behind the forbidden page before it, instead of ending at the one behind it.
        writeable: Whether kernels may write to it; they are compiled for either.
    """
    values = np.ascontiguousarray(values)
    size = max(PAGE, -(-values.nbytes // PAGE) * PAGE)
    memory = mmap.mmap(-1, size + 2 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for place in (address, address + PAGE + size):
        if _LIBC.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    first = PAGE if at_start else PAGE + size - values.nbytes
    placed = np.frombuffer(memory, values.dtype, count=values.size, offset=first).reshape(values.shape)
    if values.size:
        placed[...] = values
    placed.flags.writeable = writeable
    return placed


def guarded_strings(texts: list[bytes | None], *, at_start: bool = False, lead: int = 0) -> pa.Array:
    """A string column in guarded memory, whatever its bytes.

    Args:
        texts: The rows.
        at_start: As in `guarded`.
        lead: How many rows come before, of which the column is a slice.
    """
    before = [b"before"] * lead
    sizes = [len(text or b"") for text in [*before, *texts]]
    offsets = guarded(np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).astype(np.int64))
    content = b"".join(text or b"" for text in [*before, *texts])
    data = guarded(np.frombuffer(content, np.uint8), at_start=at_start)
    valid = np.array([True] * lead + [text is not None for text in texts])
    bits = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    whole = pa.LargeStringArray.from_buffers(len(sizes), pa.py_buffer(offsets), pa.py_buffer(data), bits)
    return whole.slice(lead)
