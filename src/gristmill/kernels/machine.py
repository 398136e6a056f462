"""Machine operations that numba does not offer: unaligned loads, bit counts, copies and comparisons of many bytes.

Addresses are integers, so that kernels need one specialisation whether the bytes are in a read-only Arrow buffer or in
a NumPy array. Loaded values are signed 64-bit integers, because numba converts mixed signed and unsigned numbers to
floats. The caller keeps the memory alive and makes sure that `WIDTH` bytes may be read (or written) where a primitive
says so. LLVM lowers the vectors to the instructions of the CPU.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gristmill.kernels.numba_internals import raw_memcpy

WIDTH = 32
BLOCK = 64

_BYTE = ir.IntType(8)
_WORD = ir.IntType(64)
_VECTOR = ir.VectorType(_BYTE, WIDTH)
_LANE = ir.Constant(ir.IntType(32), 0)
_FIRST_LANE = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
_LONG_VECTOR = ir.VectorType(_BYTE, BLOCK)


def _splat(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * WIDTH)


def _load(builder: Any, address: Any, kind: Any) -> Any:
    loaded = builder.load(builder.inttoptr(address, kind.as_pointer()))
    loaded.align = 1
    return loaded


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 1


def _mask(builder: Any, flags: Any) -> Any:
    return builder.zext(builder.bitcast(flags, ir.IntType(WIDTH)), _WORD)


@intrinsic
def address_of(typing: Any, array: Any) -> Any:
    """The address of an array's first element; it does not keep the array alive."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ptrtoint(context.make_array(signature.args[0])(context, builder, args[0]).data, _WORD)

    return types.int64(array), generate


@intrinsic
def load_byte(typing: Any, address: Any) -> Any:
    """The byte at `address`, 0 to 255."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.zext(_load(builder, args[0], _BYTE), _WORD)

    return types.int64(types.int64), generate


@intrinsic
def load_word(typing: Any, address: Any) -> Any:
    """The eight bytes at `address` as one integer."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _load(builder, args[0], _WORD)

    return types.int64(types.int64), generate


@intrinsic
def load8(typing: Any, data: Any, index: Any) -> Any:
    """The eight bytes from `data[index]` on as one little-endian number; the caller stays inside the array."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        return builder.load(builder.bitcast(builder.gep(array.data, [args[1]]), _WORD.as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


@intrinsic
def store_byte(typing: Any, address: Any, value: Any) -> Any:
    """Write the low eight bits of `value` at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, builder.trunc(args[1], _BYTE), args[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def store_word(typing: Any, address: Any, value: Any) -> Any:
    """Write an integer as the eight bytes at `address`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _store(builder, args[1], args[0])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def copy_bytes(typing: Any, target: Any, source: Any, count: Any) -> Any:
    """Copy `count` bytes; the two ranges do not overlap."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _BYTE.as_pointer()
        target, source = builder.inttoptr(args[0], pointer), builder.inttoptr(args[1], pointer)
        raw_memcpy(builder, target, source, args[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), generate


def _specials(builder: Any, block: Any) -> Any:
    quotes = builder.icmp_unsigned("==", block, _splat(0x22))
    backslashes = builder.icmp_unsigned("==", block, _splat(0x5C))
    controls = builder.icmp_unsigned("<", block, _splat(0x20))
    return _mask(builder, builder.or_(builder.or_(quotes, backslashes), controls))


@intrinsic
def special_mask(typing: Any, address: Any) -> Any:
    """One bit per byte from `address` on that is not plain text in a JSON string: quotes, backslashes, controls."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _specials(builder, _load(builder, args[0], _VECTOR))

    return types.int64(types.int64), generate


@intrinsic
def copy_special(typing: Any, target: Any, source: Any) -> Any:
    """Copy `WIDTH` bytes and return a mask of those that are not plain text, like `special_mask`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = _load(builder, args[1], _VECTOR)
        _store(builder, block, args[0])
        return _specials(builder, block)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def trailing_zeros(typing: Any, value: Any) -> Any:
    """The number of trailing zero bits (64 for zero)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def leading_zeros(typing: Any, value: Any) -> Any:
    """The number of leading zero bits (64 for zero)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(types.uint64), generate


@intrinsic
def reversed_bits(typing: Any, value: Any) -> Any:
    """The number with its bits reversed."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitreverse(args[0])

    return types.uint64(types.uint64), generate


@intrinsic
def bit_count(typing: Any, value: Any) -> Any:
    """The number of set bits."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.int64(types.uint64), generate


@intrinsic
def high_mask(typing: Any, address: Any) -> Any:
    """One bit per byte from `address` on that is not ASCII."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _mask(builder, builder.icmp_signed("<", _load(builder, args[0], _VECTOR), _splat(0)))

    return types.int64(types.int64), generate


@intrinsic
def pair_mask(typing: Any, address: Any, distance: Any, one: Any, other: Any, fold: Any) -> Any:
    """One bit per byte from `address` on that is `one` and has `other` at a distance behind it.

    The bits of `fold` are set in all bytes before they are compared. `WIDTH` bytes are read at either place.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        nothing = ir.Constant(_VECTOR, ir.Undefined)

        def spread(value: Any) -> Any:
            single = builder.insert_element(nothing, builder.trunc(value, _BYTE), _LANE)
            return builder.shuffle_vector(single, nothing, _FIRST_LANE)

        def equal(place: Any, value: Any) -> Any:
            return builder.icmp_unsigned("==", builder.or_(_load(builder, place, _VECTOR), spread(fold)), spread(value))

        address, distance, one, other, fold = args
        return _mask(builder, builder.and_(equal(address, one), equal(builder.add(address, distance), other)))

    return types.int64(types.int64, types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def utf8_error_mask(typing: Any, address: Any) -> Any:
    """One bit per byte from `address` on that cannot follow the three bytes before it in UTF-8 (those are read too).

    A byte must continue a character exactly if one of the three before it requires that; the other errors are byte
    values and pairs that RFC 3629 forbids (overlong forms, surrogates, beyond U+10FFFF).
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def at(distance: int) -> Any:
            return _load(builder, builder.sub(args[0], ir.Constant(_WORD, distance)), _VECTOR)

        def holds(operator: str, block: Any, value: int) -> Any:
            return builder.icmp_unsigned(operator, block, _splat(value))

        here, one, two, three = at(0), at(1), at(2), at(3)
        continues = builder.icmp_signed("<", here, _splat(0xC0 - 256))
        expected = builder.or_(holds(">=", one, 0xC0), builder.or_(holds(">=", two, 0xE0), holds(">=", three, 0xF0)))
        errors = builder.xor(continues, expected)
        errors = builder.or_(errors, holds(">=", here, 0xF5))
        errors = builder.or_(errors, holds("==", builder.and_(here, _splat(0xFE)), 0xC0))
        for lead, operator, bound in ((0xE0, "<", 0xA0), (0xED, ">=", 0xA0), (0xF0, "<", 0x90), (0xF4, ">=", 0x90)):
            errors = builder.or_(errors, builder.and_(holds("==", one, lead), holds(operator, here, bound)))
        return _mask(builder, errors)

    return types.int64(types.int64), generate


# Blocks of `BLOCK` bytes, whose masks fill a word.


def _wide(value: int) -> ir.Constant:
    return ir.Constant(_LONG_VECTOR, [value & 255] * BLOCK)


def _holds(builder: Any, operator: str, block: Any, value: int) -> Any:
    return builder.bitcast(builder.icmp_unsigned(operator, block, _wide(value)), _WORD)


@intrinsic
def string_masks(typing: Any, address: Any, carried: Any) -> Any:
    """What the `BLOCK` bytes from `address` on are in the text of a JSON string: four masks of a bit per byte, a flag.

    The masks: quotes that no backslash escapes; what is invalid (controls, and letters that are not an escape); the
    `u` of escapes; backslashes. The flag is 1 if the last byte escapes the first of the next block; `carried` is the
    same flag for this block.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = _load(builder, args[0], _LONG_VECTOR)

        def equal(value: int, ignored: int = 0) -> Any:
            compared = builder.and_(block, _wide(~ignored)) if ignored else block
            return _holds(builder, "==", compared, value)

        def number(value: int) -> ir.Constant:
            return ir.Constant(_WORD, value)

        quotes, backslashes, letters_u = equal(0x22), equal(0x5C), equal(0x75)
        controls = _holds(builder, "<", block, 0x20)
        # Runs of backslashes that begin at an odd place are added to the mask, which carries beyond their ends: this
        # computes the parity of the length of all runs at once.
        open_ones = builder.and_(backslashes, builder.not_(args[1]))
        follows = builder.or_(builder.shl(open_ones, number(1)), args[1])
        odd = number(0xAAAAAAAAAAAAAAAA)
        odd_starts = builder.and_(builder.and_(open_ones, odd), builder.not_(follows))
        added = builder.add(odd_starts, open_ones)
        carry = builder.zext(builder.icmp_unsigned("<", added, open_ones), _WORD)
        even = number(0x5555555555555555)
        escaped = builder.and_(builder.xor(even, builder.shl(added, number(1))), follows)
        known = builder.or_(builder.or_(quotes, backslashes), builder.or_(equal(0x2F), equal(0x62, 4)))  # " \ / b f
        known = builder.or_(known, builder.or_(builder.or_(equal(0x6E), equal(0x72)), equal(0x74, 1)))  # n r t u
        wrong = builder.or_(controls, builder.and_(escaped, builder.not_(known)))
        found = [builder.and_(quotes, builder.not_(escaped)), wrong, builder.and_(escaped, letters_u), backslashes]
        return context.make_tuple(builder, signature.return_type, [*found, carry])

    return types.UniTuple(types.int64, 5)(types.int64, types.int64), generate


@intrinsic
def copy_block(typing: Any, target: Any, source: Any) -> Any:
    """Copy `BLOCK` bytes and return a mask of those that are backslashes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = _load(builder, args[1], _LONG_VECTOR)
        _store(builder, block, args[0])
        return _holds(builder, "==", block, 0x5C)

    return types.int64(types.int64, types.int64), generate


@intrinsic
def newline_mask(typing: Any, address: Any) -> Any:
    """One bit per byte of the `BLOCK` from `address` on that is a newline."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = _load(builder, args[0], _LONG_VECTOR)
        return _holds(builder, "==", block, 10)

    return types.int64(types.int64), generate
