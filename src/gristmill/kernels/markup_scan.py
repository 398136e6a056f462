"""One pass over the bytes of a web page before it is parsed: number of tags, nesting depth, some contents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.kernels.byte_masks import byte_masks
from gristmill.kernels.compiler import kernel
from gristmill.kernels.machine import trailing_zeros
from gristmill.kernels.url_lists import BASIS, hash_step
from gristmill.kernels.url_parts import lower_byte
from gristmill.kernels.utf8 import ONE, ZERO, starts_with

_NEVER_OPEN = (
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "param", "source", "track", "wbr",
    "p", "li", "dt", "dd", "option", "optgroup", "tr", "td", "th", "thead", "tbody", "tfoot", "colgroup", "caption",
    "rp", "rt", "html", "head", "body",
)  # fmt: skip
"""Void elements, and those that are closed by the next one of their kind."""
_SLOTS = 4096
_MOST_NAMES = 2048
_NO_TAG, _UNKNOWN = np.int64(-1), np.int64(-2)
_STEP = 61
"""Number of positions in 64 bytes at which a four-letter word can begin."""
_LETTERS = byte_masks(b"<", b">", b"m", b"a", b"t", b"h", b"e", b"x", b'"')

_MATH, _MATH_TEX, _MWE_MATH, _CLASS_TEX, _CLASS_LATEX = (
    np.frombuffer(sign, np.uint8) for sign in (b"<math", b"math/tex", b"mwe-math", b'class="tex"', b'class="latex"')
)
"""The signs of formulas."""


class MarkupScan(NamedTuple):
    """What the bytes of a page show.

    Attributes:
        tags: Number of `<`.
        depth: Maximum number of open elements.
        has_formulas: It contains `<math`, `math/tex`, `mwe-math`, `class="tex"` or `class="latex"`.
        has_cells: It has an end tag of a table cell.
    """

    tags: int
    depth: int
    has_formulas: bool
    has_cells: bool


def scan_markup(page: bytes) -> MarkupScan:
    """Scan a page in an encoding that contains ASCII.

    An end tag closes the last open element of its name, and is ignored if there is none, as in parsers. Names beyond
    the first 2,048 distinct ones count as never closed.

    Example:
        >>> scan_markup(b"<table><tr><td><b>1</b></td></tr></table>")
        MarkupScan(tags=8, depth=2, has_formulas=False, has_cells=True)
    """
    tags, depth, formulas, cells = _scan(np.frombuffer(page, np.uint8), _KEYS, _CELL)
    return MarkupScan(tags, depth, bool(formulas), bool(cells))


@kernel
def _scan(data, known, cell):
    keys = known.copy()
    counts = np.zeros(_SLOTS, np.int64)
    end = len(data)
    tags = depth = deepest = names = formulas = cells = 0
    slot = _NO_TAG  # of the tag that is still open
    closes = False
    at = 0
    while at < end:
        opening, ending, m, a, t, h, e, x, quote = _LETTERS(data, at, end)
        one, two, three = ONE, np.uint64(2), np.uint64(3)
        math = m & (a >> one) & (t >> two) & (h >> three)
        tex = t & (e >> one) & (x >> two) & (quote >> three)
        while math:
            place = at + trailing_zeros(math)
            math &= math - ONE
            if (
                starts_with(data, place - 1, end, _MATH)
                or starts_with(data, place, end, _MATH_TEX)
                or starts_with(data, place - 4, end, _MWE_MATH)
            ):
                formulas = 1
        while tex:
            place = at + trailing_zeros(tex)
            tex &= tex - ONE
            if starts_with(data, place - 7, end, _CLASS_TEX) or starts_with(data, place - 9, end, _CLASS_LATEX):
                formulas = 1
        events = (opening | ending) & ((ONE << np.uint64(_STEP)) - ONE)
        while events:
            place = at + trailing_zeros(events)
            events &= events - ONE
            if data[place] == 60:
                tags += 1
                place += 1
                closes = place < end and data[place] == 47
                place += closes
                slot = _NO_TAG
                if place >= end or not 97 <= data[place] | 32 <= 122:
                    continue
                state = BASIS
                while place < end:
                    byte = data[place]
                    if byte == 32 or 9 <= byte <= 13 or byte == 47 or byte == 60 or byte == 62:
                        break
                    state = hash_step(state, lower_byte(byte))
                    place += 1
                state |= ONE
                slot = np.int64(state >> np.uint64(52))
                while keys[slot] != ZERO and keys[slot] != state:
                    slot = (slot + 1) & (_SLOTS - 1)
                if keys[slot] == ZERO and not closes:
                    if names < _MOST_NAMES:
                        names += 1
                        keys[slot] = state
                    else:
                        slot = _UNKNOWN
                continue
            if slot != _NO_TAG and data[place - 1] != 47:
                if slot == _UNKNOWN or (not closes and known[slot] == ZERO):
                    depth += 1
                    deepest = max(deepest, depth)
                    if slot >= 0:
                        counts[slot] += 1
                elif closes and slot == cell:
                    cells = 1
                elif closes and counts[slot] > 0:
                    counts[slot] -= 1
                    depth -= 1
            slot = _NO_TAG
        at += _STEP
    return tags, deepest, formulas, cells


def _table(names: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """The keys of names at their slots, as the kernel looks them up."""
    keys = np.zeros(_SLOTS, np.uint64)
    for name in names:
        keys[_slot(keys, name)] = _key(name)
    return keys


def _key(name: str) -> int:
    state = int(BASIS)
    for byte in name.encode():
        state = ((state ^ byte) * 0x9E3779B97F4A7C15) % (1 << 64)
        state ^= state >> 32
    return state | 1


def _slot(keys: npt.NDArray[np.uint64], name: str) -> int:
    slot = _key(name) >> 52
    while keys[slot] and int(keys[slot]) != _key(name):
        slot = (slot + 1) % _SLOTS
    return slot


_KEYS = _table(_NEVER_OPEN)
_CELL = _slot(_KEYS, "td")
