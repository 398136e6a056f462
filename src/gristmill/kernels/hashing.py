"""Hashes of every value of a text column: 64 bits to identify rows, 128 bits to compare texts.

The first is XXH64 with seed 0 (Yann Collet's published specification); null hashes to 0 and nothing else does, so that
0 always means "there is none". Deduplication adds a second, different hash over the same eight-byte words, so that
collisions in the two halves are independent. It does not protect against texts forged to collide.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gristmill.kernels.compiler import inlined, kernel
from gristmill.kernels.machine import load_byte, load_word
from gristmill.kernels.text_column import text_column

Hashes = npt.NDArray[np.uint64]

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)
# Initial accumulators of the four lanes: P1 + P2, P2, 0 and -P1.
_LANE_1 = np.uint64(0x60EA27EEADC0B5D6)
_LANE_4 = np.uint64(0x61C8864E7A143579)

# Multipliers of the second hash.
_A = np.uint64(0xD6E8FEB86659FD93)
_B = np.uint64(0xA0761D6478BD642F)
_C = np.uint64(0xE7037ED1A0B428DB)
_D = np.uint64(0x8EBC6AF09C88C6E3)
_E = np.uint64(0x589965CC75374CC3)


def hash_column(column: pa.Array | pa.ChunkedArray | list[str | None]) -> Hashes:
    """The hash of every row; 0 where it is null."""
    data, offsets, valid = text_column(column)
    return hash_spans(data, offsets, valid)


@inlined
def _word(address: int) -> np.uint64:
    return np.uint64(load_word(address))


@inlined
def _rotate(value: np.uint64, bits: int) -> np.uint64:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@inlined
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * _P2, 31) * _P1


@inlined
def _merge(state: np.uint64, lane: np.uint64) -> np.uint64:
    return (state ^ _round(np.uint64(0), lane)) * _P1 + _P4


@kernel
def hash_spans(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64], valid: npt.NDArray[np.bool_]
) -> npt.NDArray[np.uint64]:
    """The hash of every row of a column in the layout of `text_column`."""
    rows = len(offsets) - 1
    base = data.ctypes.data
    hashes = np.empty(rows, np.uint64)
    for row in range(rows):
        if not valid[row]:
            hashes[row] = np.uint64(0)
            continue
        at = offsets[row]
        end = offsets[row + 1]
        size = np.uint64(end - at)
        if end - at >= 32:
            a, b, c, d = _LANE_1, _P2, np.uint64(0), _LANE_4
            while at + 32 <= end:
                a = _round(a, _word(base + at))
                b = _round(b, _word(base + at + 8))
                c = _round(c, _word(base + at + 16))
                d = _round(d, _word(base + at + 24))
                at += 32
            state = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
            state = _merge(_merge(_merge(_merge(state, a), b), c), d)
        else:
            state = _P5
        state += size
        while at + 8 <= end:
            state = _rotate(state ^ _round(np.uint64(0), _word(base + at)), 27) * _P1 + _P4
            at += 8
        if at + 4 <= end:
            half = np.uint64(load_byte(base + at)) | (np.uint64(load_byte(base + at + 1)) << np.uint64(8))
            half |= np.uint64(load_byte(base + at + 2)) << np.uint64(16)
            half |= np.uint64(load_byte(base + at + 3)) << np.uint64(24)
            state = _rotate(state ^ (half * _P1), 23) * _P2 + _P3
            at += 4
        while at < end:
            state = _rotate(state ^ (np.uint64(load_byte(base + at)) * _P5), 11) * _P1
            at += 1
        state = (state ^ (state >> np.uint64(33))) * _P2
        state = (state ^ (state >> np.uint64(29))) * _P3
        state ^= state >> np.uint64(32)
        hashes[row] = state if state != np.uint64(0) else np.uint64(1)
    return hashes


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
            a = _step(a, _word(base + at))
            b = _step(b, _word(base + at + 8))
            c = _step(c, _word(base + at + 16))
            d = _step(d, _word(base + at + 24))
            at += 32
        state = _step(_step(_step(_step(state, a), b), c), d)
        while at + 8 <= end:
            state = _step(state, _word(base + at))
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
