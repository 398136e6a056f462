"""Band hashes: equal for equal words, and as often equal as the similarity says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.minhash import band_hashes, hash_factors, signature_sets
from gristmill.kernels.shingles import WORDS, shingle_sets, word_tables
from gristmill.kernels.text_column import text_column

Bands = npt.NDArray[np.uint64]


def bands_of(texts: list[str | None], bands: int = 8, rows: int = 2) -> tuple[Bands, Bands, npt.NDArray[np.int64]]:
    data, offsets, _ = text_column(texts)
    factors = hash_factors(bands * rows, 42)
    return band_hashes(data, offsets, *word_tables(), 5, WORDS, *factors, bands, rows, np.empty(0, np.uint32))[:3]


def test_equal_words_give_equal_hashes_and_contents() -> None:
    hashes, contents, counts = bands_of(
        ["one two three four five six", "One, two three: FOUR five six!", "other words"]
    )
    assert (hashes[0] == hashes[1]).all()
    assert contents[0] == contents[1] != contents[2]
    assert counts.tolist() == [2, 2, 1]


def test_the_same_set_in_another_order_has_another_content() -> None:
    text = "a b c d e a b c d e a b c d e"
    hashes, contents, _ = bands_of([text, text + " a b c d e"])
    assert (hashes[0] == hashes[1]).all()
    assert contents[0] != contents[1]


def test_the_lowest_bits_number_the_bands() -> None:
    hashes, _, _ = bands_of(["some words that make a shingle or two"])
    assert (hashes[0] & np.uint64(255)).tolist() == list(range(8))


def test_documents_without_shingles_count_none() -> None:
    assert bands_of(["", None, " \n ", "!!!"])[2].tolist() == [0, 0, 0, 1]


def _mixed(value: int) -> int:
    mask = (1 << 64) - 1
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & mask
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & mask
    return value ^ value >> 33


def test_bands_are_made_of_the_least_hashes_of_the_shingles() -> None:
    texts = ["a few words that are hashed here by two ways and must agree in all", "x", "{};" * 9 + " y z"]
    data, offsets, _ = text_column(list(texts))
    flips, factors = hash_factors(6, 42)
    values, bounds = shingle_sets(data, offsets, np.arange(3), *word_tables(), 5, WORDS)
    hashes, _, counts, kept = band_hashes(
        data, offsets, *word_tables(), 5, WORDS, flips, factors, 3, 2, np.empty(1, np.uint32)
    )
    for row in range(3):
        here = values[bounds[row] : bounds[row + 1]]
        least = ((here[:, None] ^ flips[None]) * factors[None]).min(axis=0).tolist()
        for band in range(3):
            combined = band
            for value in least[2 * band : 2 * band + 2]:
                combined = (_mixed(combined ^ value) + 0x9E3779B97F4A7C15) & ((1 << 64) - 1)
            assert hashes[row, band] == _mixed(combined) & ~255 | band
    lists = np.split(kept, np.cumsum(counts)[:-1])
    assert [sorted(set(one.tolist())) for one in lists] == [
        values[start:end].tolist() for start, end in pairwise(bounds.tolist())
    ]


def test_agreement_follows_the_similarity() -> None:
    rng = np.random.default_rng(7)
    words = [f"w{number}" for number in range(4000)]
    base = rng.choice(words, 400).tolist()
    changed = list(base)
    for place in range(0, 400, 40):
        changed[place] = "other"
    texts = [" ".join(base), " ".join(changed)]
    data, offsets, _ = text_column(list(texts))
    values, bounds = shingle_sets(data, offsets, np.arange(2), *word_tables(), 5, WORDS)
    one, other = (set(values[bounds[row] : bounds[row + 1]].tolist()) for row in range(2))
    true = len(one & other) / len(one | other)
    count = 240
    hashes, *_ = band_hashes(
        data, offsets, *word_tables(), 5, WORDS, *hash_factors(count, 3), count, 1, np.empty(0, np.uint32)
    )
    agreed = float((hashes[0] == hashes[1]).mean())
    assert abs(agreed - true) < 4 * (true * (1 - true) / count) ** 0.5


@given(st.lists(st.lists(st.integers(0, 2**32 - 1), max_size=9), max_size=8), st.integers(1, 20))
def test_signatures_hold_the_least_hash_of_every_function(sets: list[list[int]], count: int) -> None:
    values = np.array([value for one in sets for value in one], np.uint32)
    bounds = np.cumsum([0, *map(len, sets)]).astype(np.int64)
    flips, factors = hash_factors(count, 3)
    found, places = signature_sets(values, bounds, flips, factors)
    for row, one in enumerate(sets):
        expected = [
            (number << 32) | min((value ^ int(flips[number])) * int(factors[number]) % (1 << 32) for value in one)
            for number in range(count)
            if one
        ]
        assert found[places[row] : places[row + 1]].tolist() == expected
