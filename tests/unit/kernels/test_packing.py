"""Best-fit packing against a slow reference that looks at every sequence."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.packing import best_fit


def slow_best_fit(lengths: list[int], order: list[int], capacity: int) -> tuple[list[int], list[int], int]:
    free: list[int] = []
    changed: list[int] = []
    sequences, offsets = [0] * len(lengths), [0] * len(lengths)
    for time, piece in enumerate(order):
        fitting = [number for number, room in enumerate(free) if room >= lengths[piece]]
        if fitting:
            chosen = min(fitting, key=lambda number: (free[number], -changed[number]))
        else:
            chosen = len(free)
            free.append(capacity)
            changed.append(0)
        sequences[piece], offsets[piece] = chosen, capacity - free[chosen]
        free[chosen] -= lengths[piece]
        changed[chosen] = time
    return sequences, offsets, len(free)


@given(st.integers(1, 40), st.data())
def test_it_is_the_slow_one(capacity: int, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, capacity), max_size=60))
    order = np.argsort(-np.array(lengths, np.int64), kind="stable")
    found = best_fit(np.array(lengths, np.int64), order, capacity)
    wanted = slow_best_fit(lengths, order.tolist(), capacity)
    assert (found[0].tolist(), found[1].tolist(), found[2]) == wanted


def test_little_is_wasted() -> None:
    lengths = np.random.default_rng(1).integers(1, 2048, 5000)
    _, _, count = best_fit(lengths, np.argsort(-lengths, kind="stable"), 2048)
    assert count * 2048 <= lengths.sum() * 1.01
