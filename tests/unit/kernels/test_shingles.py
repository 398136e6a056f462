"""Shingles against a plain reference, and the rules for short, wordless and empty documents."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.kernels.shingles import (
    BLOCK,
    CHARACTERS,
    WORDS,
    jaccard_lists,
    jaccard_pairs,
    shingle_sets,
    word_tables,
)
from gristmill.kernels.text_column import text_column

# One lower-case letter for each, no marks: what `str.lower` does to these the tables do too.
_LETTERS = "abcdefgxyzABCXYZäöüÄÖÜßéΑΒΓαβγДЖдж0123456789 \n\t_,.;-!?(){}#"


def reference_words(text: str) -> list[str]:
    words = [word.lstrip("_") for word in re.findall(r"\w+", "".join(c.lower() for c in text))]
    return [word for word in words if word]


def reference_sets(text: str, size: int) -> set[tuple[str, ...]]:
    words = reference_words(text)
    letters = sum(len(word.encode()) for word in words)
    symbols = len(re.sub(r"\s", "", text).encode()) - letters
    if not words or symbols > 8 * letters:
        return {(text,)} if text.strip() else set()
    return {tuple(words[at : at + size]) for at in range(max(1, len(words) - size + 1))}


def sets_of(texts: list[str], size: int = 5, unit: int = WORDS) -> list[set[int]]:
    data, offsets, _ = text_column(list(texts))
    values, bounds = shingle_sets(data, offsets, np.arange(len(texts)), *word_tables(), size, unit)
    found = [values[bounds[row] : bounds[row + 1]] for row in range(len(texts))]
    for one in found:
        assert (np.diff(one.astype(object)) > 0).all()
    return [set(one.tolist()) for one in found]


_MASK = (1 << 64) - 1


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def _word_hash(word: str) -> int:
    value = 0x9AE16A3B2F90404F
    for letter in word:
        value = (value ^ ord(letter)) * 0x100000001B3 & _MASK
    return _mixed(value)


def reference_hashes(text: str, size: int) -> set[int]:
    """The numbers themselves, of a text with more words than symbols."""
    words = [_word_hash(word) for word in reference_words(text)]
    count = min(size, len(words))
    short = count if len(words) < size else 0
    rolls = []
    for at in range(len(words) - count + 1):
        roll = 0
        for word in words[at : at + count]:
            roll = (roll * 0xD6E8FEB86659FD93 + word) & _MASK
        rolls.append(_mixed((roll + short) & _MASK))
    return {roll >> 32 for roll in rolls}


def jaccard(one: set[int] | set[tuple[str, ...]], other: set[int] | set[tuple[str, ...]]) -> float:
    return len(one & other) / len(one | other) if one | other else 0.0


@given(st.lists(st.text(alphabet=_LETTERS, max_size=60), min_size=1, max_size=6), st.integers(1, 6))
def test_sets_have_the_sizes_and_overlaps_of_the_reference(texts: list[str], size: int) -> None:
    found = sets_of(texts, size)
    wanted = [reference_sets(text, size) for text in texts]
    assert [len(one) for one in found] == [len(one) for one in wanted]
    for at in range(len(texts)):
        for other in range(at):
            assert len(found[at] & found[other]) == len(wanted[at] & wanted[other])


# Words as long as a number has bytes, as the bytes that are looked at at once, and around both; with other letters and
# underscores anywhere; enough for several blocks or for none.
_WORDS = st.text(alphabet="aZ5_éЖ", min_size=1, max_size=10) | st.builds(
    lambda letter, length, last: letter * length + last,
    st.sampled_from("aB7"),
    st.sampled_from([7, 8, 9, 15, 16, 17, 62, 63, 64, 65, 130]),
    st.sampled_from(["", "q", "_", "é", "’s"]),
)


@given(
    st.lists(st.lists(_WORDS, min_size=1, max_size=40), min_size=1, max_size=4),
    st.sampled_from([" ", "\n", ", ", " — ", "\x1c"]),
    st.integers(1, 6),
)
def test_shingles_are_the_numbers_that_they_always_were(texts: list[list[str]], between: str, size: int) -> None:
    """Files between the steps of a run that was interrupted hold them, and signatures rest on them."""
    given_texts = [between.join(["word", *words]) for words in texts]
    assert sets_of(given_texts, size) == [reference_hashes(text, size) for text in given_texts]


@given(st.integers(1, 200), st.integers(1, 60))
def test_sets_are_sorted_and_hold_each_shingle_once(words: int, different: int) -> None:
    text = " ".join(f"w{number * number % different}" for number in range(words))
    (found,) = sets_of([text], 2)
    assert found == reference_hashes(text, 2)


@given(st.lists(st.text(alphabet="abc ", max_size=40), min_size=2, max_size=2), st.integers(1, 5))
def test_characters_count_runs_of_white_space_as_one(texts: list[str], size: int) -> None:
    found = sets_of(texts, size, CHARACTERS)
    for text, one in zip(texts, found, strict=True):
        squeezed = re.sub(r"\s+", " ", text.lower())
        wanted = {squeezed[at : at + size] for at in range(max(1, len(squeezed) - size + 1))} if squeezed else set()
        assert len(one) == len(wanted)


def test_a_text_longer_than_a_block_of_shingles() -> None:
    words = [f"w{number}" for number in range(3 * BLOCK + 7)]
    (found,) = sets_of([" ".join(words)])
    assert len(found) == len(words) - 4


@pytest.mark.parametrize("count", [BLOCK - 2, BLOCK - 1, BLOCK, BLOCK + 1, BLOCK + 3, BLOCK + 4, BLOCK + 5])
@pytest.mark.parametrize("end", ["", " ", "."])
def test_no_shingle_is_lost_where_blocks_meet(count: int, end: str) -> None:
    (found,) = sets_of([" ".join(f"w{number}" for number in range(count)) + end])
    assert len(found) == count - 4


def test_case_and_punctuation_do_not_matter() -> None:
    one, other = sets_of(["The quick, brown fox: it jumps!", "the QUICK brown fox it (jumps)"])
    assert one == other != set()


def test_scripts_without_spaces_are_cut_into_characters() -> None:
    one, other = sets_of(["今天天气很好我们去公园", "今天天气很好我们去学校"])
    assert len(one) == 11 - 4
    assert 0.3 < jaccard(one, other) < 0.9


def test_short_documents_match_only_their_like() -> None:
    one, other, longer = sets_of(["good morning", "Good Morning!", "good morning to"])
    assert one == other
    assert len(one) == 1
    assert not one & longer


def test_symbols_are_compared_whole() -> None:
    found = sets_of(
        [";*{;=/^|>= ^:?/<>__ _|{[;", "}..-=@{! ~*]=]/>-*~?{<_~^[", ";*{;=/^|>= ^:?/<>__ _|{[;", "  \n", ""]
    )
    assert found[0] == found[2] != found[1]
    assert found[3] == found[4] == set()


@given(st.lists(st.sets(st.integers(0, 30), max_size=12), min_size=2, max_size=5))
def test_jaccard_is_that_of_sets(sets: list[set[int]]) -> None:
    bounds = np.cumsum([0, *map(len, sets)])
    values = np.array([value for one in sets for value in sorted(one)], np.uint32)
    values.flags.writeable = bounds.flags.writeable = False
    firsts, seconds = (indices.reshape(-1).astype(np.int64) for indices in np.indices((len(sets), len(sets))))
    found = jaccard_pairs(values, bounds, values, bounds, firsts, seconds)
    assert found.tolist() == [jaccard(sets[a], sets[b]) for a, b in zip(firsts, seconds, strict=True)]


@given(st.lists(st.lists(st.integers(0, 30), max_size=12), min_size=2, max_size=5))
def test_jaccard_of_lists_is_that_of_their_sets(lists: list[list[int]]) -> None:
    bounds = np.cumsum([0, *map(len, lists)])
    values = np.array([value for one in lists for value in one], np.uint32) << np.uint32(26)
    values.flags.writeable = bounds.flags.writeable = False
    firsts, seconds = (indices.reshape(-1).astype(np.int64) for indices in np.indices((len(lists), len(lists))))
    found = jaccard_lists(values, bounds, values, bounds, firsts, seconds)
    assert found.tolist() == [jaccard(set(lists[a]), set(lists[b])) for a, b in zip(firsts, seconds, strict=True)]
