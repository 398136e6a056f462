"""Bytes of JSON from pieces: gather spans, quote strings, put objects together, replace values in place.

Pieces are given by their addresses and lengths, so that raw values of a buffer and newly written texts can be mixed;
the caller keeps what they point to alive. A length of -1 means that there is no piece.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.kernels.compiler import inlined, kernel
from gristmill.kernels.machine import (
    WIDTH,
    address_of,
    bit_count,
    copy_bytes,
    copy_special,
    load_byte,
    special_mask,
    store_byte,
    trailing_zeros,
)

Integers = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_NULL = 0x6C6C756E  # "null", first letter lowest


@inlined
def _write_null(target: int) -> int:
    for k in range(4):
        store_byte(target + k, (_NULL >> (8 * k)) & 255)
    return target + 4


@kernel
def gather(base: int, starts: Integers, ends: Integers, separator: int, out: Bytes) -> int:
    """Copy the spans one after the other, each followed by the byte `separator` unless that is -1.

    Neighbours that are already one separator apart are copied together.

    Returns:
        How many bytes of `out` are used.
    """
    first: int = address_of(out)
    target = first
    row = 0
    gap = 0 if separator < 0 else 1
    while row < len(starts):
        start = starts[row]
        end = ends[row]
        row += 1
        while row < len(starts) and starts[row] == end + gap and (gap == 0 or load_byte(base + end) == separator):
            end = ends[row]
            row += 1
        copy_bytes(target, base + start, end - start)
        target += end - start
        if gap == 1:
            store_byte(target, separator)
            target += 1
    return target - first


@kernel
def quote_strings(base: int, offsets: Integers, valid: Bytes) -> tuple[Bytes, Integers]:
    """JSON texts of UTF-8 strings: quoted, with only quotes, backslashes and control characters escaped.

    Args:
        base: Address of the strings' bytes.
        offsets: Where each string starts, and the end of the last.
        valid: Zero for rows that become `null`; empty when there are none.

    Returns:
        The texts one after the other, and their offsets.
    """
    rows = len(offsets) - 1
    specials = 0
    i = offsets[0]
    end = offsets[rows]
    while i + WIDTH <= end:
        specials += bit_count(special_mask(base + i))
        i += WIDTH
    out = np.empty(end - offsets[0] + 5 * (specials + end - i) + 4 * rows + WIDTH, np.uint8)
    out_offsets = np.empty(rows + 1, np.int64)
    first: int = address_of(out)
    target = first
    out_offsets[0] = 0
    for row in range(rows):
        if len(valid) > 0 and valid[row] == 0:
            target = _write_null(target)
        else:
            store_byte(target, 34)
            target += 1
            i = offsets[row]
            stop = offsets[row + 1]
            while i < stop:
                if i + WIDTH <= end:
                    mask = copy_special(target, base + i)
                    step = min(stop - i, trailing_zeros(mask) if mask != 0 else WIDTH)
                    i += step
                    target += step
                    if mask == 0 or i >= stop:
                        continue
                byte = load_byte(base + i)
                i += 1
                if byte >= 32 and byte != 34 and byte != 92:
                    store_byte(target, byte)
                    target += 1
                    continue
                store_byte(target, 92)
                if byte >= 32:
                    letter = byte
                elif byte == 10:
                    letter = 110
                elif byte == 9:
                    letter = 116
                elif byte == 13:
                    letter = 114
                elif byte == 8:
                    letter = 98
                elif byte == 12:
                    letter = 102
                else:
                    letter = 117
                store_byte(target + 1, letter)
                target += 2
                if letter == 117 and byte < 32:
                    store_byte(target, 48)
                    store_byte(target + 1, 48)
                    store_byte(target + 2, 48 + (byte >> 4))
                    digit = byte & 15
                    store_byte(target + 3, 48 + digit if digit < 10 else 87 + digit)
                    target += 4
            store_byte(target, 34)
            target += 1
        out_offsets[row + 1] = target - first
    out_offsets[0] = 0
    return out[: target - first], out_offsets


@kernel
def join_members(
    addresses: Integers, lengths: Integers, keys: Bytes, key_offsets: Integers, tail: int, out: Bytes, offsets: Integers
) -> int:
    """An object per row from a piece of each column, each led by its column's key text.

    Args:
        addresses: Of the piece per column and row.
        lengths: Of the piece per column and row; -1 leaves the member out.
        keys: Key texts (`"name":`) one after the other.
        key_offsets: Where each key text starts, and the end of the last.
        tail: The byte that follows every object; zero for none.
        out: Long enough for everything.
        offsets: Filled with where each row starts, and the end of the last.

    Returns:
        How many bytes of `out` are used.
    """
    first: int = address_of(out)
    key_base = address_of(keys)
    target = first
    for row in range(lengths.shape[1]):
        store_byte(target, 123)
        target += 1
        some = False
        for column in range(lengths.shape[0]):
            length = lengths[column, row]
            if length < 0:
                continue
            if some:
                store_byte(target, 44)
                target += 1
            some = True
            key_length = key_offsets[column + 1] - key_offsets[column]
            copy_bytes(target, key_base + key_offsets[column], key_length)
            target += key_length
            copy_bytes(target, addresses[column, row], length)
            target += length
        store_byte(target, 125)
        target += 1
        if tail != 0:
            store_byte(target, tail)
            target += 1
        offsets[row + 1] = target - first
    return target - first


@kernel
def splice_records(
    base: int,
    starts: Integers,
    ends: Integers,
    value_starts: Integers,
    value_ends: Integers,
    present: Bytes,
    addresses: Integers,
    lengths: Integers,
    keys: Bytes,
    key_offsets: Integers,
    out: Bytes,
) -> int:
    """Copy the records line by line with some values replaced where they stand or added at the end.

    Args:
        base: Address of the buffer.
        starts: Where each record starts, at its brace.
        ends: Where each record ends, after its brace.
        value_starts: Where the old value lies, per change and record.
        value_ends: Where the old value ends, per change and record.
        present: Zero where the record has no such key, per change and record.
        addresses: Of the new text per change and record.
        lengths: Of the new text per change and record; -1 keeps the old value.
        keys: Key texts (`"name":`) one after the other.
        key_offsets: Where each key text starts, and the end of the last.
        out: Long enough for everything.

    Returns:
        How many bytes of `out` are used.
    """
    changes = lengths.shape[0]
    inside = np.empty(changes, np.int64)
    first: int = address_of(out)
    key_base = address_of(keys)
    target = first
    for record in range(len(starts)):
        count = 0
        missing = 0
        for change in range(changes):
            if lengths[change, record] < 0:
                continue
            if present[change, record] == 0:
                missing += 1
                continue
            slot = count
            while slot > 0 and value_starts[inside[slot - 1], record] > value_starts[change, record]:
                inside[slot] = inside[slot - 1]
                slot -= 1
            inside[slot] = change
            count += 1
        i = starts[record]
        for slot in range(count):
            change = inside[slot]
            stop = value_starts[change, record]
            copy_bytes(target, base + i, stop - i)
            target += stop - i
            copy_bytes(target, addresses[change, record], lengths[change, record])
            target += lengths[change, record]
            i = value_ends[change, record]
        end = ends[record]
        if missing > 0:
            stop = end - 1
            last = stop - 1
            while load_byte(base + last) <= 32:
                last -= 1
            empty = load_byte(base + last) == 123
            copy_bytes(target, base + i, stop - i)
            target += stop - i
            for change in range(changes):
                if lengths[change, record] < 0 or present[change, record] != 0:
                    continue
                if not empty:
                    store_byte(target, 44)
                    target += 1
                empty = False
                key_length = key_offsets[change + 1] - key_offsets[change]
                copy_bytes(target, key_base + key_offsets[change], key_length)
                target += key_length
                copy_bytes(target, addresses[change, record], lengths[change, record])
                target += lengths[change, record]
            i = stop
        copy_bytes(target, base + i, end - i)
        target += end - i
        store_byte(target, 10)
        target += 1
    return target - first
