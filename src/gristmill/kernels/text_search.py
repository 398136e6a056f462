"""Finds documents that contain a given string (at a given place or anywhere), or more than plain ASCII text."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel
from gristmill.kernels.text_column import Bytes, Integers, Mask, TextColumn

ANYWHERE = 0
PREFIX = 1
SUFFIX = 2


def _fallbacks(needle: bytes) -> np.ndarray:
    """For each length of the needle matched, the longest shorter one that may still be right (Knuth, Morris, Pratt)."""
    table = np.zeros(len(needle) + 1, dtype=np.int64)
    matched = 0
    for position in range(1, len(needle)):
        while matched and needle[position] != needle[matched]:
            matched = int(table[matched])
        if needle[position] == needle[matched]:
            matched += 1
        table[position + 1] = matched
    return table


@kernel
def _found(data, offsets, alive, needle, fallbacks, place, limit, out):
    length = len(needle)
    for row in range(len(alive)):
        if not alive[row]:
            continue
        begin = offsets[row]
        end = offsets[row + 1]
        if limit >= 0:
            stop = begin
            chars = 0
            while stop < end and (chars < limit or data[stop] & 0xC0 == 0x80):
                if data[stop] & 0xC0 != 0x80:
                    chars += 1
                stop += 1
            end = stop
        if end - begin < length:
            continue
        if length == 0:
            out[row] = True
            continue
        if place == SUFFIX:
            begin = end - length
        elif place == PREFIX:
            end = begin + length
        matched = 0
        for at in range(begin, end):
            while matched and data[at] != needle[matched]:
                matched = fallbacks[matched]
            if data[at] == needle[matched]:
                matched += 1
            if matched == length:
                out[row] = True
                break


def contains(
    column: TextColumn, alive: Mask, needle: str, *, place: int = ANYWHERE, first_chars: int | None = None
) -> Mask:
    """Which documents contain `needle`, anywhere or among their first characters; False for those not alive."""
    encoded = needle.encode("utf-8", "surrogatepass")
    out = np.zeros(len(column), dtype=np.bool_)
    limit = -1 if first_chars is None else max(first_chars, 0)
    pattern = np.frombuffer(encoded, dtype=np.uint8)
    _found(column.data, column.offsets, alive, pattern, _fallbacks(encoded), place, limit, out)
    return out


@kernel
def suspicious_rows(data: Bytes, offsets: Integers) -> Mask:
    """True where a row has a byte outside ASCII, a control character other than tab and newline, or an `&`."""
    rows = len(offsets) - 1
    found = np.zeros(rows, np.bool_)
    for row in range(rows):
        for i in range(offsets[row], offsets[row + 1]):
            byte = data[i]
            if byte >= 127 or byte == 38 or (byte < 32 and byte != 9 and byte != 10):
                found[row] = True
                break
    return found
