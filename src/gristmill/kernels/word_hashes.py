r"""Hashes of the words (or characters) of a text, a block at a time.

If a text is ASCII, words are found in 64 bytes at a time, the first eight letters of a word are taken as one number,
and many words are hashed at once. Everything else is processed character by character. The hash is the same: that of a
word begins with `WORD_SEED`, and every letter in lower case is added by an exclusive or and a multiplication, as in
FNV-1a (Fowler, Noll and Vo 1991).
"""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gristmill.kernels.byte_masks import DIGITS, WHITE, WIDE, byte_masks
from gristmill.kernels.compiler import leaf, routine
from gristmill.kernels.machine import bit_count, leading_zeros, load8, trailing_zeros
from gristmill.kernels.utf8 import ALL, ONE, ZERO, decode, flags_of, load_part

ALONE = np.uint32(1 << 30)
"""Marks a character that is a word by itself."""
BLANK = np.uint32(1 << 31)
"""Marks white space."""

AT, BLANK_BEFORE, ROLL, COUNT, SEQUENCE, DONE, LETTERS, SYMBOLS = 0, 1, 2, 3, 4, 5, 6, 7
"""Indices of the state in which kernels keep their position in a document."""
STATE_SIZE = 8

WORD_SEED = np.uint64(0x9AE16A3B2F90404F)
WORD_PRIME = np.uint64(0x100000001B3)
WINDOW = 64
"""Number of bytes examined at once. At most half this number of words begin in them."""
_MANY = 16
"""With this many non-ASCII bytes in a window, it is faster to process all of it character by character."""
_UNDERSCORE = np.uint32(ord("_"))
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_LONG = 8
LANES = 8
"""Number of hashes computed at once."""
_EIGHT = ir.VectorType(ir.IntType(64), LANES)
_masks = byte_masks(ascii_letters.encode() + DIGITS + b"_", b"_", WHITE, WIDE)


@leaf
def mixed(value):
    """A number whose bits all depend on all bits of `value`."""
    value = (value ^ (value >> np.uint64(33))) * _MIX_1
    value = (value ^ (value >> np.uint64(33))) * _MIX_2
    return value ^ (value >> np.uint64(33))


def _numbers(value: int) -> ir.Constant:
    return ir.Constant(_EIGHT, [value] * LANES)


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    start = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(start, [index]), _EIGHT.as_pointer())


@intrinsic
def hash_heads(typing: Any, tokens: Any, heads: Any, index: Any) -> Any:
    """Make `tokens[index]` and the seven after it the hashes of the letters in `heads`, up to eight for each.

    A head holds ASCII characters, the first in its lowest bits, and zeros after the last. Where it holds none, a token
    stays what it is.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[2])
        token = builder.load(place, align=8)
        head = builder.load(_place(context, builder, signature.args[1], args[1], args[2]), align=8)
        from_a = builder.add(head, _numbers(0x3F3F3F3F3F3F3F3F))
        after_z = builder.add(head, _numbers(0x2525252525252525))
        capitals = builder.and_(builder.and_(from_a, builder.not_(after_z)), _numbers(0x8080808080808080))
        head = builder.or_(head, builder.lshr(capitals, _numbers(2)))
        token = builder.select(builder.icmp_unsigned("==", head, _numbers(0)), token, _numbers(int(WORD_SEED)))
        for shift in range(0, 64, 8):
            letter = builder.and_(builder.lshr(head, _numbers(shift)), _numbers(255))
            longer = builder.mul(builder.xor(token, letter), _numbers(int(WORD_PRIME)))
            token = builder.select(builder.icmp_unsigned("!=", letter, _numbers(0)), longer, token)
        builder.store(token, place, align=8)
        return context.get_dummy_value()

    return types.void(tokens, heads, types.int64), generate


@intrinsic
def mix_eight(typing: Any, values: Any, index: Any) -> Any:
    """Replace `values[index]` and the seven after it by what `mixed` makes of them."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], args[0], args[1])
        value = builder.load(place, align=8)
        for factor in (_MIX_1, _MIX_2):
            value = builder.xor(value, builder.lshr(value, _numbers(33)))
            value = builder.mul(value, _numbers(int(factor)))
        builder.store(builder.xor(value, builder.lshr(value, _numbers(33))), place, align=8)
        return context.get_dummy_value()

    return types.void(values, types.int64), generate


@routine
def word_block(data, end, pages, codes, tokens, first, heads, longs, state):
    """Fill `tokens` from `first` on with the hashes of the next words of the document that ends at `end`.

    Returns how far it is filled; it stops before it is full. `state[AT]` is the position to continue from, which is
    never within a word. `heads` and `longs` are as long as `tokens`, to work with.
    """
    at = np.int64(state[AT])
    letters = np.int64(state[LETTERS])
    symbols = np.int64(state[SYMBOLS])
    size = len(data)
    made = first
    many = 0
    while at < end and made + WINDOW <= len(tokens):
        taken = 0
        stop_at = end
        if at + WINDOW <= size:
            words, low, blank, high = _masks(data, at, size)
            # Other characters and an underscore that no word has before it are not looked at here.
            stop = high | (low & ~(words << ONE))
            inside = (stop & (~stop + ONE)) - ONE
            if end - at < WINDOW:
                inside &= (ONE << np.uint64(end - at)) - ONE
            words &= inside
            taken = bit_count(inside)
            # What comes character by character ends behind what is not looked at here, or later in such a text.
            stop_at = min(end, at + (WINDOW if bit_count(high) > _MANY else taken + 1))
            if taken > 0 and (words >> np.uint64(taken - 1)) & ONE != ZERO and at + taken < end:
                # The last word may continue.
                taken = 64 - leading_zeros(inside & ~words)
        if taken > 0:
            inside = ALL >> np.uint64(64 - taken)
            words &= inside
            letters += bit_count(words)
            symbols += bit_count(inside & ~words & ~blank)
            starts = words & ~(words << ONE)
            while starts != ZERO:
                begin = trailing_zeros(starts)
                starts &= starts - ONE
                length = trailing_zeros(~(words >> np.uint64(begin)))
                place = at + begin
                head = load8(data, place) if place + 8 <= size else load_part(data, place, min(length, _LONG))
                heads[made] = head & (ALL >> np.uint64(64 - 8 * min(length, _LONG)))
                longs[many] = place << 24 | length << 16 | made
                many += length > _LONG
                made += 1
            at += taken
            continue
        while at < stop_at:
            point, width = decode(data, at)
            code = flags_of(point, pages, codes)
            if code != np.uint32(0) and code < ALONE and code != _UNDERSCORE:
                token = WORD_SEED
                while True:
                    token = (token ^ np.uint64(code)) * WORD_PRIME
                    at += width
                    letters += width
                    if at >= end:
                        break
                    point, width = decode(data, at)
                    code = flags_of(point, pages, codes)
                    if code == np.uint32(0) or code >= ALONE:
                        break
                tokens[made], heads[made] = token, ZERO
                made += 1
                continue
            if code >= ALONE and code < BLANK:
                tokens[made], heads[made] = np.uint64(code) * WORD_SEED, ZERO
                made += 1
                letters += width
            elif code < BLANK:
                symbols += width
            at += width
    # The last eight may extend beyond the hashes: there is room, and those values are not read.
    for place in range(first, made, LANES):
        hash_heads(tokens, heads, place)
    ascii_codes = np.int64(pages[0]) * 256
    for number in range(many):
        place, length, which = longs[number] >> 24, longs[number] >> 16 & 255, longs[number] & 0xFFFF
        token = tokens[which]
        for at_letter in range(place + _LONG, place + length):
            token = (token ^ np.uint64(codes[ascii_codes + data[at_letter]])) * WORD_PRIME
        tokens[which] = token
    for place in range(first, made, LANES):
        mix_eight(tokens, place)
    state[AT] = np.uint64(at)
    state[LETTERS] = np.uint64(letters)
    state[SYMBOLS] = np.uint64(symbols)
    return made


@routine
def character_block(data, end, pages, codes, tokens, first, state):
    """Like `word_block`, with each character as a word, and a run of white space as one."""
    at = np.int64(state[AT])
    blank = state[BLANK_BEFORE] != ZERO
    made = first
    while at < end and made < len(tokens):
        point, width = decode(data, at)
        code = flags_of(point, pages, codes)
        at += width
        if code == BLANK and blank:
            continue
        blank = code == BLANK
        value = np.uint64(code & np.uint32(0x3FFFFFFF)) if code != np.uint32(0) else np.uint64(point)
        tokens[made] = mixed((value + ONE) * WORD_SEED)
        made += 1
    state[AT] = np.uint64(at)
    state[BLANK_BEFORE] = ONE if blank else ZERO
    return made
