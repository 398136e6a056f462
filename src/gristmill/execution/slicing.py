"""In which pieces the rows of a call are given to a stage, when one of them may kill or take too long."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

Slices = Sequence[tuple[int, int]]


def around(lo: int, hi: int, poison: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """The piece `lo:hi` cut so that every poisonous row stands alone."""
    start = lo
    for row in sorted(row for row in poison if lo <= row < hi):
        if row > start:
            yield start, row
        yield row, row + 1
        start = row + 1
    if start < hi:
        yield start, hi


def by_time(start: int, stop: int, limit_s: float) -> Iterator[tuple[int, int]]:
    """Pieces that take about a quarter of the time limit each, so that only a slow document can exceed it."""
    size = 1
    while start < stop:
        end = min(stop, start + size)
        begun = time.perf_counter()
        yield start, end
        spent = max(time.perf_counter() - begun, 1e-6)
        fitting = int((end - start) * limit_s / 4 / spent)
        size = int(np.clip(fitting, 1, 2 * size))
        start = end


def with_gaps(slices: Slices, rows: int, limit_s: float | None) -> Iterator[tuple[int, int]]:
    """The slices and, in order, what lies before, between and behind them."""
    at = 0
    for lo, hi in [*slices, (rows, rows)]:
        if at < lo:
            yield from [(at, lo)] if limit_s is None else by_time(at, lo, limit_s)
        if lo < hi:
            yield lo, hi
        at = hi
