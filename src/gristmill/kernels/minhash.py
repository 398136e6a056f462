"""MinHash signatures of texts, cut into bands (Broder 1997; Indyk and Motwani 1998).

A signature holds, for each of `bands * rows` hash functions, the smallest hash of any shingle of the document. Two
documents agree in one value with a probability that equals the Jaccard similarity of their shingles.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import kernel
from gristmill.kernels.shingles import (
    BLOCK,
    STATE_SIZE,
    Codes,
    Hashes,
    Pages,
    is_symbols,
    mixed,
    roll_power,
    shingle_block,
    wordless_shingle,
)
from gristmill.kernels.text_column import Bytes, Integers

Factors = npt.NDArray[np.uint32]


def hash_factors(count: int, seed: int) -> tuple[Factors, Factors]:
    """The numbers that make `count` different hash functions `(x ^ flip) * factor` of one."""
    draws = np.random.default_rng(seed).integers(0, 1 << 32, (2, count), dtype=np.uint32)
    flips, factors = np.ascontiguousarray(draws[0]), np.ascontiguousarray(draws[1] | np.uint32(1))
    flips.flags.writeable = factors.flags.writeable = False
    return flips, factors


@kernel
def band_hashes(
    data: Bytes,
    offsets: Integers,
    pages: Pages,
    codes: Codes,
    size: int,
    unit: int,
    flips: Factors,
    factors: Factors,
    bands: int,
    rows: int,
) -> tuple[Hashes, Hashes, Integers]:
    """The band hashes of every row of a column, a hash of its whole sequence of words, and its number of shingles.

    The number of a document without any shingle is 0, and its hashes mean nothing.
    """
    documents = len(offsets) - 1
    result = np.empty((documents, bands), np.uint64)
    sequences = np.empty(documents, np.uint64)
    counts = np.empty(documents, np.int64)
    ring = np.zeros(size, np.uint64)
    block = np.empty(BLOCK, np.uint64)
    state = np.zeros(STATE_SIZE, np.uint64)
    power = roll_power(size)
    hashes = bands * rows
    least = np.empty(hashes, np.uint32)
    for document in range(documents):
        begin, end = offsets[document], offsets[document + 1]
        ring[:] = 0
        state[:] = 0
        state[0] = np.uint64(begin)
        least[:] = np.uint32(0xFFFFFFFF)
        total = 0
        while True:
            made = shingle_block(data, end, pages, codes, size, unit, power, ring, block, state)
            if made == 0:
                if state[5] != np.uint64(0):
                    break
                continue
            total += made
            for place in range(made):
                value = np.uint32(block[place] >> np.uint64(32))
                for number in range(hashes):
                    hashed = np.uint32((value ^ flips[number]) * factors[number])
                    least[number] = min(least[number], hashed)
        sequences[document] = state[4]
        if (unit == 0 and is_symbols(state)) or total == 0:
            only = wordless_shingle(data, begin, end)
            total = 0
            if only != np.uint64(0):
                total = 1
                sequences[document] = only
                value = np.uint32(only >> np.uint64(32))
                for number in range(hashes):
                    least[number] = np.uint32((value ^ flips[number]) * factors[number])
        counts[document] = total
        for band in range(bands):
            combined = np.uint64(band)
            for number in range(band * rows, (band + 1) * rows):
                combined = mixed(combined ^ np.uint64(least[number])) + np.uint64(0x9E3779B97F4A7C15)
            result[document, band] = (mixed(combined) & ~np.uint64(255)) | np.uint64(band)
    return result, sequences, counts


@kernel
def listed_shingles(
    data: Bytes, offsets: Integers, pages: Pages, codes: Codes, size: int, unit: int
) -> tuple[Factors, Integers, Hashes]:
    """The shingles of every row of a column as `band_hashes` sees them, for signatures that are made elsewhere.

    Returns the upper halves of all shingles, one row after the other, where each row begins, and a hash of its whole
    sequence of words.
    """
    documents = len(offsets) - 1
    bounds = np.zeros(documents + 1, np.int64)
    sequences = np.empty(documents, np.uint64)
    out = np.empty(max(4096, (offsets[documents] - offsets[0]) // 4), np.uint32)
    ring = np.zeros(size, np.uint64)
    block = np.empty(BLOCK, np.uint64)
    state = np.zeros(STATE_SIZE, np.uint64)
    power = roll_power(size)
    filled = 0
    for document in range(documents):
        begin, end = offsets[document], offsets[document + 1]
        ring[:] = 0
        state[:] = 0
        state[0] = np.uint64(begin)
        start = filled
        while True:
            made = shingle_block(data, end, pages, codes, size, unit, power, ring, block, state)
            if made == 0 and state[5] != np.uint64(0):
                break
            if filled + max(1, made) > len(out):
                grown = np.empty(2 * len(out) + made, np.uint32)
                grown[:filled] = out[:filled]
                out = grown
            for place in range(made):
                out[filled + place] = np.uint32(block[place] >> np.uint64(32))
            filled += made
        sequences[document] = state[4]
        if (unit == 0 and is_symbols(state)) or filled == start:
            filled = start
            only = wordless_shingle(data, begin, end)
            if only != np.uint64(0):
                sequences[document] = only
                if filled == len(out):
                    grown = np.empty(2 * len(out), np.uint32)
                    grown[:filled] = out[:filled]
                    out = grown
                out[filled] = np.uint32(only >> np.uint64(32))
                filled += 1
        bounds[document + 1] = filled
    return out[:filled].copy(), bounds, sequences


@kernel
def signature_sets(values: Hashes, bounds: Integers, flips: Factors, factors: Factors) -> tuple[Hashes, Integers]:
    """Sets of shingles as signatures, again as sorted sets: one element for each hash function and its least hash.

    Two signatures of `n` functions that agree in `a` of them are sets with a Jaccard similarity of `a / (2 n - a)`.
    Empty sets stay empty.
    """
    hashes = len(flips)
    sizes = np.zeros(len(bounds), np.int64)
    for row in range(len(bounds) - 1):
        sizes[row + 1] = sizes[row] + (hashes if bounds[row + 1] > bounds[row] else 0)
    result = np.empty(sizes[-1], np.uint64)
    for row in range(len(bounds) - 1):
        if sizes[row + 1] == sizes[row]:
            continue
        for number in range(hashes):
            least = np.uint32(0xFFFFFFFF)
            for at in range(bounds[row], bounds[row + 1]):
                value = np.uint32(values[at] >> np.uint64(32))
                least = min(least, np.uint32((value ^ flips[number]) * factors[number]))
            result[sizes[row] + number] = (np.uint64(number) << np.uint64(32)) | np.uint64(least)
    return result, sizes
