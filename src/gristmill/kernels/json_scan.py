"""Strict JSON over raw bytes: validate records, find the values of top-level keys, decode strings, remove members.

Records are spans of one buffer whose address and size are given. One pass accepts exactly what RFC 8259 accepts (UTF-8
itself is the concern of `utf8`) and meanwhile collects the names of top-level keys and the spans of wanted values.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import inlined, kernel
from gristmill.kernels.json_values import (
    BAD_RECORD,
    BAD_VALUE,
    ESCAPED,
    GOOD,
    KIND_BITS,
    MAX_DEPTH,
    STRING,
    Bytes,
    Integers,
    is_space,
    read_string,
    read_value,
    skip_space,
    unescape,
)
from gristmill.kernels.machine import (
    BLOCK,
    address_of,
    copy_bytes,
    load_byte,
    load_word,
    newline_mask,
    store_byte,
    trailing_zeros,
)

# Entries of the state that `_scan` leaves behind: names known, names seen, room that a name needs, 1 when out of room.
_KNOWN, _SEEN, _NEEDED, _FULL = range(4)


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
def _scan(
    base: int,
    size: int,
    first: int,
    starts: Integers,
    ends: Integers,
    wanted: int,
    value_starts: Integers,
    value_ends: Integers,
    kinds: Bytes,
    status: Bytes,
    arena: Bytes,
    offsets: Integers,
    slots: Integers,
    seen: Bytes,
    order: Integers,
    predicted: Integers,
    stack: Bytes,
    state: Integers,
) -> int:
    """Scan from record `first` on until the end or until a table is full; the record at which that happened."""
    arena_base = address_of(arena)
    known = state[_KNOWN]
    ordered = state[_SEEN]
    state[_FULL] = 0
    for number in range(known):
        at = offsets[number]
        slots[_find(slots, offsets, arena_base, arena_base + at, offsets[number + 1] - at)] = number

    record = first
    while record < len(starts) and state[_FULL] == 0:
        end = ends[record]
        i = skip_space(base, starts[record], end)
        while end > i and is_space(load_byte(base + end - 1)):
            end -= 1
        starts[record] = i
        ends[record] = end
        before = ordered
        position = 0
        error = BAD_VALUE
        if i < end and load_byte(base + i) != 123:
            error = BAD_RECORD
            i = end
        elif i < end:
            i = skip_space(base, i + 1, end)
            if i + 1 == end and load_byte(base + i) == 125:
                error = 0
                i = end
        while i < end and load_byte(base + i) == 34:
            key = i + 1
            # Records of a file mostly repeat their keys in the same order: that one is tried before looking any closer.
            number = predicted[position] if position < len(predicted) else -1
            length = offsets[number + 1] - offsets[number] if number >= 0 else 0
            quote = 2 * (key + length)
            if (
                number < 0
                or key + length >= end
                or load_byte(base + key + length) != 34
                or not _same(arena_base + offsets[number], base + key, length)
            ):
                number = -1
                quote = read_string(base, key, end, size)
                if quote < 0:
                    break
                length = (quote >> 1) - key
            i = skip_space(base, (quote >> 1) + 1, end)
            if i >= end or load_byte(base + i) != 58:
                break
            i = skip_space(base, i + 1, end)
            if i >= end:
                break
            packed = read_value(base, i, end, size, stack)
            if packed < 0:
                error = packed
                break

            if number < 0:
                used = offsets[known]
                if used + length + BLOCK > len(arena) or known + 2 > len(offsets) or 2 * known + 2 > len(slots):
                    state[_NEEDED] = length + BLOCK
                    state[_FULL] = 1
                    break
                name = arena_base + used
                if quote & 1 != 0:
                    length = unescape(base, key, quote >> 1, size, name) - name
                else:
                    copy_bytes(name, base + key, length)
                slot = _find(slots, offsets, arena_base, name, length)
                number = slots[slot]
                if number < 0:
                    number = known
                    slots[slot] = number
                    known += 1
                    offsets[known] = used + length
                    seen[number] = 0
                # A name written with escapes may contain a quote.
                if position < len(predicted):
                    predicted[position] = -1 if quote & 1 != 0 else number
            if seen[number] == 0:
                seen[number] = 1
                order[ordered] = number
                ordered += 1
            if number < wanted:
                value_starts[number, record] = i
                value_ends[number, record] = packed >> KIND_BITS
                kinds[number, record] = packed & 15
            position += 1

            i = skip_space(base, packed >> KIND_BITS, end)
            if i >= end:
                break
            byte = load_byte(base + i)
            if byte == 125 and i + 1 == end:
                error = 0
            if byte != 44:
                break
            i = skip_space(base, i + 1, end)
        if error == 0:
            status[record] = GOOD
        else:
            status[record] = -error
            while ordered > before:
                ordered -= 1
                seen[order[ordered]] = 0
        record += 1
    state[_KNOWN] = known
    state[_SEEN] = ordered
    return int(record - state[_FULL])


def scan_records(
    base: int, size: int, starts: Integers, ends: Integers, names: list[bytes]
) -> tuple[Integers, Integers, Bytes, Bytes, list[bytes]]:
    """Validate every record and find the values of the wanted names.

    Spans are trimmed of white space in place. If a record has a name twice, the last value counts.

    Args:
        base: Address of the buffer.
        size: Its length.
        starts: Where each record starts in it; corrected in place.
        ends: Where each record ends; corrected in place.
        names: UTF-8 of the wanted names, which differ from each other.

    Returns:
        Starts, ends and kinds of the values, per name and record; the status of each record; and all names in good
        records in the order in which they were first seen. A record that does not start with a brace is `NOT_AN_OBJECT`
        and not examined further.
    """
    shape = (len(names), len(starts))
    value_starts, value_ends = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    kinds, status = np.zeros(shape, np.uint8), np.zeros(len(starts), np.uint8)
    arena = np.zeros(4096 + sum(map(len, names)), np.uint8)
    offsets = np.zeros(64 + len(names), np.int64)
    state = np.zeros(4, np.int64)
    for name in names:
        at, known = offsets[state[_KNOWN]], int(state[_KNOWN]) + 1
        arena[at : at + len(name)] = np.frombuffer(name, np.uint8)
        offsets[known] = at + len(name)
        state[_KNOWN] = known
    seen, order = np.zeros(len(offsets), np.uint8), np.zeros(len(offsets), np.int64)
    predicted, stack = np.full(64, -1, np.int64), np.zeros(MAX_DEPTH, np.uint8)
    record = 0
    while True:
        slots = np.full(4 << len(offsets).bit_length(), -1, np.int64)
        record = _scan(
            base, size, record, starts, ends, len(names), value_starts, value_ends, kinds, status,
            arena, offsets, slots, seen, order, predicted, stack, state,
        )  # fmt: skip
        if not state[_FULL]:
            break
        arena = np.concatenate((arena, np.zeros(len(arena) + int(state[_NEEDED]), np.uint8)))
        offsets = np.concatenate((offsets, np.zeros_like(offsets)))
        order = np.concatenate((order, np.zeros_like(order)))
        seen = np.concatenate((seen, np.zeros_like(seen)))
    text = arena.tobytes()
    found = [text[offsets[name] : offsets[name + 1]] for name in order[: int(state[_SEEN])]]
    return value_starts, value_ends, kinds, status, found


@kernel
def find_newlines(base: int, begin: int, end: int, out: Integers) -> int:
    """Find the newlines from `begin` to `end`; returns their number.

    Args:
        base: Address of the buffer.
        begin: Where to begin in it.
        end: Where to end.
        out: Receives their positions; needs one place per byte in the worst case.
    """
    found = 0
    i = begin
    while i + BLOCK <= end:
        mask = newline_mask(base + i)
        while mask != 0:
            out[found] = i + trailing_zeros(mask)
            found += 1
            mask &= mask - 1
        i += BLOCK
    while i < end:
        if load_byte(base + i) == 10:
            out[found] = i
            found += 1
        i += 1
    return found


@kernel
def decode_strings(
    base: int, size: int, starts: Integers, ends: Integers, kinds: Bytes, out: Bytes, offsets: Integers
) -> int:
    """Decode the JSON strings at the spans one after the other; anything else becomes empty.

    Args:
        base: Address of the buffer.
        size: Its length.
        starts: Where each string starts, its quote included.
        ends: Where each string ends, its quote included.
        kinds: What each value is.
        out: As long as all spans together and `BLOCK` bytes more.
        offsets: Filled with where each decoded string starts in `out`, and the end of the last.

    Returns:
        How many bytes of `out` are used.
    """
    first: int = address_of(out)
    target = first
    offsets[0] = 0
    for row in range(len(starts)):
        if kinds[row] == STRING:
            count = ends[row] - starts[row] - 2
            copy_bytes(target, base + starts[row] + 1, count)
            target += count
        elif kinds[row] == ESCAPED:
            target = unescape(base, starts[row] + 1, ends[row] - 1, size, target)
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
        out: As long as all records together and `BLOCK` bytes more.
        out_offsets: Filled with where each shortened record starts in `out`, and the end of the last.

    Returns:
        How many bytes of `out` are used.
    """
    longest = 0
    for record in range(len(starts)):
        longest = max(longest, ends[record] - starts[record])
    scratch = np.empty(longest + BLOCK, np.uint8)
    stack = np.empty(MAX_DEPTH, np.uint8)
    first: int = address_of(out)
    target = first
    out_offsets[0] = 0
    for record in range(len(starts)):
        end = ends[record]
        i = skip_space(base, starts[record] + 1, end)
        store_byte(target, 123)
        target += 1
        # The separator between two members is removed with the second one, unless nothing was kept before it.
        gap = starts[record] + 1
        kept = False
        while load_byte(base + i) == 34:
            member = i
            quote = read_string(base, i + 1, end, size)
            address = base + i + 1
            length = (quote >> 1) - i - 1
            if quote & 1:
                address = address_of(scratch)
                length = unescape(base, i + 1, quote >> 1, size, address) - address
            i = skip_space(base, skip_space(base, (quote >> 1) + 1, end) + 1, end)
            after = read_value(base, i, end, size, stack) >> KIND_BITS
            dropped = False
            for number in range(len(name_offsets) - 1):
                at = name_offsets[number]
                if name_offsets[number + 1] - at == length and _same(address_of(names) + at, address, length):
                    dropped = True
            if not dropped:
                source = gap if kept or gap == starts[record] + 1 else member
                copy_bytes(target, base + source, after - source)
                target += after - source
                kept = True
            gap = after
            i = skip_space(base, after, end)
            if load_byte(base + i) == 44:
                i = skip_space(base, i + 1, end)
        copy_bytes(target, base + gap, end - gap)
        target += end - gap
        scratch[0] = 0  # Keeps the array alive: only its address was used.
        out_offsets[record + 1] = target - first
    return target - first
