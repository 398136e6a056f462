"""Strict JSON over raw bytes: validate records, find the values of top-level keys, decode strings, remove members.

Records are spans of one buffer whose address and size are given. One pass accepts exactly what RFC 8259 accepts (UTF-8
itself is `first_utf8_error`'s concern) and, meanwhile, collects the names of top-level keys and the spans of wanted values.
Nesting uses an explicit stack, so that no input can exhaust the machine's.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import inlined, kernel
from gristmill.kernels.json_vector import (
    WIDTH,
    copy_block,
    copy_bytes,
    first_bit,
    load_byte,
    load_word,
    special_mask,
    store_byte,
    utf8_error_mask,
)

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

MAX_DEPTH = 1000

# What a value is. STRING can be copied as it is, ESCAPED needs decoding.
MISSING, NULL, TRUE, FALSE, INTEGER, FLOAT, STRING, ESCAPED, OBJECT, ARRAY = range(10)
# What a record is. A record that is valid JSON but not an object is NOT_AN_OBJECT.
GOOD, MALFORMED, NOT_AN_OBJECT, TOO_DEEP = range(4)

_MALFORMED = -1
_TOO_DEEP = -2
_KIND_BITS = 4
_PREDICTED = 64


@inlined
def _is_space(byte: int) -> bool:
    return byte == 32 or byte == 10 or byte == 13 or byte == 9


@inlined
def _skip_space(base: int, i: int, end: int) -> int:
    while i < end and _is_space(load_byte(base + i)):
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
def _string(base: int, i: int, end: int, size: int) -> int:
    """Twice the position of the quote that closes the string whose text starts at `i`, plus one if it has escapes."""
    escaped = 0
    while i < end:
        if i + WIDTH <= size:
            mask = special_mask(base + i)
            if mask == 0:
                i += WIDTH
                continue
            i += first_bit(mask)
            if i >= end:
                return _MALFORMED
        byte = load_byte(base + i)
        if byte == 34:
            return 2 * i + escaped
        if byte < 32:
            return _MALFORMED
        if byte != 92:
            i += 1
            continue
        escaped = 1
        if i + 1 >= end:
            return _MALFORMED
        byte = load_byte(base + i + 1)
        if byte == 117:
            if i + 6 > end or _hex4(base, i + 2) < 0:
                return _MALFORMED
            i += 6
        elif byte in (34, 92, 47, 98, 102, 110, 114, 116):
            i += 2
        else:
            return _MALFORMED
    return _MALFORMED


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
            return _MALFORMED
        for k in range(4):
            if load_byte(base + i + k) != (word >> (8 * k)) & 255:
                return _MALFORMED
        return ((i + 4) << _KIND_BITS) | (TRUE if byte == 116 else NULL)
    if byte == 102:
        if i + 5 > end:
            return _MALFORMED
        for k in range(5):
            if load_byte(base + i + k) != (0x65736C6166 >> (8 * k)) & 255:  # "false"
                return _MALFORMED
        return ((i + 5) << _KIND_BITS) | FALSE
    kind = INTEGER
    if byte == 45:
        i += 1
    start = i
    i = _digits(base, i, end)
    if i == start or (i > start + 1 and load_byte(base + start) == 48):
        return _MALFORMED
    if i < end and load_byte(base + i) == 46:
        kind = FLOAT
        start = i + 1
        i = _digits(base, start, end)
        if i == start:
            return _MALFORMED
    if i < end and (load_byte(base + i) | 32) == 101:
        kind = FLOAT
        i += 1
        if i < end and (load_byte(base + i) == 43 or load_byte(base + i) == 45):
            i += 1
        start = i
        i = _digits(base, start, end)
        if i == start:
            return _MALFORMED
    return (i << _KIND_BITS) | kind


@inlined
def _container(base: int, i: int, end: int, size: int, stack: Bytes) -> int:
    """The position after the object or array that opens at `i`, or an error; the record's own object is one level."""
    opener = load_byte(base + i)
    stack[0] = opener
    depth = 1
    i += 1
    opened = True
    after_value = False
    while True:
        i = _skip_space(base, i, end)
        if i >= end:
            return _MALFORMED
        byte = load_byte(base + i)
        if (after_value or opened) and byte == opener + 2:  # "}" and "]" lie two above their openers
            i += 1
            depth -= 1
            if depth == 0:
                return i
            opener = np.int64(stack[depth - 1])
            after_value = True
            opened = False
            continue
        if after_value:
            if byte != 44:
                return _MALFORMED
            i += 1
            after_value = False
            continue
        opened = False
        if opener == 123:
            if byte != 34:
                return _MALFORMED
            quote = _string(base, i + 1, end, size)
            if quote < 0:
                return quote
            i = _skip_space(base, (quote >> 1) + 1, end)
            if i >= end or load_byte(base + i) != 58:
                return _MALFORMED
            i = _skip_space(base, i + 1, end)
            if i >= end:
                return _MALFORMED
            byte = load_byte(base + i)
        if byte == 34:
            quote = _string(base, i + 1, end, size)
            if quote < 0:
                return quote
            i = (quote >> 1) + 1
            after_value = True
        elif byte == 123 or byte == 91:
            if depth >= MAX_DEPTH - 1:
                return _TOO_DEEP
            stack[depth] = byte
            opener = byte
            depth += 1
            i += 1
            opened = True
        else:
            packed = _scalar(base, i, end)
            if packed < 0:
                return packed
            i = packed >> _KIND_BITS
            after_value = True


@inlined
def _value(base: int, i: int, end: int, size: int, stack: Bytes) -> int:
    """The end of any value at `i` and its kind, packed, or an error."""
    byte = load_byte(base + i)
    if byte == 34:
        quote = _string(base, i + 1, end, size)
        if quote < 0:
            return quote
        return (((quote >> 1) + 1) << _KIND_BITS) | (ESCAPED if quote & 1 else STRING)
    if byte == 123 or byte == 91:
        after = _container(base, i, end, size, stack)
        if after < 0:
            return after
        return (after << _KIND_BITS) | (OBJECT if byte == 123 else ARRAY)
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
def _unescape(base: int, i: int, end: int, size: int, target: int) -> int:
    """Decode the valid string text from `i` to `end`; the address after it. Half of a surrogate pair becomes U+FFFD.

    Writes up to `WIDTH` bytes past the end. The result is never longer than the text.
    """
    while i < end:
        if i + WIDTH <= size:
            mask = copy_block(target, base + i)
            step = first_bit(mask) if mask != 0 else WIDTH
            step = min(step, end - i)
            i += step
            target += step
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
            if byte == 110:
                byte = 10
            elif byte == 116:
                byte = 9
            elif byte == 114:
                byte = 13
            elif byte == 98:
                byte = 8
            elif byte == 102:
                byte = 12
            store_byte(target, byte)
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


@inlined
def _same(one: int, other: int, count: int) -> bool:
    k = 0
    while k + 8 <= count:
        if load_word(one + k) != load_word(other + k):
            return False
        k += 8
    while k < count:
        if load_byte(one + k) != load_byte(other + k):
            return False
        k += 1
    return True


@inlined
def _hash(address: int, count: int) -> int:
    value = 0x2545F4914F6CDD1D
    for k in range(count):
        value = (value ^ load_byte(address + k)) * 0x100000001B3
    return value ^ (value >> 29)


@inlined
def _find(slots: Integers, offsets: Integers, arena: int, address: int, count: int) -> int:
    """The slot of the name at `address`: it holds the name's number, or -1 where a new name belongs."""
    last = len(slots) - 1
    slot = _hash(address, count) & last
    while slots[slot] >= 0:
        at = offsets[slots[slot]]
        if offsets[slots[slot] + 1] - at == count and _same(arena + at, address, count):
            break
        slot = (slot + 1) & last
    return slot


@kernel
def scan_records(
    base: int,
    size: int,
    starts: Integers,
    ends: Integers,
    names: Bytes,
    name_offsets: Integers,
    value_starts: Integers,
    value_ends: Integers,
    kinds: Bytes,
    status: Bytes,
) -> tuple[Bytes, Integers, Integers]:
    """Validate every record and write down where the values of the wanted names lie.

    Spans are trimmed of white space in place. The first name repeated in a record loses to the last.

    Args:
        base: Address of the buffer.
        size: Its length.
        starts: Where each record starts in it; corrected in place.
        ends: Where each record ends; corrected in place.
        names: UTF-8 of the wanted names, which differ from each other, one after the other.
        name_offsets: Where each name starts in `names`, and the end of the last.
        value_starts: Filled per name and record.
        value_ends: Filled per name and record.
        kinds: Filled per name and record, all `MISSING` at first.
        status: Filled per record.

    Returns:
        The bytes of all names met or wanted, their offsets, and the numbers of those met in good records in the order
        in which they were first seen.
    """
    wanted = len(name_offsets) - 1
    arena = np.empty(2 * len(names) + 1024, np.uint8)
    offsets = np.zeros(wanted + 65, np.int64)
    slots = np.full(256, -1, np.int64)
    while len(slots) < 4 * wanted:
        slots = np.full(2 * len(slots), -1, np.int64)
    known = 0
    arena[: len(names)] = names
    for number in range(wanted):
        offsets[number + 1] = name_offsets[number + 1]
        address = arena.ctypes.data
        slot = _find(
            slots, offsets, address, address + name_offsets[number], name_offsets[number + 1] - name_offsets[number]
        )
        slots[slot] = number
        known += 1
    seen = np.zeros(len(offsets), np.uint8)
    order = np.empty(len(offsets), np.int64)
    ordered = 0
    predicted = np.full(_PREDICTED, -1, np.int64)
    stack = np.empty(MAX_DEPTH + 1, np.uint8)

    for record in range(len(starts)):
        end = ends[record]
        i = _skip_space(base, starts[record], end)
        while end > i and _is_space(load_byte(base + end - 1)):
            end -= 1
        starts[record] = i
        ends[record] = end
        before = ordered
        error = 0
        is_object = True
        if i >= end:
            error = _MALFORMED
        elif load_byte(base + i) != 123:
            is_object = False
            packed = _value(base, i, end, size, stack)
            if packed < 0:
                error = packed
            elif packed >> _KIND_BITS != end:
                error = _MALFORMED
        else:
            position = 0
            i = _skip_space(base, i + 1, end)
            if i < end and load_byte(base + i) == 125:
                error = 0 if i + 1 == end else _MALFORMED
            else:
                while True:
                    if i >= end or load_byte(base + i) != 34:
                        error = _MALFORMED
                        break
                    quote = _string(base, i + 1, end, size)
                    if quote < 0:
                        error = quote
                        break
                    key = base + i + 1
                    length = (quote >> 1) - (i + 1)
                    i = _skip_space(base, (quote >> 1) + 1, end)
                    if i >= end or load_byte(base + i) != 58:
                        error = _MALFORMED
                        break
                    i = _skip_space(base, i + 1, end)
                    if i >= end:
                        error = _MALFORMED
                        break
                    packed = _value(base, i, end, size, stack)
                    if packed < 0:
                        error = packed
                        break

                    # Records of a file mostly repeat their keys in the same order: try that one before hashing.
                    number = predicted[position] if position < _PREDICTED else -1
                    if (
                        quote & 1
                        or number < 0
                        or offsets[number + 1] - offsets[number] != length
                        or not _same(arena.ctypes.data + offsets[number], key, length)
                    ):
                        used = offsets[known]
                        if used + length + 2 * WIDTH > len(arena):
                            larger = np.empty(2 * (used + length + 2 * WIDTH), np.uint8)
                            larger[:used] = arena[:used]
                            arena = larger
                        address = arena.ctypes.data
                        if quote & 1:
                            length = _unescape(base, key - base, (quote >> 1), size, address + used) - address - used
                        else:
                            copy_bytes(address + used, key, length)
                        slot = _find(slots, offsets, address, address + used, length)
                        number = slots[slot]
                        if number < 0:
                            number = known
                            slots[slot] = number
                            known += 1
                            offsets[known] = used + length
                            if known + 1 == len(offsets):
                                more = np.zeros(2 * len(offsets), np.int64)
                                more[: len(offsets)] = offsets
                                offsets = more
                                flags = np.zeros(len(offsets), np.uint8)
                                flags[: len(seen)] = seen
                                seen = flags
                                longer = np.empty(len(offsets), np.int64)
                                longer[:ordered] = order[:ordered]
                                order = longer
                            if 2 * known > len(slots):
                                slots = np.full(4 * len(slots), -1, np.int64)
                                for old in range(known):
                                    slot = _find(
                                        slots, offsets, address, address + offsets[old], offsets[old + 1] - offsets[old]
                                    )
                                    slots[slot] = old
                        if position < _PREDICTED:
                            predicted[position] = number
                    if seen[number] == 0:
                        seen[number] = 1
                        order[ordered] = number
                        ordered += 1
                    if number < wanted:
                        value_starts[number, record] = i
                        value_ends[number, record] = packed >> _KIND_BITS
                        kinds[number, record] = packed & 15
                    position += 1

                    i = _skip_space(base, packed >> _KIND_BITS, end)
                    if i >= end:
                        error = _MALFORMED
                        break
                    byte = load_byte(base + i)
                    if byte == 125:
                        if i + 1 != end:
                            error = _MALFORMED
                        break
                    if byte != 44:
                        error = _MALFORMED
                        break
                    i = _skip_space(base, i + 1, end)
        if error == _TOO_DEEP:
            status[record] = TOO_DEEP
        elif error < 0:
            status[record] = MALFORMED
        else:
            status[record] = GOOD if is_object else NOT_AN_OBJECT
        if error < 0 or not is_object:
            while ordered > before:
                ordered -= 1
                seen[order[ordered]] = 0
    return arena[: offsets[known]], offsets[: known + 1], order[:ordered]


@kernel
def decode_strings(
    base: int, size: int, starts: Integers, ends: Integers, kinds: Bytes, out: Bytes, offsets: Integers
) -> int:
    """Decode the JSON strings at the spans one after the other; whatever is no string becomes empty.

    Args:
        base: Address of the buffer.
        size: Its length.
        starts: Where each string starts, its quote included.
        ends: Where each string ends, its quote included.
        kinds: What each value is.
        out: As long as all spans together and `WIDTH` bytes more.
        offsets: Filled with where each decoded string starts in `out`, and the end of the last.

    Returns:
        How many bytes of `out` are used.
    """
    first = out.ctypes.data
    target = first
    offsets[0] = 0
    for row in range(len(starts)):
        if kinds[row] == STRING:
            count = ends[row] - starts[row] - 2
            copy_bytes(target, base + starts[row] + 1, count)
            target += count
        elif kinds[row] == ESCAPED:
            target = _unescape(base, starts[row] + 1, ends[row] - 1, size, target)
        offsets[row + 1] = target - first
    return target - first


@kernel
def drop_members(
    base: int,
    size: int,
    starts: Integers,
    ends: Integers,
    names: Bytes,
    name_offsets: Integers,
    out: Bytes,
    out_offsets: Integers,
) -> int:
    """Copy valid records without the top-level members that have one of the names; all other bytes stay as they are.

    Args:
        base: Address of the buffer.
        size: Its length.
        starts: Where each record starts, at its brace.
        ends: Where each record ends, after its brace.
        names: UTF-8 of the names, one after the other.
        name_offsets: Where each name starts in `names`, and the end of the last.
        out: As long as all records together and `WIDTH` bytes more.
        out_offsets: Filled with where each shortened record starts in `out`, and the end of the last.

    Returns:
        How many bytes of `out` are used.
    """
    longest = 0
    for record in range(len(starts)):
        longest = max(longest, ends[record] - starts[record])
    scratch = np.empty(longest + 2 * WIDTH, np.uint8)
    stack = np.empty(MAX_DEPTH + 1, np.uint8)
    first = out.ctypes.data
    target = first
    out_offsets[0] = 0
    for record in range(len(starts)):
        end = ends[record]
        i = _skip_space(base, starts[record] + 1, end)
        store_byte(target, 123)
        target += 1
        # What lies between two members goes with the second of them, unless nothing was kept before it.
        gap = starts[record] + 1
        kept = False
        while load_byte(base + i) == 34:
            member = i
            quote = _string(base, i + 1, end, size)
            address = base + i + 1
            length = (quote >> 1) - i - 1
            if quote & 1:
                address = scratch.ctypes.data
                length = _unescape(base, i + 1, quote >> 1, size, address) - address
            i = _skip_space(base, _skip_space(base, (quote >> 1) + 1, end) + 1, end)
            after = _value(base, i, end, size, stack) >> _KIND_BITS
            dropped = False
            for number in range(len(name_offsets) - 1):
                at = name_offsets[number]
                if name_offsets[number + 1] - at == length and _same(names.ctypes.data + at, address, length):
                    dropped = True
            if not dropped:
                source = gap if kept or gap == starts[record] + 1 else member
                copy_bytes(target, base + source, after - source)
                target += after - source
                kept = True
            gap = after
            i = _skip_space(base, after, end)
            if load_byte(base + i) == 44:
                i = _skip_space(base, i + 1, end)
        copy_bytes(target, base + gap, end - gap)
        target += end - gap
        scratch[0] = 0  # Keeps the array alive, of which only the address was used.
        out_offsets[record + 1] = target - first
    return target - first


@inlined
def _utf8_error_slowly(base: int, i: int, end: int) -> int:
    while i < end:
        byte = load_byte(base + i)
        if byte < 0x80:
            i += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= byte <= 0xDF:
            count = 1
        elif 0xE0 <= byte <= 0xEF:
            count = 2
            low = 0xA0 if byte == 0xE0 else 0x80
            high = 0x9F if byte == 0xED else 0xBF
        elif 0xF0 <= byte <= 0xF4:
            count = 3
            low = 0x90 if byte == 0xF0 else 0x80
            high = 0x8F if byte == 0xF4 else 0xBF
        else:
            return i
        for k in range(1, count + 1):
            if i + k >= end:
                return i
            byte = load_byte(base + i + k)
            if byte < low or byte > high:
                return i
            low, high = 0x80, 0xBF
        i += count + 1
    return -1


@kernel
def first_utf8_error(base: int, start: int, end: int) -> int:
    """Near which position the bytes from `start` to `end` stop being UTF-8, or -1 when all of them are."""
    i = start
    if end - start > 2 * WIDTH:
        error = _utf8_error_slowly(base, start, start + 3)
        # The first three bytes may end within a character; whatever that hides, the vectors after it look at again.
        if error >= 0 and load_byte(base + error) < 0xC2:
            return error
        i = start + 3
        while i + WIDTH <= end:
            if utf8_error_mask(base + i) != 0:
                return i
            i += WIDTH
        for _ in range(3):
            if load_byte(base + i - 1) >= 0x80:
                i -= 1
                if load_byte(base + i) >= 0xC0:
                    break
            else:
                break
    return _utf8_error_slowly(base, i, end)
