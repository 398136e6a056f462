"""Distributions in bounded memory: as exact as they say, whatever the order and the parts."""

from __future__ import annotations

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.advice.histogram import BINS, QUANTILES, Histogram

values = st.lists(st.floats(0, 1e6) | st.floats(0, 1) | st.sampled_from([0.0, 1.0, 0.5]), min_size=1, max_size=80)


def histogram_of(numbers: list[float], kind: str = "number") -> Histogram:
    made = Histogram(kind)
    made.add(np.array(numbers, np.float64))
    return made


@given(values)
def test_quantiles_are_off_by_at_most_a_bin(numbers: list[float]) -> None:
    made = histogram_of(numbers)
    ordered = np.sort(numbers)
    for share in QUANTILES:
        exact = float(ordered[max(0, int(np.ceil(share * len(ordered))) - 1)])
        assert made.quantile(share) == pytest.approx(exact, abs=1 / 256, rel=0.023)


@given(values, values)
def test_parts_add_up_to_the_whole(first: list[float], second: list[float]) -> None:
    whole = histogram_of(first + second)
    joined = histogram_of(second)
    joined.merge(pickle.loads(pickle.dumps(histogram_of(first))))
    assert (joined.counts == whole.counts).all()
    assert (joined.least, joined.most) == (whole.least, whole.most)
    assert joined.total == pytest.approx(whole.total)


def test_small_counts_are_exact() -> None:
    made = histogram_of([float(number) for number in range(33)], "count")
    assert [made.quantile((number + 1) / 33) for number in range(33)] == list(range(33))


def test_bars_hold_every_value_and_lie_side_by_side() -> None:
    made = histogram_of([0, 0, 0.2, 0.4, 3, 900], "number")
    bars = made.bars(8)
    assert sum(count for *_, count in bars) == 6
    assert bars[0] == (0.0, 0.0, 2)
    assert all(before[1] <= after[0] for before, after in pairwise(bars))


def test_what_is_no_number_or_out_of_range_does_no_harm() -> None:
    made = histogram_of([np.nan, np.inf, -3.0, 1e300])
    assert (made.size, made.least, made.most) == (2, -3.0, 1e300)
    assert made.counts[0] == made.counts[BINS - 1] == 1
    assert Histogram("share").quantile(0.5) is None
    assert Histogram("share").bars() == []
