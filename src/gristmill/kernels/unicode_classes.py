"""Character classes of all of Unicode as two-level tables that kernels index by code point.

The classes follow Python's `str` methods of the running interpreter, except `ALPHABETIC`, which is pinned. A page of
256 code points that equals another is stored once; building all takes some ten milliseconds, once per process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from gristmill.kernels.unicode_alphabetic import ALPHABETIC_RANGES

SPACE = 1
ALPHA = 2
ALNUM = 4
DECIMAL = 8
DIGIT = 16
NUMERIC = 32
UPPER = 64
LOWER = 128
LINE_BREAK = 256
ALPHABETIC = 512
PUNCTUATION = 1024
TERMINAL = 2048

CODE_POINTS = 0x110000
PAGE = 256
# The planes from here on hold no letter, digit or space: only private use, tags and variation selectors.
_NAMED = 0x40000

# What Gopher-style rules take for the end of a sentence and for punctuation, in the notation of ALPHABETIC_RANGES:
# Unicode's Sentence_Terminal property, and beside it ASCII and common CJK punctuation and control characters.
TERMINAL_RANGES = (
    "21 c 10 549 93.3 b4 2b.3 f6 3d 1 3.2 125.2 6e4.2 316 4.2 305 c6.2 9d.3 2.2 28 5 13a.2 162.4 ae.2 2.2 1d.2 "
    "bc.2 41.2 3bc.2 9.3 de4 d 16.2 1ad 74fc 10e.2 e3 3 17e.2 56.2 5f 98.2 93.3 90.2 f9 5266 3.2 a9 c 10 41 af4.2 "
    "4fd.5 2c.4 bd.2 75.4 7f.3 81.2 6 10.2 58.2 1.2 6c 1a1.2 175.2 5.f 69.2 f9.3 205 1 fb.2 57.2 1a4.2 2b4.2 4a.2 "
    "4b29.2 85 41.2 b 353 4e06 1de8 "
)
PUNCTUATION_RANGES = "0.9 2.15 2.c 1 a.5 1 1a.6 1a.25 b 8 6 1f57.2 4 2.3 7 20f 2ca b8 a46 6.6 2.2 cef3 2.2 2 4 8.2 42"
LINE_BREAKS = "\n\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"

# numpy asks the running interpreter about each character, as the methods of `str` do.
_METHODS: tuple[tuple[int, Callable[..., npt.NDArray[np.bool_]]], ...] = (
    (ALPHA, np.strings.isalpha),
    (ALNUM, np.strings.isalnum),
    (DECIMAL, np.strings.isdecimal),
    (DIGIT, np.strings.isdigit),
    (NUMERIC, np.strings.isnumeric),
    (UPPER, np.strings.isupper),
    (LOWER, np.strings.islower),
)


def decode_ranges(text: str) -> list[tuple[int, int]]:
    """The half-open code point ranges that a range string stands for."""
    ranges: list[tuple[int, int]] = []
    position = 0
    for entry in text.split():
        gap, _, length = entry.partition(".")
        start = position + int(gap, 16)
        position = start + (int(length, 16) if length else 1)
        ranges.append((start, position))
    return ranges


@lru_cache(maxsize=1)
def class_tables() -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    """The page number of every 256 code points, and the flags of every distinct page one after another.

    The flags of code point `c` are `flags[pages[c >> 8] * 256 + (c & 255)]`.
    """
    flags = np.zeros((CODE_POINTS // PAGE, PAGE), dtype=np.uint16)
    named = np.arange(_NAMED, dtype=np.uint32)
    flat = flags.reshape(-1)
    for flag, method in _METHODS:
        flat[:_NAMED] |= method(named.view("U1")) * np.uint16(flag)
    for ranges, flag in (
        (ALPHABETIC_RANGES, ALPHABETIC),
        (TERMINAL_RANGES, TERMINAL | PUNCTUATION),
        (PUNCTUATION_RANGES, PUNCTUATION),
    ):
        for start, end in decode_ranges(ranges):
            flat[start:end] |= flag
    for match in re.finditer(r"\s", "".join(map(chr, range(0x3001)))):
        flat[match.start()] |= SPACE
    for character in LINE_BREAKS:
        flat[ord(character)] |= LINE_BREAK
    return _compact(flags)


def _compact(flags: npt.NDArray[np.uint16]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint16]]:
    numbers: dict[bytes, int] = {}
    pages = np.zeros(len(flags), dtype=np.uint16)
    kept: list[npt.NDArray[np.uint16]] = []
    for row, page in enumerate(flags):
        key = page.tobytes()
        if key not in numbers:
            numbers[key] = len(kept)
            kept.append(page)
        pages[row] = numbers[key]
    return pages, np.ascontiguousarray(np.concatenate(kept))
