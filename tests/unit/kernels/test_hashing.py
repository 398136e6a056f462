"""The hash of a column against the reference implementation of XXH64."""

from __future__ import annotations

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.hashing import hash_column, hash_text

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)


@given(st.lists(st.none() | texts, max_size=20))
def test_agrees_with_the_reference_and_only_null_is_zero(values: list[str | None]) -> None:
    expected = [0 if value is None else xxhash.xxh64_intdigest(value.encode()) for value in values]
    assert [int(value) for value in hash_column(values)] == expected
    assert [0 if value is None else hash_text(value) for value in values] == expected


@pytest.mark.parametrize("size", range(100))
def test_every_length(size: int) -> None:
    text = ("0123456789abcdef" * 7)[:size]
    assert int(hash_column([text])[0]) == hash_text(text) == xxhash.xxh64_intdigest(text.encode())


def test_slices_and_chunks_hash_as_the_whole() -> None:
    values = [f"document {number}" for number in range(50)] + [None]
    whole = hash_column(values)
    column = pa.array(values, pa.string())
    assert (hash_column(column.slice(7, 20)) == whole[7:27]).all()
    assert (hash_column(pa.chunked_array([column.slice(0, 9), column.slice(9)])) == whole).all()
