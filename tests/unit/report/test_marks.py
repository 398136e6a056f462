"""The part of a text that a rule objects to."""

from __future__ import annotations

import time

import pytest

from gristmill.report.marks import _PATTERNS, marked_excerpt


def marked(text: str, reason: str) -> list[str]:
    found = marked_excerpt(text, reason)
    shown = found["text"]
    assert isinstance(shown, str)
    return [shown[start:end] for start, end in found["marks"]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("reason", "text", "expected"),
    [
        ("repeated_lines", "one\ntwo\none\n", ["one"]),
        ("repeated_paragraph_chars", "a\nb\n\nc\n\na\nb\n", ["a\nb\n"]),
        ("top_2gram_repeats", "big dog saw big dog run", ["big dog", "big dog"]),
        ("duplicate_3grams", "we are here. so we are here. yes", ["we are here."]),
        ("word_too_long", "a bbbbbbbb cc", ["bbbbbbbb"]),
        ("too_many_ellipses", "so... well… yes", ["...", "…"]),
        ("too_many_digits", "in 1999 or 20", ["1999", "20"]),
        ("too_many_symbols", "a, b!? c-d é€", ["-", "é€"]),
        ("too_many_bullets", "title\n• one\n• two", ["• one", "• two"]),
        ("too_few_alphabetic_words", "word -- 12:30 it", ["--", "12:30"]),
        ("too_many_urls", "see https://a.example/x now", ["https://a.example/x"]),
        ("adult_url", "http://a.example http://porn.example", ["http://porn.example"]),
        ("too_few_sentence_ends", "A line\nA sentence.\n", ["A line"]),
        ("curly_bracket", "f() { }", ["{", "}"]),
        ("placeholder_text", "Lorem ipsum dolor", ["Lorem ipsum"]),
        ("too_few_words", "a rule without a part", []),
        ("a_reason_of_the_user", "nothing is known", []),
    ],
)
def test_the_part_is_found(reason: str, text: str, expected: list[str]) -> None:
    assert marked(text, reason) == expected


def test_a_long_text_is_cut_around_the_first_mark() -> None:
    text = "x " * 3000 + "{" + " y" * 3000
    found = marked_excerpt(text, "curly_bracket")
    assert found["length"] == len(text)
    assert len(str(found["text"])) <= 600
    assert marked(text, "curly_bracket") == ["{"]


@pytest.mark.parametrize("reason", [*_PATTERNS, "repeated_lines", "repeated_paragraphs", "top_3gram_repeats"])
@pytest.mark.parametrize("piece", [". ", "a", "…\n", "#", " ", "\n", "-\n", "1 ", "http://", "{", "é…", '"'])
def test_no_text_takes_long(reason: str, piece: str) -> None:
    begun = time.process_time()
    marked_excerpt(piece * 200_000, reason)
    assert time.process_time() - begun < 2
