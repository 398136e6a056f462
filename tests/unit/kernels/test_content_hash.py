"""The 128-bit hash of texts: equal for equal texts only."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.content_hash import content_hashes
from gristmill.kernels.hashing import hash_text
from gristmill.kernels.text_column import text_column


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
    assert [row[0] for row in found] == [hash_text(text) for text in texts]


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
