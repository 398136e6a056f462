"""Whether documents hold a given string: at the beginning, at the end, among the first characters, or anywhere."""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import kernel
from gristmill.kernels.text_column import Mask, TextColumn

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
    """Which documents hold `needle`, in whole or among their first characters; False for those not alive."""
    encoded = needle.encode("utf-8", "surrogatepass")
    out = np.zeros(len(column), dtype=np.bool_)
    limit = -1 if first_chars is None else max(first_chars, 0)
    pattern = np.frombuffer(encoded, dtype=np.uint8)
    _found(column.data, column.offsets, alive, pattern, _fallbacks(encoded), place, limit, out)
    return out


def warm() -> None:
    """Load or compile the kernels of this file."""
    from gristmill.kernels.text_column import text_column

    contains(text_column(["a"]), np.ones(1, dtype=np.bool_), "a")
