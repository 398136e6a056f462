"""Masks of 64 bytes against plain Python, and lines that only a look at all of their bytes tells apart."""

from __future__ import annotations

import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels import text_layout, text_lines
from gristmill.kernels.byte_masks import LETTERS, WHITE, WIDE, byte_masks, write_places
from gristmill.kernels.compiler import kernel
from gristmill.kernels.machine import BLOCK
from gristmill.kernels.text_column import text_column

CLASSES = (WHITE, LETTERS, WIDE, b"\x00\x01", b"\xff")
_masks = byte_masks(*CLASSES)


@kernel
def _all_masks(data, at, end):
    return _masks(data, at, end)


@kernel
def _places(mask, room):
    places = np.zeros(room, np.int64)
    return places[: write_places(places, 3, 100, mask)]


@given(st.binary(min_size=1, max_size=200), st.integers(0, 199), st.integers(1, 200))
def test_masks(text: bytes, at: int, length: int) -> None:
    at = min(at, len(text) - 1)
    end = min(at + length, len(text))
    block = text[at : min(end, at + BLOCK)].ljust(BLOCK, b"\0")
    found = _all_masks(np.frombuffer(text, np.uint8).copy(), at, end)
    for members, mask in zip(CLASSES, found, strict=True):
        assert mask == sum(1 << bit for bit, byte in enumerate(block) if byte in members)


@given(st.integers(0, 2**64 - 1), st.sampled_from([0, 40, 70, 200]))
def test_places(mask: int, more: int) -> None:
    expected = [100 + bit for bit in range(64) if mask >> bit & 1]
    found = _places(np.uint64(mask), 3 + len(expected) + more)
    assert found.tolist() == [0, 0, 0, *expected]


def test_lines_that_differ_only_between_the_sampled_bytes() -> None:
    """Their samples are all equal, which must cost neither the right answer nor time by the square."""
    lines = [f"begin    {number:07d}, then the middle, then {number:07d}  end      " for number in range(30_000)]
    text = "\n".join([*lines, *lines[:100]])
    column, alive = text_column([text]), np.ones(1, np.bool_)
    text_lines.line_counts(text_column(["a"]), alive)
    text_layout.layout_counts(text_column(["a"]), alive)
    begun = time.process_time()
    counts = text_lines.line_counts(column, alive)[0]
    layout = text_layout.layout_counts(column, alive)[0]
    assert time.process_time() - begun < 2, "comparing every line with every other takes far longer"
    assert counts[text_lines.N_LINES] == 30_100
    assert counts[text_lines.UNIQUE_LINES] == 30_000
    assert layout[text_layout.REPEATED_RUN_LINES] == 100
