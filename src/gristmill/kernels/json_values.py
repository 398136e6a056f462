"""One JSON value over raw bytes: where it ends and what it is, exactly as in RFC 8259; and strings without escapes.

Addresses are those of a buffer that outlives the call. A result below zero is an error: `BAD_VALUE` and its neighbours.
Nesting uses an explicit stack, so that no input can overflow the machine's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import inlined
from gristmill.kernels.machine import (
    BLOCK,
    copy_block,
    load_byte,
    store_byte,
    string_masks,
    trailing_zeros,
)

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MAX_DEPTH = 1000

# What a value is. STRING can be copied as it is, ESCAPED needs decoding.
MISSING, NULL, TRUE, FALSE, INTEGER, FLOAT, STRING, ESCAPED, OBJECT, ARRAY = range(10)
# What a record is; errors inside the kernels are the same numbers below zero.
GOOD, MALFORMED, NOT_AN_OBJECT, TOO_DEEP = range(4)
BAD_VALUE = -MALFORMED
BAD_RECORD = -NOT_AN_OBJECT
BAD_DEPTH = -TOO_DEEP
KIND_BITS = 4
# What the letter after a backslash stands for; 0 if it is not a one-letter escape.
_ESCAPES = np.zeros(256, np.uint8)
_ESCAPES[list(b'"\\/bfnrt')] = list(b'"\\/\b\f\n\r\t')
# Where a container is being read; a closing bracket may come in the first two places.
_AFTER_VALUE, _OPENED, _BEFORE_MEMBER, _BEFORE_VALUE = range(4)


@inlined
def is_space(byte: int) -> bool:
    """Whether a byte is white space between JSON values."""
    return byte == 32 or byte == 10 or byte == 13 or byte == 9


@inlined
def skip_space(base: int, i: int, end: int) -> int:
    """The first place from `i` on that is not white space, or `end`."""
    while i < end and is_space(load_byte(base + i)):
        i += 1
    return i


@inlined
def _hex4(base: int, i: int) -> int:
    """The number that four hexadecimal digits at `i` spell, or -1."""
    value = 0
    for k in range(4):
        byte = load_byte(base + i + k)
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= (byte | 32) <= 102:
            digit = (byte | 32) - 87
        else:
            return -1
        value = value * 16 + digit
    return value


@inlined
def read_string(base: int, i: int, end: int, size: int) -> int:
    """Twice the position of the quote that closes the string whose text starts at `i`, plus one if it has escapes."""
    escapes = 0
    carried = 0
    while i < end and i + BLOCK <= size:
        quotes, wrong, unicode, backslashes, carried = string_masks(base + i, carried)
        stops = quotes | wrong | unicode
        while stops != 0:
            lowest = stops & -stops
            at = i + trailing_zeros(stops)
            if at >= end or wrong & lowest != 0:
                return BAD_VALUE
            if quotes & lowest != 0:
                escapes |= backslashes & (lowest - 1)
                return int(2 * at + (1 if escapes != 0 else 0))
            if at + 5 > end or _hex4(base, at + 1) < 0:
                return BAD_VALUE
            stops ^= lowest
        escapes |= backslashes
        i += BLOCK
    escaped = 1 if escapes != 0 else 0
    i -= carried
    while i < end:
        byte = load_byte(base + i)
        if byte == 34:
            return 2 * i + escaped
        if byte < 32:
            return BAD_VALUE
        if byte != 92:
            i += 1
            continue
        escaped = 1
        if i + 1 >= end:
            return BAD_VALUE
        byte = load_byte(base + i + 1)
        if byte == 117:
            if i + 6 > end or _hex4(base, i + 2) < 0:
                return BAD_VALUE
            i += 6
        elif _ESCAPES[byte] != 0:
            i += 2
        else:
            return BAD_VALUE
    return BAD_VALUE


@inlined
def _digits(base: int, i: int, end: int) -> int:
    while i < end and 48 <= load_byte(base + i) <= 57:
        i += 1
    return i


@inlined
def _scalar(base: int, i: int, end: int) -> int:
    """The end of the literal or number at `i` and its kind, packed."""
    byte = load_byte(base + i)
    if byte == 116 or byte == 110:
        word = 0x65757274 if byte == 116 else 0x6C6C756E  # "true", "null"
        if i + 4 > end:
            return BAD_VALUE
        for k in range(4):
            if load_byte(base + i + k) != (word >> (8 * k)) & 255:
                return BAD_VALUE
        return ((i + 4) << KIND_BITS) | (TRUE if byte == 116 else NULL)
    if byte == 102:
        if i + 5 > end:
            return BAD_VALUE
        for k in range(5):
            if load_byte(base + i + k) != (0x65736C6166 >> (8 * k)) & 255:  # "false"
                return BAD_VALUE
        return ((i + 5) << KIND_BITS) | FALSE
    kind = INTEGER
    if byte == 45:
        i += 1
    start = i
    i = _digits(base, i, end)
    if i == start or (i > start + 1 and load_byte(base + start) == 48):
        return BAD_VALUE
    if i < end and load_byte(base + i) == 46:
        kind = FLOAT
        start = i + 1
        i = _digits(base, start, end)
        if i == start:
            return BAD_VALUE
    if i < end and (load_byte(base + i) | 32) == 101:
        kind = FLOAT
        i += 1
        if i < end and (load_byte(base + i) == 43 or load_byte(base + i) == 45):
            i += 1
        start = i
        i = _digits(base, start, end)
        if i == start:
            return BAD_VALUE
    return (i << KIND_BITS) | kind


@inlined
def _container(base: int, i: int, end: int, size: int, stack: Bytes) -> int:
    """The position after the object or array that opens at `i`, or an error; the record's own object is one level."""
    opener = load_byte(base + i)
    stack[0] = opener
    depth = 1
    i += 1
    state = _OPENED
    while True:
        i = skip_space(base, i, end)
        if i >= end:
            return BAD_VALUE
        byte = load_byte(base + i)
        if state <= _OPENED and byte == opener + 2:  # "}" and "]" lie two above their openers.
            i += 1
            depth -= 1
            if depth == 0:
                return i
            opener = np.int64(stack[depth - 1])
            state = _AFTER_VALUE
            continue
        if state == _AFTER_VALUE:
            if byte != 44:
                return BAD_VALUE
            i += 1
            state = _BEFORE_MEMBER
            continue
        is_key = opener == 123 and state != _BEFORE_VALUE
        if byte == 34:
            quote = read_string(base, i + 1, end, size)
            if quote < 0:
                return quote
            i = (quote >> 1) + 1
            state = _AFTER_VALUE
            if is_key:
                i = skip_space(base, i, end)
                if i >= end or load_byte(base + i) != 58:
                    return BAD_VALUE
                i += 1
                state = _BEFORE_VALUE
        elif is_key:
            return BAD_VALUE
        elif byte == 123 or byte == 91:
            if depth >= MAX_DEPTH - 1:
                return BAD_DEPTH
            stack[depth] = byte
            opener = byte
            depth += 1
            i += 1
            state = _OPENED
        else:
            packed = _scalar(base, i, end)
            if packed < 0:
                return packed
            i = packed >> KIND_BITS
            state = _AFTER_VALUE


@inlined
def read_value(base: int, i: int, end: int, size: int, stack: Bytes) -> int:
    """The end of any value at `i` and its kind, packed, or an error."""
    byte = load_byte(base + i)
    if byte == 34:
        quote = read_string(base, i + 1, end, size)
        if quote < 0:
            return quote
        return (((quote >> 1) + 1) << KIND_BITS) | (ESCAPED if quote & 1 else STRING)
    if byte == 123 or byte == 91:
        after = _container(base, i, end, size, stack)
        if after < 0:
            return after
        return (after << KIND_BITS) | (OBJECT if byte == 123 else ARRAY)
    return _scalar(base, i, end)


@inlined
def _utf8(target: int, code: int) -> int:
    """Write one code point as UTF-8; the address after it."""
    if code < 0x80:
        store_byte(target, code)
        return target + 1
    if code < 0x800:
        store_byte(target, 0xC0 | (code >> 6))
        store_byte(target + 1, 0x80 | (code & 63))
        return target + 2
    if code < 0x10000:
        store_byte(target, 0xE0 | (code >> 12))
        store_byte(target + 1, 0x80 | ((code >> 6) & 63))
        store_byte(target + 2, 0x80 | (code & 63))
        return target + 3
    store_byte(target, 0xF0 | (code >> 18))
    store_byte(target + 1, 0x80 | ((code >> 12) & 63))
    store_byte(target + 2, 0x80 | ((code >> 6) & 63))
    store_byte(target + 3, 0x80 | (code & 63))
    return target + 4


@inlined
def unescape(base: int, i: int, end: int, size: int, target: int) -> int:
    """Decode the valid string text from `i` to `end`; the address after it. Half of a surrogate pair becomes U+FFFD.

    Writes up to `BLOCK` bytes past the end. The result is never longer than the text.
    """
    while i < end:
        if i + 2 * BLOCK + 2 <= size:
            # Each escape shifts the rest of the block back by one byte: it is written again, a byte earlier.
            mask = copy_block(target, base + i)
            stop = min(BLOCK, end - i)
            done = 0
            while mask != 0:
                at = trailing_zeros(mask)
                if at >= stop:
                    break
                byte = load_byte(base + i + at + 1)
                if byte == 117:
                    stop = at
                    break
                target += at - done
                store_byte(target, _ESCAPES[byte])
                target += 1
                done = at + 2
                copy_block(target, base + i + done)
                lowest = mask & -mask
                mask &= ~(lowest | (lowest << 1))
            if done < stop:
                target += stop - done
                done = stop
            i += done
            if mask == 0 or i >= end:
                continue
        byte = load_byte(base + i)
        if byte != 92:
            store_byte(target, byte)
            i += 1
            target += 1
            continue
        byte = load_byte(base + i + 1)
        if byte != 117:
            store_byte(target, _ESCAPES[byte])
            i += 2
            target += 1
            continue
        code = _hex4(base, i + 2)
        i += 6
        if 0xD800 <= code <= 0xDFFF:
            low = -1
            if code < 0xDC00 and i + 6 <= end and load_byte(base + i) == 92 and load_byte(base + i + 1) == 117:
                low = _hex4(base, i + 2)
            if 0xDC00 <= low <= 0xDFFF:
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                i += 6
            else:
                code = 0xFFFD
        target = _utf8(target, code)
    return target
