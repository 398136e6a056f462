"""Exact cuts, compared with a plain search over all documents."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.stages.sharding.cuts import Weights, cut_keys, totals_of
from gristmill.stages.sharding.keys import RANDOM_BITS

Document = tuple[int, int]
documents = st.lists(
    st.tuples(
        st.builds(lambda stratum, key: (stratum << RANDOM_BITS) + key, st.integers(0, 2), st.integers(0, 1 << 40)),
        st.integers(1, 50),
    ),
    max_size=60,
    unique_by=lambda pair: pair[0],
)


def weights_of(given: list[Document], files: int) -> Weights:
    parts = [sorted(given[at::files]) for at in range(files)]

    def each() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for part in parts:
            yield np.array([key for key, _ in part], np.uint64), np.array([weight for _, weight in part], np.int64)

    return each


def slow_cut(given: list[Document], stratum: int, target: float, nearest: bool) -> int:
    before = 0
    for key, weight in sorted(given):
        if key >> RANDOM_BITS == stratum:
            if before + (weight / 2 if nearest else 0) >= target:
                return key
            before += weight
    return (stratum + 1) << RANDOM_BITS


@given(documents, st.integers(1, 3), st.lists(st.floats(0, 4000), min_size=1, max_size=5), st.booleans())
def test_cuts_are_those_of_a_plain_search(given: list[Document], files: int, targets: list[float], near: bool) -> None:
    wanted = {stratum: sorted(targets) for stratum in range(3)}
    found = cut_keys(weights_of(given, files), wanted, nearest=near)
    for stratum in range(3):
        assert found[stratum] == [slow_cut(given, stratum, target, near) for target in wanted[stratum]]


@given(documents, st.integers(1, 3))
def test_totals_are_sums(given: list[Document], files: int) -> None:
    found = totals_of(weights_of(given, files))
    for stratum in range(3):
        mine = [weight for key, weight in given if key >> RANDOM_BITS == stratum]
        if mine:
            assert (found[stratum].documents, found[stratum].weight) == (len(mine), sum(mine))
        else:
            assert stratum not in found
