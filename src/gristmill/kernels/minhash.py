"""MinHash signatures of texts, cut into bands (Broder 1997; Indyk and Motwani 1998).

A signature holds, for each of `bands * rows` hash functions, the smallest hash of any shingle of the document. Two
documents agree in one value with a probability that equals the Jaccard similarity of their shingles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gristmill.kernels.arrays import copy_items, grown
from gristmill.kernels.compiler import kernel, leaf
from gristmill.kernels.machine import address_of
from gristmill.kernels.shingles import (
    BLOCK,
    WORDS,
    Codes,
    Hashes,
    Pages,
    Shingles,
    copy_halves,
    is_symbols,
    roll_power,
    shingle_block,
    shingle_lists,
    shingle_room,
    wordless_shingle,
)
from gristmill.kernels.text_column import Bytes, Integers
from gristmill.kernels.word_hashes import AT, DONE, SEQUENCE, STATE_SIZE, WINDOW, mixed

Factors = npt.NDArray[np.uint32]

_LANES = 16
_VECTORS = 3
TOGETHER = _LANES * _VECTORS
"""How many hash functions are computed at once."""
_LARGEST = np.uint32(0xFFFFFFFF)


def hash_factors(count: int, seed: int) -> tuple[Factors, Factors]:
    """The numbers that turn one hash function into `count` different ones: `(x ^ flip) * factor`."""
    draws = np.random.default_rng(seed).integers(0, 1 << 32, (2, count), dtype=np.uint32)
    flips, factors = np.ascontiguousarray(draws[0]), np.ascontiguousarray(draws[1] | np.uint32(1))
    flips.flags.writeable = factors.flags.writeable = False
    return flips, factors


@intrinsic
def _least_of_some(typing: Any, values: Any, count: Any, flips: Any, factors: Any, least: Any) -> Any:
    """Lower `TOGETHER` least hashes by those of one or more shingles; all but their number are addresses.

    The least hashes stay in registers while the shingles are read.
    """
    whole, vector = ir.IntType(64), ir.VectorType(ir.IntType(32), _LANES)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shingles, number = args[0], args[1]

        def place(address: Any, vectors: int) -> Any:
            moved = builder.add(address, ir.Constant(whole, 4 * _LANES * vectors))
            return builder.inttoptr(moved, vector.as_pointer())

        def loaded(address: Any) -> list[Any]:
            return [builder.load(place(address, which), align=4) for which in range(_VECTORS)]

        flipping, multiplying, before = loaded(args[2]), loaded(args[3]), loaded(args[4])
        start = builder.block
        loop, after = builder.append_basic_block("shingles"), builder.append_basic_block("done")
        builder.branch(loop)
        builder.position_at_end(loop)
        at = builder.phi(whole)
        at.add_incoming(ir.Constant(whole, 0), start)
        held = [builder.phi(vector) for _ in range(_VECTORS)]
        address = builder.add(shingles, builder.shl(at, ir.Constant(whole, 3)))
        shingle = builder.load(builder.inttoptr(address, whole.as_pointer()), align=8)
        half = builder.trunc(builder.lshr(shingle, ir.Constant(whole, 32)), ir.IntType(32))
        one = builder.insert_element(ir.Constant(vector, ir.Undefined), half, ir.Constant(ir.IntType(32), 0))
        spread = ir.Constant(ir.VectorType(ir.IntType(32), _LANES), [0] * _LANES)
        same = builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), spread)
        lower = []
        for which in range(_VECTORS):
            hashed = builder.mul(builder.xor(same, flipping[which]), multiplying[which])
            lower.append(builder.select(builder.icmp_unsigned("<", hashed, held[which]), hashed, held[which]))
        following = builder.add(at, ir.Constant(whole, 1))
        at.add_incoming(following, loop)
        for phi, first, later in zip(held, before, lower, strict=True):
            phi.add_incoming(first, start)
            phi.add_incoming(later, loop)
        builder.cbranch(builder.icmp_signed("<", following, number), loop, after)
        builder.position_at_end(after)
        for which in range(_VECTORS):
            builder.store(lower[which], place(args[4], which), align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.int64, types.int64), generate


@leaf
def _lower_least(values, count, flips, factors, least):
    """Lower the least hash of every function by those of some shingles; functions come in groups of `TOGETHER`."""
    for group in range(0, len(least) if count > 0 else 0, TOGETHER):
        _least_of_some(
            address_of(values),
            count,
            address_of(flips) + 4 * group,
            address_of(factors) + 4 * group,
            address_of(least) + 4 * group,
        )


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
    kept: Shingles,
) -> tuple[Hashes, Hashes, Integers, Shingles]:
    """The band hashes of every row of a column, a hash of its whole sequence of words, and its number of shingles.

    The number is 0 for a document without shingles, whose hashes are meaningless. Unless `kept` is empty, the last
    array holds the shingles of all rows, one row after the other, in the order of the text: those places of `kept`
    that were filled, or of a larger array.
    """
    documents = len(offsets) - 1
    result = np.empty((documents, bands), np.uint64)
    sequences = np.empty(documents, np.uint64)
    counts = np.empty(documents, np.int64)
    keep, filled = len(kept) > 0, 0
    tokens = np.zeros(shingle_room(size), np.uint64)
    heads = np.empty(len(tokens), np.uint64)
    longs = np.empty(len(tokens), np.int64)
    block = np.empty(BLOCK + WINDOW, np.uint64)
    state = np.zeros(STATE_SIZE, np.uint64)
    power = roll_power(size)
    hashes = bands * rows
    least = np.empty(-(-hashes // TOGETHER) * TOGETHER, np.uint32)
    flipping, multiplying = np.zeros(len(least), np.uint32), np.zeros(len(least), np.uint32)
    copy_items(flipping, 0, flips, hashes)
    copy_items(multiplying, 0, factors, hashes)
    for document in range(documents):
        begin, end = offsets[document], offsets[document + 1]
        tokens[:size] = 0
        state[:] = 0
        state[AT] = np.uint64(begin)
        least[:] = _LARGEST
        total = 0
        while state[DONE] == np.uint64(0):
            made = shingle_block(data, end, pages, codes, size, unit, power, tokens, heads, longs, block, state)
            _lower_least(block, made, flipping, multiplying, least)
            if keep:
                # One more, for a document that consists of symbols.
                if filled + total + made + 1 > len(kept):
                    kept = grown(kept, 2 * (filled + total + made))
                copy_halves(kept, filled + total, block, made)
            total += made
        sequences[document] = state[SEQUENCE]
        if (unit == WORDS and is_symbols(state)) or total == 0:
            only = wordless_shingle(data, begin, end)
            total = 0
            if only != np.uint64(0):
                total = 1
                sequences[document] = only
                block[0] = only
                least[:] = _LARGEST
                _lower_least(block, 1, flipping, multiplying, least)
                if keep:
                    copy_halves(kept, filled, block, 1)
        counts[document] = total
        filled += total if keep else 0
        for band in range(bands):
            combined = np.uint64(band)
            for number in range(band * rows, (band + 1) * rows):
                combined = mixed(combined ^ np.uint64(least[number])) + np.uint64(0x9E3779B97F4A7C15)
            result[document, band] = (mixed(combined) & ~np.uint64(255)) | np.uint64(band)
    return result, sequences, counts, kept[:filled]


def listed_shingles(
    data: Bytes, offsets: Integers, pages: Pages, codes: Codes, size: int, unit: int
) -> tuple[Shingles, Integers, Hashes]:
    """The shingles of every row of a column as `band_hashes` sees them, for signatures that are made elsewhere.

    Returns all shingles, one row after the other, where each row begins, and a hash of its whole sequence of words.
    """
    rows = np.arange(len(offsets) - 1)
    return shingle_lists(data, offsets, rows, pages, codes, size, unit, False)


@kernel
def signature_sets(values: Shingles, bounds: Integers, flips: Factors, factors: Factors) -> tuple[Hashes, Integers]:
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
                least = min(least, np.uint32((values[at] ^ flips[number]) * factors[number]))
            result[sizes[row] + number] = (np.uint64(number) << np.uint64(32)) | np.uint64(least)
    return result, sizes
