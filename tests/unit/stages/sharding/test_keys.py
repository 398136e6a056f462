"""Random keys: spread evenly, independent of each other, and the same everywhere."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.stages.sharding.keys import (
    LENGTH_CLASSES,
    RANDOM_BITS,
    Placement,
    checked_splits,
    copy_keys,
    length_classes,
    mixed,
    split_edges,
)
from gristmill.tasks.document import DocumentBatch

MASK = (1 << 64) - 1


def slow_mixed(value: int, seed: int) -> int:
    """SplitMix64's finaliser, digit by digit as published."""

    def finalise(number: int) -> int:
        number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) & MASK
        return number ^ (number >> 31)

    start = finalise((seed + 0x9E3779B97F4A7C15) & MASK)
    return finalise(((value ^ start) + 0x9E3779B97F4A7C15) & MASK)


@given(st.lists(st.integers(0, MASK), max_size=20), st.integers(-(1 << 63), MASK))
def test_mixing_is_the_published_function(values: list[int], seed: int) -> None:
    found = mixed(np.array(values, np.uint64), seed)
    assert found.tolist() == [slow_mixed(value, seed & MASK) for value in values]


def test_neighbours_are_spread_evenly() -> None:
    keys = mixed(np.arange(100_000, dtype=np.uint64), 5)
    counts = np.bincount((keys >> np.uint64(60)).astype(int), minlength=16)
    assert abs(counts - 6250).max() < 400  # five standard deviations


def test_another_seed_gives_an_unrelated_order() -> None:
    values = np.arange(10_000, dtype=np.uint64)
    ranks = [np.argsort(np.argsort(mixed(values, seed))) for seed in (0, 1)]
    assert abs(np.corrcoef(*ranks)[0, 1]) < 0.05


def test_copies_have_keys_of_their_own() -> None:
    keys = np.full(1000, 42, np.uint64)
    found = copy_keys(keys, np.arange(1000))
    assert found[0] == 42
    assert len(set(found.tolist())) == 1000


def test_splits_follow_the_group_and_not_the_seed_or_the_place() -> None:
    groups = [f"group {number % 50}" for number in range(1000)]
    batch = DocumentBatch(data=pa.table({"cluster": groups}))
    sizes = np.ones(1000, np.int64)
    splits = {"train": 0.6, "validation": 0.2, "test": 0.2}
    by_seed = []
    for seed, first in ((0, 0), (7, 5000)):
        placement = Placement(seed=seed, splits=splits, split_field="cluster")
        keys = placement.keys(batch, np.arange(first, first + 1000, dtype=np.uint64), sizes)
        by_seed.append((keys >> np.uint64(RANDOM_BITS)).astype(int) // LENGTH_CLASSES)
    assert by_seed[0].tolist() == by_seed[1].tolist()
    found = {group: set() for group in groups}  # type: ignore[var-annotated]
    for group, split in zip(groups, by_seed[0].tolist(), strict=True):
        found[group].add(split)
    assert all(len(splits_of) == 1 for splits_of in found.values())


def test_splits_without_a_group_hold_their_fractions() -> None:
    placement = Placement(splits={"train": 0.9, "test": 0.1}, split_field="missing")
    batch = DocumentBatch(data=pa.table({"text": [""] * 20_000}))
    keys = placement.keys(batch, np.arange(20_000, dtype=np.uint64), np.ones(20_000, np.int64))
    share = float(((keys >> np.uint64(RANDOM_BITS)).astype(int) // LENGTH_CLASSES).mean())
    assert abs(share - 0.1) < 0.01


def test_a_document_without_a_group_is_assigned_by_itself() -> None:
    placement = Placement(splits={"train": 0.5, "test": 0.5}, split_field="cluster")
    batch = DocumentBatch(data=pa.table({"cluster": pa.nulls(1000, pa.string())}))
    keys = placement.keys(batch, np.arange(1000, dtype=np.uint64), np.ones(1000, np.int64))
    assert 400 < int((keys >> np.uint64(RANDOM_BITS + 6)).astype(int).sum()) < 600


@given(st.lists(st.integers(0, 1 << 45), min_size=1, max_size=50))
def test_length_classes_grow_with_the_length(sizes: list[int]) -> None:
    ordered = np.sort(np.array(sizes, np.int64))
    classes = length_classes(ordered)
    assert (np.diff(classes) >= 0).all()
    assert classes.min() >= 0
    assert classes.max() < LENGTH_CLASSES


@pytest.mark.parametrize(
    ("splits", "told"),
    [
        ({"train": 0.9, "test": 0.2}, "sum to 1.1, not to 1"),
        ({"train": -0.1, "test": 1.1}, "the fraction of 'train' is -0.1"),
        ({"train": float("nan"), "test": 0.5}, "the fraction of 'train' is nan"),
        ({"a/b": 0.5, "test": 0.5}, "becomes part of file names"),
        ({"train": None, "test": 0.5}, "the fraction of 'train' is None"),
        ({"train": True}, "the fraction of 'train' is True"),
    ],
)
def test_splits_that_cannot_work(splits: dict[str, float | None], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        checked_splits(splits)


def test_the_last_split_takes_the_rest() -> None:
    assert checked_splits({"train": 0.75, "test": None}) == {"train": 0.75, "test": 0.25}
    assert split_edges({"train": 0.75, "test": 0.25}).tolist() == [3 << 62]
