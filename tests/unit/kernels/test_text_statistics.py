"""The text kernels against plain Python, on texts of all planes of Unicode."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.kernels import ngrams, text_characters, text_lines, text_phrases, text_search, text_words
from gristmill.kernels.text_column import TextColumn, WordSpans, text_column, word_spans
from gristmill.kernels.unicode_classes import ALPHABETIC_RANGES, decode_ranges
from tests.unit.kernels import text_reference as plain

ALPHABETIC = frozenset(point for start, end in decode_ranges(ALPHABETIC_RANGES) for point in range(start, end))


def _all(column: TextColumn) -> np.ndarray:
    return np.ones(len(column), dtype=np.bool_)


def _plain_texts(texts: list[str | None]) -> list[str]:
    return ["" if text is None else text for text in texts]


def _spans(split: list[list[str]]) -> WordSpans:
    words = text_column([word for some in split for word in some])
    bounds = np.concatenate([[0], np.cumsum([len(some) for some in split])])
    return word_spans(words.data, words.offsets[:-1], words.offsets[1:], bounds)


@given(plain.columns)
@settings(max_examples=150)
def test_characters(texts: list[str | None]) -> None:
    column = text_column(texts)
    counts = text_characters.character_counts(column, _all(column))
    for text, row in zip(_plain_texts(texts), counts, strict=True):
        urls = plain.URL.findall(text)
        assert row[text_characters.N_CHARS] == len(text)
        assert row[text_characters.PLAIN_CHARS] == sum(c.isascii() and (c.isalnum() or c in "\n?!,.") for c in text)
        assert row[text_characters.DIGIT_CHARS] == sum(c in "0123456789" for c in text)
        assert row[text_characters.WHITE_CHARS] == sum(c in "\t\n\r\b " for c in text)
        assert row[text_characters.BRACKET_CHARS] == sum(c in "{}⟨⟩[]()" for c in text)
        assert row[text_characters.HASH_CHARS] == text.count("#")
        assert row[text_characters.ALPHABETIC_CHARS] == sum(ord(c) in ALPHABETIC for c in text)
        assert row[text_characters.URL_CHARS] == sum(map(len, urls))
        assert row[text_characters.ADULT_URLS] == any("porn" in url for url in urls)


@given(plain.columns)
@settings(max_examples=150)
def test_words(texts: list[str | None]) -> None:
    column = text_column(texts)
    for text, row in zip(_plain_texts(texts), text_words.word_counts(column, _all(column)), strict=True):
        _check_words(text.split(), row)


@given(plain.columns)
def test_given_words(texts: list[str | None]) -> None:
    split = [text.split() for text in _plain_texts(texts)]
    column = text_column(texts)
    counts = text_words.word_counts(column, _all(column), words=_spans(split))
    for some, row in zip(split, counts, strict=True):
        _check_words(some, row)


def _check_words(words: list[str], row: np.ndarray) -> None:
    assert row[text_words.N_WORDS] == len(words)
    assert row[text_words.WORD_CHARS] == sum(map(len, words))
    assert row[text_words.LONGEST_WORD] == max(map(len, words), default=0)
    assert row[text_words.SYMBOL_WORDS] == sum(map(plain.is_symbol_word, words))
    assert row[text_words.ALPHABETIC_WORDS] == sum(any(ord(c) in ALPHABETIC for c in word) for word in words)
    assert row[text_words.COMMON_WORDS] == sum(word in plain.COMMON for word in words)
    assert row[text_words.FIRST_WORD_COMMON] == (bool(words) and words[0] in plain.COMMON)


@given(plain.columns)
@settings(max_examples=150)
def test_lines_and_paragraphs(texts: list[str | None]) -> None:
    column = text_column(texts)
    for text, row in zip(_plain_texts(texts), text_lines.line_counts(column, _all(column)), strict=True):
        lines = plain.lines(text)
        paragraphs = text.split("\n\n")
        assert row[text_lines.N_LINES] == len(lines)
        assert row[text_lines.LINE_CHARS] == sum(map(len, lines))
        assert row[text_lines.UNIQUE_LINES] == len(set(lines))
        assert row[text_lines.UNIQUE_LINE_CHARS] == sum(map(len, set(lines)))
        assert row[text_lines.OPEN_LINES] == sum(not line.strip().endswith(plain.END_MARKS) for line in lines)
        assert row[text_lines.ELLIPSIS_LINES] == sum(line.strip().lower().endswith(plain.ELLIPSES) for line in lines)
        assert row[text_lines.BULLET_LINES] == sum(line.strip().startswith(plain.BULLETS) for line in lines)
        assert row[text_lines.NEWLINES] == text.count("\n")
        assert row[text_lines.N_PARAGRAPHS] == len(paragraphs)
        assert row[text_lines.PARAGRAPH_CHARS] == sum(map(len, paragraphs))
        assert row[text_lines.UNIQUE_PARAGRAPHS] == len(set(paragraphs))
        assert row[text_lines.UNIQUE_PARAGRAPH_CHARS] == sum(map(len, set(paragraphs)))


PHRASES = ("privacy policy", "use cookies", "ab ab")


@given(plain.columns)
def test_phrases(texts: list[str | None]) -> None:
    column = text_column(texts)
    compiled = text_phrases.compile_phrases(PHRASES, ("lorem ipsum",))
    for text, row in zip(_plain_texts(texts), text_phrases.phrase_counts(column, _all(column), compiled), strict=True):
        paragraphs = text.lower().split("\n\n")
        assert row[text_phrases.N_PARAGRAPHS] == len(paragraphs)
        marked = sum(any(phrase in paragraph for phrase in PHRASES) for paragraph in paragraphs)
        assert row[text_phrases.MARKED_PARAGRAPHS] == marked
        assert row[text_phrases.SECOND_KIND] == ("lorem ipsum" in text.lower())


@pytest.mark.parametrize("phrase", ["Terms of USE", "coo\u212aie policy", "Lorem ipsum"])
def test_phrases_stand_anywhere_in_a_text_and_in_a_column(phrase: str) -> None:
    compiled = text_phrases.compile_phrases(("terms of use", "cookie policy"), ("lorem ipsum",))
    for before in range(70):
        for after in (0, 1, 40):
            text = "." * before + phrase + "." * after
            texts = [text, text[:-1] if after == 0 else "rms", text]
            column = text_column(texts)
            counts = text_phrases.phrase_counts(column, _all(column), compiled)
            for whole, row in zip(texts, counts, strict=True):
                lowered = whole.lower()
                assert row[text_phrases.N_PARAGRAPHS] == 1
                assert row[text_phrases.MARKED_PARAGRAPHS] == ("terms of use" in lowered or "cookie policy" in lowered)
                assert row[text_phrases.SECOND_KIND] == ("lorem ipsum" in lowered)


def test_too_many_groups_of_phrases_are_refused() -> None:
    with pytest.raises(ValueError, match="6 phrases share 6 groups"):
        text_phrases.compile_phrases(("abc", "def", "ghi", "jkl", "mno", "pqr"))


LENGTHS = (1, 2, 3, 4, 5, 10)


@given(plain.columns)
@settings(max_examples=150)
def test_ngrams(texts: list[str | None]) -> None:
    column = text_column(texts)
    top, duplicate = ngrams.ngram_counts(column, _all(column), top=LENGTHS, duplicate=LENGTHS)
    for text, most, again in zip(_plain_texts(texts), top, duplicate, strict=True):
        assert most.tolist() == [plain.top_ngram_chars(text, n) for n in LENGTHS]
        assert again.tolist() == [plain.duplicate_ngram_chars(text, n) for n in LENGTHS]


@given(plain.columns)
def test_given_ngrams_equal_those_of_our_own_splitting(texts: list[str | None]) -> None:
    column = text_column(texts)
    split = [text.split() for text in _plain_texts(texts)]
    expected = ngrams.ngram_counts(column, _all(column), top=(1, 2, 3), duplicate=(2, 5))
    found = ngrams.ngram_counts(column, _all(column), top=(1, 2, 3), duplicate=(2, 5), words=_spans(split))
    assert np.array_equal(expected[0], found[0])
    assert np.array_equal(expected[1], found[1])


@given(st.lists(plain.repetitive, min_size=1, max_size=3))
@settings(max_examples=100)
def test_ngrams_of_texts_that_repeat_themselves(texts: list[str]) -> None:
    column = text_column(texts)
    both = ngrams.ngram_counts(column, _all(column), top=LENGTHS, duplicate=LENGTHS)
    from_two = ngrams.ngram_counts(column, _all(column), top=LENGTHS[1:], duplicate=LENGTHS[1:])
    for text, most, again in zip(texts, *both, strict=True):
        assert most.tolist() == [plain.top_ngram_chars(text, n) for n in LENGTHS]
        assert again.tolist() == [plain.duplicate_ngram_chars(text, n) for n in LENGTHS]
    assert np.array_equal(both[0][:, 1:], from_two[0])
    assert np.array_equal(both[1][:, 1:], from_two[1])


@pytest.mark.parametrize(
    "text",
    [
        ("a" * 90 + " ") * 60 + "a" * 91,  # nearly the whole n-gram stands at every place
        "xof the of them of the",  # within other words
        "a b\na b a  b",  # not joined by single spaces
        "to be or not to be " * 3 + "to be",
    ],
)
def test_the_most_frequent_ngram_is_deleted_wherever_it_stands(text: str) -> None:
    for before in ("", "." * 31 + " "):  # the end of the column lies elsewhere in a block
        column = text_column([before + text])
        top, _ = ngrams.ngram_counts(column, _all(column), top=(1, 2, 3, 4))
        assert top[0].tolist() == [plain.top_ngram_chars(before + text, n) for n in (1, 2, 3, 4)]


def test_long_words_that_share_their_first_bytes_are_told_apart() -> None:
    text = "abcdefgh1 abcdefgh2 abcdefgh1 abcdefgh2 abcdefgh"
    column = text_column([text])
    top, duplicate = ngrams.ngram_counts(column, _all(column), top=(2,), duplicate=(2,))
    assert top[0, 0] == plain.top_ngram_chars(text, 2)
    assert duplicate[0, 0] == plain.duplicate_ngram_chars(text, 2)


def test_many_distinct_words_make_the_table_grow() -> None:
    words = [f"w{number}" for number in range(3000)]
    text = " ".join(words + words[:50])
    column = text_column([text])
    _, duplicate = ngrams.ngram_counts(column, _all(column), duplicate=(2, 5))
    assert duplicate[0].tolist() == [plain.duplicate_ngram_chars(text, 2), plain.duplicate_ngram_chars(text, 5)]


@given(plain.columns, plain.texts)
def test_contains(texts: list[str | None], needle: str) -> None:
    column = text_column(texts)
    for wanted in (needle[:3], "a", ""):
        anywhere = text_search.contains(column, _all(column), wanted)
        first = text_search.contains(column, _all(column), wanted, first_chars=5)
        prefix = text_search.contains(column, _all(column), wanted, place=text_search.PREFIX)
        suffix = text_search.contains(column, _all(column), wanted, place=text_search.SUFFIX)
        for row, text in enumerate(_plain_texts(texts)):
            assert anywhere[row] == (wanted in text)
            assert first[row] == (wanted in text[:5])
            assert prefix[row] == text.startswith(wanted)
            assert suffix[row] == text.endswith(wanted)


def test_dead_documents_are_not_looked_at() -> None:
    column = text_column(["a b", "a b"])
    alive = np.array([False, True])
    assert text_words.word_counts(column, alive)[:, text_words.N_WORDS].tolist() == [0, 2]
    assert text_characters.character_counts(column, alive)[:, 0].tolist() == [0, 3]
    assert ngrams.ngram_counts(column, alive, top=(2,))[0][:, 0].tolist() == [0, 3]


LAYOUTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


@pytest.mark.parametrize("kind", LAYOUTS)
def test_every_string_layout_gives_the_same_bytes(kind: pa.DataType) -> None:
    texts = ["", "ab", None, "é", "ab"]
    array = (
        pa.array(texts, pa.large_string()).cast(kind)
        if not pa.types.is_dictionary(kind)
        else pa.array(texts, pa.string()).dictionary_encode()
    )
    column = text_column(array.slice(1))
    assert [column.text(row) for row in range(len(column))] == ["ab", "", "é", "ab"]
    assert column.valid.tolist() == [True, False, True, True]


def test_nulls_over_bytes_count_as_empty() -> None:
    full = pa.array(["abc", "def"], pa.large_string())
    array = pa.Array.from_buffers(pa.large_string(), 2, [pa.py_buffer(b"\x02"), *full.buffers()[1:]])
    column = text_column(array)
    assert column.lengths.tolist() == [0, 3]


def test_chunked_empty_and_null_columns() -> None:
    assert len(text_column(pa.chunked_array([], pa.string()))) == 0
    assert len(text_column(pa.chunked_array([["a"], ["b"]]))) == 2
    assert text_column(pa.nulls(2)).valid.tolist() == [False, False]


def test_numbers_are_not_text() -> None:
    with pytest.raises(UsageError, match="int64"):
        text_column(pa.array([1, 2]))
