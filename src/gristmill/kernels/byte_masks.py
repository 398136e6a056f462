"""Classes of 64 bytes at a time as bit masks, for kernels that walk over text.

LLVM compares the bytes with the vector instructions of the CPU. Bit `i` of a class's mask says whether byte `i` is in
it.
"""

from __future__ import annotations

import string
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gristmill.kernels.compiler import leaf, routine
from gristmill.kernels.machine import BLOCK, bit_count, leading_zeros, trailing_zeros
from gristmill.kernels.numba_internals import raw_memcpy
from gristmill.kernels.utf8 import ALL, ONE, space_width

# Classes that more than one kernel uses.
WHITE = b"\t\n\x0b\x0c\r\x1c\x1d\x1e\x1f "  # ASCII white space of str.isspace
MAYBE_WHITE = b"\xc2\xe1\xe2\xe3"  # first bytes of white space beyond ASCII
LETTERS = string.ascii_letters.encode()
DIGITS = string.digits.encode()
CONTINUATIONS = bytes(range(0x80, 0xC0))  # bytes that continue a character
WIDE = bytes(range(0x80, 0x100))  # bytes of characters beyond ASCII
LEADS = bytes(range(0xC0, 0x100))  # first bytes of characters beyond ASCII

_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_BYTE, BLOCK)
_FLAGS = ir.VectorType(ir.IntType(1), BLOCK)


def byte_masks(*classes: bytes) -> Any:
    """An operation `masks(data, at, end)` for kernels: a mask per class of the 64 bytes from `data[at]` on.

    Bytes from `end` on are not read and count as zero bytes. The caller makes sure that `at < end <= len(data)`.
    """
    ranges = [_ranges(members) for members in classes]

    @intrinsic
    def masks(typing: Any, data: Any, at: Any, end: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            start = builder.gep(array.data, [args[1]])
            left = builder.sub(args[2], args[1])
            whole = builder.icmp_signed(">=", left, ir.Constant(_WORD, BLOCK))
            with builder.goto_entry_block():
                rest = builder.alloca(_VECTOR)
            copy = builder.bitcast(rest, _BYTE.as_pointer())
            with builder.if_then(builder.not_(whole), likely=False):
                builder.store(ir.Constant(_VECTOR, [0] * BLOCK), rest, align=1)
                raw_memcpy(builder, copy, start, left, 1)
            source = builder.bitcast(builder.select(whole, start, copy), _VECTOR.as_pointer())
            block = builder.load(source, align=1)
            found = [_mask(builder, block, members) for members in ranges]
            return context.make_tuple(builder, signature.return_type, found)

        return types.UniTuple(types.uint64, len(ranges))(data, types.int64, types.int64), generate

    return masks


def _ranges(members: bytes) -> list[tuple[int, int]]:
    """The runs of consecutive bytes, each as its first and last."""
    found: list[tuple[int, int]] = []
    for byte in sorted(set(members)):
        if found and found[-1][1] == byte - 1:
            found[-1] = (found[-1][0], byte)
        else:
            found.append((byte, byte))
    return found


def _mask(builder: Any, block: Any, members: list[tuple[int, int]]) -> Any:
    flags = ir.Constant(_FLAGS, [0] * BLOCK)
    for low, high in members:
        if low == high:
            inside = builder.icmp_unsigned("==", block, _splat(low))
        else:
            inside = builder.icmp_unsigned("<=", builder.sub(block, _splat(low)), _splat(high - low))
        flags = builder.or_(flags, inside)
    return builder.bitcast(flags, _WORD)


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * BLOCK)


@leaf
def with_wide_spaces(data, at, end, spaces, maybe):
    """A mask of white space, ASCII and beyond, except for a character that continues in the next block."""
    while maybe:
        bit = trailing_zeros(maybe)
        maybe &= maybe - ONE
        if data[at + bit] == 0xE3 and at + bit + 1 < end and data[at + bit + 1] != 0x80:
            continue  # kana, which can fill a whole page
        width = space_width(data, at + bit, end)
        if bit + width <= 64:
            spaces |= ((ONE << np.uint64(width)) - ONE) << np.uint64(bit)
    return spaces


@leaf
def whole_words(at, end, spaces):
    """The number of bytes of a block that cut no word: up to its last white space, or to the end of the text.

    0 when a word begins at `at` that is longer than the block.
    """
    if at + 64 >= end:
        return end - at
    return 64 - leading_zeros(spaces)


_space_masks = byte_masks(WHITE, MAYBE_WHITE)


@routine
def long_word_end(data, at, end):
    """Where the word ends that begins at `at` and is longer than a block."""
    while True:
        at += BLOCK - 2  # white space may begin here that is not completely in the block
        if at >= end:
            return end
        spaces, maybe = _space_masks(data, at, end)
        spaces = with_wide_spaces(data, at, end, spaces, maybe)
        if spaces:
            return at + trailing_zeros(spaces)


@leaf
def first_bits(count):
    """A mask of the first 1 to 64 bits."""
    return ALL >> np.uint64(64 - count)


@leaf
def write_places(places, count, at, mask):
    """Append the positions of a block's set bits, relative to `at`; returns the new count."""
    found = count + bit_count(mask)
    if count + BLOCK <= len(places):
        # Eight at a time, too many rather than too few: their number is unpredictable, and a misprediction costs more
        # than the writes.
        while count < found:
            for step in range(8):
                places[count + step] = at + trailing_zeros(mask)
                mask &= mask - ONE
            count += 8
        return found
    while mask:
        places[count] = at + trailing_zeros(mask)
        count += 1
        mask &= mask - ONE
    return found
