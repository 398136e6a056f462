"""Hashes that do not see case, spacing and ASCII punctuation, against a plain reference."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.loose_hashing import loose_hashes
from gristmill.kernels.text_column import text_column

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


def counted(text: str) -> bytes:
    """The bytes that count, by the rule in words."""
    return bytes(byte for byte in text.encode().lower() if byte >= 0x80 or chr(byte).isalnum())


def hashes_of(values: list[str | None]) -> list[int]:
    data, offsets, _ = text_column(values)
    return [int(value) for value in loose_hashes(data, offsets)]


@given(st.lists(texts | st.sampled_from(["A b", "a  B!", "ab", "é a", "É a"]), min_size=2, max_size=12))
def test_texts_share_a_hash_exactly_where_the_bytes_that_count_are_equal(values: list[str]) -> None:
    hashes = hashes_of(list(values))
    for first, one in zip(values, hashes, strict=True):
        for second, other in zip(values, hashes, strict=True):
            assert (one == other) == (counted(first) == counted(second)), (first, second)


def test_values_are_spread_evenly() -> None:
    hashes = hashes_of([f"document {number}" for number in range(4000)])
    below = sum(value < 2**60 for value in hashes)  # one in sixteen
    assert 190 < below < 310
