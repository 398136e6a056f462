"""A trail survives the way through a file exactly."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import InputError
from gristmill.ledger.record.tables import read_trail, trail_from_bytes, trail_to_bytes, write_trail
from gristmill.ledger.record.trail import (
    Changes,
    Decisions,
    Identity,
    QuarantinedRecord,
    Scores,
    StageCount,
    StageTime,
    Trail,
)
from tests.unit.ledger.making import make_trail

words = st.text(max_size=8)  # lone surrogates included: tracebacks and file names can hold them
valid = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
counts = st.dictionaries(words, st.integers(0, 2**40), max_size=3)
floats = st.floats()


def _array(draw: Any, size: int, dtype: Any) -> Any:
    if dtype == np.float64:
        return np.array(draw(st.lists(floats, min_size=size, max_size=size)), np.float64)
    low, high = (0, 2**64 - 1) if dtype == np.uint64 else (-1, 2**62)
    return np.array(draw(st.lists(st.integers(low, high), min_size=size, max_size=size)), dtype)


@st.composite
def trails(draw: Any) -> Trail:
    trail = Trail(output_rows=draw(st.integers(0, 100)))
    for stage in draw(st.lists(words, max_size=3, unique=True)):
        trail.counts[stage] = StageCount(
            draw(st.integers(0, 9)), draw(st.integers(0, 9)), 1, draw(counts), draw(counts), 2, 3, 4, 5
        )
        trail.times[stage] = StageTime(1, draw(floats), 2, {"x": draw(floats)})
    for _ in range(draw(st.integers(0, 3))):
        n = draw(st.integers(0, 4))
        trail.decisions.append(
            Decisions(
                draw(words),
                draw(words),
                draw(words),
                _array(draw, n, np.int64),
                _array(draw, n, np.float64) if draw(st.booleans()) else None,
                draw(st.none() | floats),
                draw(st.lists(words, min_size=n, max_size=n)) if draw(st.booleans()) else None,
                _array(draw, n, np.float64) if draw(st.booleans()) else None,
            )
        )
        trail.changes.append(Changes(draw(words), draw(words), _array(draw, n, np.int64), _array(draw, n, np.int64)))
        trail.scores.append(Scores(draw(words), draw(words), _array(draw, n, np.int64), _array(draw, n, np.float64)))
        ids = draw(st.none() | st.lists(st.none() | valid, min_size=n, max_size=n))
        trail.identities.append(
            Identity(
                _array(draw, n, np.int64),
                _array(draw, n, np.uint64) if draw(st.booleans()) else None,
                _array(draw, n, np.uint64) if draw(st.booleans()) else None,
                None if ids is None else pa.array(ids, pa.large_string()),
            )
        )
        trail.quarantine.append(
            QuarantinedRecord(n, draw(words), draw(words), draw(words), draw(words), -1, 7, draw(st.binary(max_size=9)))
        )
    return trail


def plain(value: Any) -> Any:
    """A value that compares: arrays as lists of bits with their type."""
    if isinstance(value, np.ndarray):
        bits = value.view(np.uint64) if value.dtype == np.float64 else value
        return (str(value.dtype), bits.tolist())
    if isinstance(value, pa.Array):
        return (str(value.type), value.to_pylist())
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


@given(trails())
def test_round_trip(trail: Trail) -> None:
    assert plain(asdict(trail_from_bytes(trail_to_bytes(trail)))) == plain(asdict(trail))


def test_slices_of_ids_and_other_string_types_are_taken(tmp_path: Path) -> None:
    ids = pa.array([None, "a", "b", "c"]).slice(1, 2)
    trail = Trail(identities=[Identity(np.arange(2), ids=ids), Identity(np.arange(1), ids=pa.array(["z"]))])
    write_trail(trail, tmp_path / "piece")
    back = read_trail(tmp_path / "piece")
    assert [identity.ids.to_pylist() for identity in back.identities] == [["a", "b"], ["z"]]


def test_a_file_that_is_something_else_is_named(tmp_path: Path) -> None:
    path = tmp_path / "piece"
    path.write_bytes(b"something else")
    with pytest.raises(InputError, match="piece"):
        read_trail(path)
    whole = trail_to_bytes(make_trail())
    for size in (9, 30, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match="does not hold a trail"):
            read_trail(path)
