"""Texts at the edges: every kernel returns, in time that grows with the text."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.kernels import ngrams, text_characters, text_lines, text_phrases, text_words
from gristmill.kernels.text_column import text_column
from gristmill.stages.text.filters.statistics import BOILERPLATE_PHRASES
from tests.pace import assert_grows_with_length

SIZE = 2_000_000
LARGE = {
    "one word": "x" * SIZE,
    "one line": "word and " * (SIZE // 9),
    "one letter words": "a " * (SIZE // 2),
    "one letter lines": "a\n" * (SIZE // 2),
    "blank": " " * SIZE,
    "newlines": "\n" * SIZE,
    "two words": ("a" * (SIZE // 2)) + " " + ("a" * (SIZE // 2 - 1)) + "b",
    "colons": ":" * SIZE,
    "urls": "http://" * (SIZE // 7),
    "hashes": "# " * (SIZE // 2),
    "repeated words": " ".join(["aab"] * (SIZE // 4)),
    "emoji": "🙂" * (SIZE // 4),
    "wide spaces": "\u3000" * (SIZE // 3),
    "phrases": "cookie policy" * (SIZE // 13),
    "almost phrases": "use cookie" * (SIZE // 10),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_texts_take_no_longer_than_their_size_allows(name: str) -> None:
    alive = np.ones(1, dtype=np.bool_)
    phrases = text_phrases.compile_phrases(BOILERPLATE_PHRASES, ("lorem ipsum",))

    def count(text: str) -> None:
        column = text_column([text])
        characters = text_characters.character_counts(column, alive)
        words = text_words.word_counts(column, alive)
        text_lines.line_counts(column, alive)
        text_phrases.phrase_counts(column, alive, phrases)
        ngrams.ngram_counts(column, alive, top=(1, 2, 3), duplicate=(2, 5, 10))
        assert characters[0, text_characters.N_CHARS] == len(text)
        assert words[0, text_words.N_WORDS] == len(text.split())

    count("a b")  # compiles
    assert_grows_with_length(count, LARGE[name][: len(LARGE[name]) // 4], LARGE[name])


@pytest.mark.parametrize("text", ["", " ", "\n", "a", "🙂", "\u0301", "\u3000", "\x00", "é", "中", "#", ".", None])
def test_small_texts(text: str | None) -> None:
    column = text_column([text])
    alive = np.ones(1, dtype=np.bool_)
    assert text_characters.character_counts(column, alive)[0, 0] == len(text or "")
    assert text_words.word_counts(column, alive)[0, 0] == len((text or "").split())
    assert text_lines.line_counts(column, alive)[0, text_lines.N_PARAGRAPHS] == 1
    top, duplicate = ngrams.ngram_counts(column, alive, top=(2,), duplicate=(2,))
    assert (top[0, 0], duplicate[0, 0]) == (-1, -1)
