"""A 128-bit hash of every text of a column, by which deduplication takes two texts for equal.

The first half is XXH64, the second a hash of another make over the same words of eight bytes, so that texts which
collide in one half have no reason to collide in the other. Not a defence against texts that are forged to collide.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import inlined, kernel
from gristmill.kernels.hashing import hash_spans
from gristmill.kernels.json_vector import load_byte, load_word
from gristmill.kernels.text_column import text_column

_A = np.uint64(0xD6E8FEB86659FD93)
_B = np.uint64(0xA0761D6478BD642F)
_C = np.uint64(0xE7037ED1A0B428DB)
_D = np.uint64(0x8EBC6AF09C88C6E3)
_E = np.uint64(0x589965CC75374CC3)


def content_hashes(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """Two 64-bit hashes of every row of a column in the layout of `text_column`; an empty row has one like others."""
    hashes = np.empty((len(offsets) - 1, 2), np.uint64)
    hashes[:, 0] = hash_spans(data, offsets, np.ones(len(offsets) - 1, np.bool_))
    hashes[:, 1] = second_hashes(data, offsets)
    return hashes


@inlined
def _step(state: np.uint64, word: np.uint64) -> np.uint64:
    state = (state ^ word) * _A
    return state ^ (state >> np.uint64(29))


@kernel
def second_hashes(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """The second half of `content_hashes`: four lanes of xor, multiply and shift over the words of a text."""
    rows = len(offsets) - 1
    base = data.ctypes.data
    hashes = np.empty(rows, np.uint64)
    for row in range(rows):
        at = offsets[row]
        end = offsets[row + 1]
        a, b, c, d = _B, _C, _D, _E
        state = np.uint64(end - at) * _C
        while at + 32 <= end:
            a = _step(a, np.uint64(load_word(base + at)))
            b = _step(b, np.uint64(load_word(base + at + 8)))
            c = _step(c, np.uint64(load_word(base + at + 16)))
            d = _step(d, np.uint64(load_word(base + at + 24)))
            at += 32
        state = _step(_step(_step(_step(state, a), b), c), d)
        while at + 8 <= end:
            state = _step(state, np.uint64(load_word(base + at)))
            at += 8
        last = np.uint64(0)
        shift = np.uint64(0)
        while at < end:
            last |= np.uint64(load_byte(base + at)) << shift
            shift += np.uint64(8)
            at += 1
        state = _step(state, last)
        state = _step(state, _D)
        hashes[row] = _step(state, _E)
    return hashes


def warm() -> None:
    """Load or compile the kernels of this file."""
    second_hashes(*text_column(["a"])[:2])
