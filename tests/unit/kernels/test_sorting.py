"""The order of keys, against numpy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels import sorting
from gristmill.kernels.sorting import key_bits, shared_keys, stable_order


@given(st.integers(0, 5000), st.integers(1, 64), st.integers(0, 1 << 63), st.integers(0, 2**32 - 1))
def test_the_order_is_that_of_a_stable_sort(count: int, bits: int, least: int, seed: int) -> None:
    """Hashes, hashes of a range, few values that occur often, and few keys."""
    keys = np.random.default_rng(seed).integers(0, 1 << bits, count, dtype=np.uint64) // np.uint64(2) + np.uint64(least)
    assert stable_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()


def test_keys_that_crowd_are_sorted_all_the_same() -> None:
    keys = np.arange(5000, dtype=np.uint64)[::-1] % np.uint64(3000)
    keys[::7] = np.uint64(1 << 63)
    assert len(sorting._order(np.frombuffer(keys.tobytes(), np.uint64))) == 0
    assert stable_order(keys).tolist() == np.argsort(keys, kind="stable").tolist()


def test_hashes_are_sorted_without_comparing_all_of_them() -> None:
    keys = np.random.default_rng(3).integers(0, 1 << 64, 5000, dtype=np.uint64)
    assert len(sorting._order(np.frombuffer(keys.tobytes(), np.uint64))) == 5000


@given(
    st.lists(st.integers(0, 200), max_size=150),
    st.sets(st.integers(0, 200), min_size=1, max_size=60),
    st.sampled_from([1, 1 << 40, (1 << 64) // 201]),
)
def test_shared_keys_are_those_of_both(keys: list[int], wanted: set[int], scale: int) -> None:
    between = [scale * key for key in keys if min(wanted) <= key <= max(wanted)]
    left, right = (np.array(sorted(values), np.uint64) for values in (between, {scale * key for key in wanted}))
    left.flags.writeable = right.flags.writeable = False
    rows, places = shared_keys(left, right, *key_bits(right))
    assert left[rows].tolist() == right[places].tolist() == sorted(key for key in between if key in set(right.tolist()))
    assert len(set(rows.tolist())) == len(rows)
