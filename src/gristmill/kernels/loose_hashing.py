"""Hashes that are equal for texts that differ only in case, spacing or ASCII punctuation."""

from __future__ import annotations

import string

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel

_OFFSET = np.uint64(0xCBF29CE484222325)
_PRIME = np.uint64(0x100000001B3)
_MIX = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def _tables() -> npt.NDArray[np.uint64]:
    """For each byte, its normalised value and the following factor; an ignored byte leaves a hash unchanged."""
    values = np.zeros((256, 2), np.uint64)
    values[:, 1] = 1
    for byte in [*string.ascii_letters.encode(), *string.digits.encode(), *range(0x80, 0x100)]:
        values[byte] = bytes([byte]).lower()[0], _PRIME
    return values


_TABLES = _tables()


@kernel
def loose_hashes(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """A 64-bit hash of the ASCII letters and digits of every row, in lower case, and of all bytes beyond ASCII.

    FNV-1a (Fowler, Noll and Vo), mixed once more at the end, so that its values are spread evenly.
    """
    rows = len(offsets) - 1
    hashes = np.empty(rows, np.uint64)
    for row in range(rows):
        state = _OFFSET
        for at in range(offsets[row], offsets[row + 1]):
            byte = data[at]
            state = (state ^ _TABLES[byte, 0]) * _TABLES[byte, 1]
        state = (state ^ (state >> _HALF)) * _MIX
        state = (state ^ (state >> _HALF)) * _MIX
        hashes[row] = state ^ (state >> _HALF)
    return hashes
