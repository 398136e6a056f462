"""Copies between arrays inside kernels.

A kernel never assigns one slice to another (`a[:n] = b[:n]`). numba would compile a check of the shapes and its error
message, which takes a second or more per kernel, several times longer than the rest of a small one.
"""

from __future__ import annotations

import numpy as np

from gristmill.kernels.compiler import inlined, leaf


@leaf
def copy_items(target, at, source, count):
    """Copy the first `count` items of `source` to `target[at:]`; the caller makes sure that there is room."""
    for place in range(count):
        target[at + place] = source[place]


@inlined
def grown(values, size):
    """A new array of `size` items that begins with those of `values`."""
    larger = np.empty(size, values.dtype)
    copy_items(larger, 0, values, len(values))
    return larger


@leaf
def sort_items(values, count):
    """Sort the first `count` items of `values` in place (Shell 1959); `np.sort` takes a second to compile."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for place in range(gap, count):
            value = values[place]
            at = place
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap //= 3
