"""Character classes of all of Unicode as two-level tables that kernels index by code point.

The classes follow Python's `str` methods of the running interpreter, except `ALPHABETIC`, which is pinned. A page of
256 code points that equals another is stored once; building all takes some ten milliseconds, once per process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

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

# The code points with Unicode's `Alphabetic` property (Unicode 17): letters, letter numbers and the vowel signs of
# Indic and other scripts, the class that POSIX calls `alpha`. Python offers only the general category, so the property
# is kept here, pinned to one Unicode version: a score must not depend on the interpreter that computes it.
# Each entry is the distance from the end of the previous range, and after a dot the range's length unless that is one.
ALPHABETIC_RANGES = (
    "41.1a 6.1a 2f a 4 5.17 1.1f 1.1ca 4.c e.5 7 1 56 1d.12 1.2 2.4 1 6 1.3 1 1.14 1.53 1.8b 8.a6 1.26 1.2 6.29 2.2 "
    "23.e 1 1.2 1.2 1.3 6.1b 4.4 1d.b 5.38 1.7 e.66 1.8 4.8 4.3 a.3 2 10.30 d.65 18.21 9.2 4 5.18 2.13 13.19 7.b 5.18 "
    "1.7 7 8.2a a.c 3.7 6.4c 1.10 1.3 4.f d.13 1.8 2.2 2.16 1.7 1 3.4 3.8 2.2 2.2 1 8 4.2 1.5 c.2 a 4.3 1.6 4.2 2.16 "
    "1.7 1.2 1.2 1.2 4.5 4.2 2.2 4 7.4 1 11.6 b.3 1.9 1.3 1.16 1.7 1.2 1.5 3.9 1.3 1.2 3 f.4 15.4 4.3 1.8 2.2 2.16 "
    "1.7 1.2 1.5 3.8 2.2 2.2 9.2 4.2 1.5 d 10.2 1.6 3.3 1.4 3.2 1 1.2 3.2 3.3 3.c 4.5 3.3 1.3 3 6 28.d 1.3 1.17 1.10 "
    "3.8 1.3 1.3 8.2 1.3 1.2 2.4 1c.4 1.8 1.3 1.17 1.a 1.5 3.8 1.3 1.3 8.2 5.3 1.4 d.3 c.d 1.3 1.29 2.8 1.3 1.3 1 5.4 "
    "7.5 16.6 1.3 1.12 3.18 1.9 1 2.7 8.6 1 1.8 12.2 d.3a 5.7 6 33.2 1 1.5 1.18 1 1.13 1.3 2.5 1 6 e.4 20 3f.8 1.24 "
    "4.13 4.10 1.24 43.37 1 2.5 10.40 a.4 2.26 1 5 2.2b 1.14d 1.4 2.7 1 1.4 2.29 1.4 2.21 1.4 2.7 1 1.4 2.f 1.39 1.4 "
    "2.43 25.10 10.56 2.6 3.26c 2.11 1.1a 5.4b 3.b 7.14 b.15 c.14 c.d 1.3 1.2 c.34 2.13 e 4 43.59 7.2b 5.46 a.1f 1.c "
    "4.9 17.1e 2.5 b.2c 4.1a 36.1c 4.3f 2.14 32 17.2 b.3 31.34 1.f 1.8 33.2a 2.4 a.2c 1.b e.37 16.3 a.24 2.b 5.2b 2.3 "
    "29.4 1.6 1.2 3 5.c0 13.22 b.116 2.6 2.26 2.6 2.8 1 1 1 1.1f 2.35 1.7 1 3.3 1.7 3.4 2.6 4.d 5.3 1.7 74 d f.11 62 "
    "4 2.a 1 3.5 6 1 1 1.4 1.b 2.4 5.5 4 11.29 32d.34 716.e5 6.4 3.2 c.26 1 5 2.38 7 10.17 9.7 1.7 1.7 1.7 1.7 1.7 "
    "1.7 1.7 1.20 2f 1d5.3 19.9 7.5 2.5 4.56 6.3 1.5a 1.4 5.2b 1.5e 11.20 30.10 200.19c0 40.568d 43.2e 2.10d 3.10 a.2 "
    "14.2f 5.8 3.71 27.9 2.67 2.53 4 e.15 1.21 18.34 c.44 1 2c.6 3 1.3 a.21 5.23 d.1d 3.33 1.c f 10.10 a.5 1.37 9.e "
    "12.17 3.45 1 1 18.3 2.10 2.4 b.6 2.6 2.6 9.7 1.7 1.2b 1.e 2.2 2.7b 15.2ba4 c.17 4.31 2104.16e 2.6a 26.7 c.5 5.c "
    "1.d 1.5 1 1.2 1.2 1.6c 21.16b 12.40 2.36 28.c 74.5 1.87 24.1a 6.1a b.59 3.6 2.6 2.6 2.3 23.c 1.1a 1.13 1.2 1.f "
    "2.e 22.7b 45.35 10b.1d 3.31 2f.20 d.1e 5.2b 5.1e 2.24 4.8 1.5 2a.9e 12.24 4.24 4.28 8.34 c.b 1.f 1.7 1.2 1.b 1.f "
    "1.7 1.2 3.34 c.137 9.16 a.8 18.6 1.2a 1.e 40.6 2 1.2c 1.2 3 2.17 a.17 9.1f 41.13 1.2 a.16 a.1a 6.1a 26.38 6.2 "
    "40.4 1.2 5.8 1.3 1.1d 2a.1d 3.1d 23.8 1.1c 1b.36 a.16 a.13 d.12 6e.49 37.33 d.33 d.28 22.1c 3 5.17 fa.2a 1.2 3.2 "
    "10.6 3.3 b.16 4 1 1.2 1.3 3.1d a 8.16 2a.12 2e.15 1b.17 9.46 2b.5 a.39 9 d.19 17.33 11.4 8.23 3 9.40 1.4 9.2 a 1 "
    "23.12 1.22 2 6.4 3e.7 1 1.4 1.f 1.a 7.39 17.4 1.8 2.2 2.16 1.7 1.2 1.5 3.8 2.2 2.2 3 6 5.7 1c.a 1 2 1.26 1.a 1 2 "
    "1.4 1.2 3 1 2c.42 1.3 1.4 14.3 1e.42 2.2 1 b8.36 2.7 19.6 22.3f 1 3 3b.36 2 47.1b 2.e 15.7 b9.39 67.40 1f.8 2 "
    "2.8 1.2 1.1e 1.2 2.2 2.4 5d.8 2.2e 2.6 1 1.2 1b.33 2.a 11.48 5 12.49 11 55.8 58.21 1f.9 1.2d 1.7 1 31.1e 2.16 "
    "1.e 49.7 1.2 1.2c 3 1.2 1.3 1 2.2 18.6 1.2 1.25 1.2 1.4 1 17.2c 14.2 ee.17 9.11 1.29 3.3 6f 4f.39a 66.70 5.cf "
    "c.137 909.61 f.430 11.6 19.f9b 5.247 1ab9.2f 6d1.239 7.1f 11.4f 11.1e 12.30 10.4 1f.15 5.13 1b0.2d d3.40 20.19 "
    "2.19 2c.4b 4.39 7.11 40.2 1 c.7 9.1cdb 24.22 5f.73 d.392 e.33 1e1d.4 1.7 1.2 1.129 9 1d.3 2 e.5 7.18c 904.6b 5.d "
    "3.9 7.a 4 1761.55 1.47 1.2 2 2.2 2.4 1.c 1 1.7 1.41 1.4 2.8 1.7 1.1c 1.4 1.5 1 3.7 1.155 1.19 1.19 1.1f 1.19 "
    "1.1f 1.19 1.1f 1.19 1.1f 1.19 1.8 734.82 e.7 36.3a 1.11 2.7 1.2 1.5 5.3e 21 70.2d a.7 10 141.1e 12.2c 1e4.1c "
    "e4.1e 2 cf.1f 1.16 8.2 e0.7 1.4 1.2 1.f 1.c5 3b.44 3 3 4b4.4 1.1b 1.2 1 2 1.a 1.4 1 1 6 4 1 1 1.3 1.2 1 2 1 1 1 "
    "1 1.2 1 2.4 1.7 1.4 1.4 1 1.a 1.11 5.3 1.5 1.11 274.1a 6.1a 6.1a e76.a6e0 20.111f 1.168e 2.1d31 f.26e 9a2.21e "
    "5e2.134b 5.212a 9b86.2c40 "
)

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
    return compact(flags)


def compact(rows: npt.NDArray[Any]) -> tuple[npt.NDArray[np.uint16], npt.NDArray[Any]]:
    """Pages of 256 entries as the number of each, and every distinct page once, one after another."""
    numbers: dict[bytes, int] = {}
    pages = np.empty(len(rows), np.uint16)
    for place, row in enumerate(rows):
        pages[place] = numbers.setdefault(row.tobytes(), len(numbers))
    pages.flags.writeable = False
    return pages, np.frombuffer(b"".join(numbers), rows.dtype)
