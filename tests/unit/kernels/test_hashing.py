"""The hashes of a column: XXH64 as its reference implementation has it, and 128 bits that equal texts alone share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.hashing import content_hashes, hash_column
from gristmill.kernels.text_column import text_column

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=120)


@given(st.lists(st.none() | texts, max_size=20))
def test_agrees_with_the_reference_and_only_null_is_zero(values: list[str | None]) -> None:
    expected = [0 if value is None else xxhash.xxh64_intdigest(value.encode()) for value in values]
    assert [int(value) for value in hash_column(values)] == expected


@pytest.mark.parametrize("size", range(100))
def test_every_length(size: int) -> None:
    text = ("0123456789abcdef" * 7)[:size]
    assert int(hash_column([text])[0]) == xxhash.xxh64_intdigest(text.encode())


def test_slices_and_chunks_hash_as_the_whole() -> None:
    values = [f"document {number}" for number in range(50)] + [None]
    whole = hash_column(values)
    column = pa.array(values, pa.string())
    assert (hash_column(column.slice(7, 20)) == whole[7:27]).all()
    assert (hash_column(pa.chunked_array([column.slice(0, 9), column.slice(9)])) == whole).all()


def hashes_of(texts: list[str]) -> list[tuple[int, ...]]:
    data, offsets, _ = text_column(list(texts))
    return [tuple(row) for row in content_hashes(data, offsets).tolist()]


@given(st.lists(st.text(max_size=80), min_size=1, max_size=12))
def test_equal_exactly_where_the_texts_are(texts: list[str]) -> None:
    # The column cannot hold lone surrogates.
    texts = [text.encode("utf-8", "replace").decode() for text in texts]
    found = hashes_of(texts)
    for half in (0, 1):
        assert len({row[half] for row in found}) == len(set(texts))
    assert [row[0] for row in found] == [int(value) for value in hash_column(list(texts))]


def test_neither_the_place_nor_the_neighbours_matter() -> None:
    text = "a text of some length, longer than thirty-two bytes"
    alone = hashes_of([text])[0]
    assert hashes_of(["x", text, "", text])[1::2] == [alone, alone]


def test_every_byte_and_the_length_matter() -> None:
    base = bytearray(b"a" * 75)
    texts = ["a" * length for length in range(76)]
    for at in range(75):
        changed = bytearray(base)
        changed[at] ^= 1
        texts.append(changed.decode())
    second = np.array(hashes_of(texts), dtype=object)[:, 1]
    assert len(set(second.tolist())) == len(texts)
