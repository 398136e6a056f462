"""The published sets against plain Python, with the same words."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings

from gristmill.errors import UsageError
from gristmill.kernels import text_layout, text_tokens
from gristmill.kernels.ngrams_joined import joined_duplicates
from gristmill.kernels.text_column import text_column
from gristmill.kernels.unicode_classes import PUNCTUATION_RANGES, TERMINAL_RANGES, decode_ranges
from gristmill.stages.text.filters.published import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)
from gristmill.stages.text.filters.statistics import JOINED_NGRAM, WEIGHED_NGRAM, TextStatistics
from tests.unit.kernels import text_reference as plain

TERMINAL = {chr(p) for start, end in decode_ranges(TERMINAL_RANGES) for p in range(start, end)}
PUNCTUATION = TERMINAL | {chr(p) for start, end in decode_ranges(PUNCTUATION_RANGES) for p in range(start, end)}
POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")


def _words(text: str) -> list[str]:
    column = text_column([text])
    spans = text_tokens.token_spans(column, np.ones(1, dtype=np.bool_))
    pairs = zip(spans.starts, spans.ends, strict=True)
    return [column.data[start:end].tobytes().decode() for start, end in pairs]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n ", []),
        ("plain words", ["plain", "words"]),
        ('"Quoted," he said...', ['"', "Quoted", ",", '"', "he", "said", "..."]),
        ("well-known 3-4 a/b", ["well", "-", "known", "3-4", "a", "/", "b"]),
        ("don't (really)!!", ["don't", "(", "really", ")", "!", "!"]),
        ("…", ["…"]),
        ("中文。", ["中文", "。"]),
        ("-", ["-"]),
        ("-a-", ["-", "a", "-"]),
    ],
)
def test_tokens(text: str, words: list[str]) -> None:
    assert _words(text) == words


LETTERS_JOINED_BY = "-/:" + "".join(map(chr, range(0x2010, 0x2016)))
TOKEN_PIECES = [
    "a",
    "é",
    "中",
    "9",
    "-",
    "/",
    ":",
    "—",
    "‐",
    ".",
    "..",
    ",",
    "“",
    "’",
    "…",
    "_",
    " ",
    "\n",
    "\u3000",
    "word",
]


def _is_mark(character: str) -> bool:
    return not character.isalnum() if character.isascii() else character in PUNCTUATION


def _plain_words(text: str) -> list[str]:
    found: list[str] = []
    for piece in text.split():
        marks = "".join(character for character in piece if _is_mark(character))
        core = piece.strip(marks)
        start = piece.index(core) if core else len(piece)
        found += re.findall(r"\.+|.", piece[:start], re.DOTALL)
        if any(mark in LETTERS_JOINED_BY for mark in marks):
            core = re.sub(f"(?<=[^\\W\\d_])([{LETTERS_JOINED_BY}])(?=[^\\W\\d_])", "\0\\1\0", core)
        found += [word for word in core.split("\0") if word]
        found += re.findall(r"\.+|.", piece[start + len(core.replace("\0", "")) :], re.DOTALL)
    return found


@given(plain.st.lists(plain.st.sampled_from(TOKEN_PIECES), max_size=120).map("".join))
@settings(max_examples=300)
def test_tokens_are_those_of_plain_python(text: str) -> None:
    assert _words(text) == _plain_words(text)


STOP_WORDS = ("the", "a", "中", *(f"w{number}" for number in range(1500)))
# Of more than eight bytes; the first three agree in their first eight and in their lengths.
LONG_WORDS = ("inzwischen", "inzwischem", "inzwischel", "einander", "gegenüber", "jedoch", "отсутствует")


@given(plain.st.lists(plain.st.sampled_from([*LONG_WORDS, "inzwischeX", "gegenübel", "inzwisch", "the"]), max_size=9))
@settings(max_examples=100)
def test_stop_words_of_any_length(words: list[str]) -> None:
    spans = text_tokens.token_spans(text_column([" ".join(words)]), np.array([True]))
    for stop_words in (LONG_WORDS, LONG_WORDS[:1], ("the", *LONG_WORDS[3:])):
        counts = text_tokens.token_counts(spans, np.array([True]), stop_words)
        assert counts[0, text_tokens.STOP_WORDS] == len(set(words) & set(stop_words))


def test_a_stop_word_is_one_word() -> None:
    text = "inzwischen haben wir gegenüber dem Vorjahr jedoch mehr Wörter " * 10
    assert GopherQualityFilter(stop_words=LONG_WORDS).reason_for(text) is None
    with pytest.raises(UsageError, match="'so dass' is not a single word"):
        GopherQualityFilter(stop_words=["so dass"])


@given(plain.texts)
def test_counts_of_tokens(text: str) -> None:
    column, alive = text_column([text, "", text]), np.array([True, True, False])
    spans = text_tokens.token_spans(column, alive)
    words = _words(text)
    proper = [word for word in words if any(character not in PUNCTUATION for character in word)]
    alpha = sum(any(character.isalpha() for character in word) for word in words)
    for stop_words in (("the", "and", "that"), STOP_WORDS, ()):
        counts = text_tokens.token_counts(spans, alive, stop_words)
        assert counts.tolist() == [
            [len(words), len(proper), sum(map(len, proper)), alpha, len(set(words) & set(stop_words))],
            [0] * 5,
            [0] * 5,
        ]


@given(plain.texts)
def test_tokens_lose_nothing_but_white_space(text: str) -> None:
    assert "".join(_words(text)) == "".join(text.split())


@given(plain.columns)
@settings(max_examples=60)
def test_layout(texts: list[str | None]) -> None:
    column = text_column(texts)
    for text, row in zip(texts, text_layout.layout_counts(column, np.ones(len(texts), dtype=np.bool_)), strict=True):
        text = text or ""
        broken = text.splitlines()
        between = [line for line in text.split("\n") if line.strip()]
        assert row[text_layout.BROKEN_LINES] == len(broken)
        assert row[text_layout.DASHED_LINES] == sum(line.lstrip().startswith(("•", "-")) for line in broken)
        assert row[text_layout.TRAILING_LINES] == sum(line.rstrip().endswith(("...", "…")) for line in broken)
        assert row[text_layout.ELLIPSES] == text.count("...") + text.count("…")
        assert row[text_layout.FINISHED_LINES] == sum(line[-1] in TERMINAL for line in between)
        assert row[text_layout.SHORT_LINES] == sum(len(line) <= 30 for line in between)
        for pieces, place in (
            (re.split("\n+", text), text_layout.RUN_LINES),
            (re.split("\n{2,}", text.strip()), text_layout.RUN_PARAGRAPHS),
        ):
            repeated = len(pieces) - len(set(pieces))
            chars = sum(map(len, pieces)) - sum(map(len, set(pieces)))
            assert row[place : place + 3].tolist() == [len(pieces), repeated, chars]


def _joined(words: list[str], n: int) -> int:
    seen: set[str] = set()
    total = at = 0
    while at + n <= len(words):
        gram = "".join(words[at : at + n])
        if gram in seen:
            total += len(gram)
            at += n
        else:
            seen.add(gram)
            at += 1
    return total


@given(plain.texts)
@settings(max_examples=150)
def test_joined_ngrams(text: str) -> None:
    column = text_column([text])
    alive = np.ones(1, dtype=np.bool_)
    found = joined_duplicates(text_tokens.token_spans(column, alive), alive, (1, 2, 3, 5, 10))
    assert found[0].tolist() == [_joined(_words(text), n) for n in (1, 2, 3, 5, 10)]


@given(plain.repetitive)
def test_joined_ngrams_of_texts_that_repeat_themselves(text: str) -> None:
    column = text_column([text, text.replace(" ", "-")])
    alive = np.ones(2, dtype=np.bool_)
    found = joined_duplicates(text_tokens.token_spans(column, alive), alive, (10, 5, 6, 7, 8, 9))
    for row in range(2):
        assert found[row].tolist() == [_joined(_words(column.text(row)), n) for n in (10, 5, 6, 7, 8, 9)]


def test_repeated_ngrams_wait_for_the_rules_before_them() -> None:
    wanted = [statistic for rule in GopherRepetitionFilter().rules for statistic in rule.needs()]
    most = [statistic for statistic in wanted if statistic.group == WEIGHED_NGRAM]
    repeated = next(statistic for statistic in wanted if statistic.group == JOINED_NGRAM)
    statistics = TextStatistics(text_column(["again and again " * 20, "one two three four five"]), wanted)
    statistics.require(most[:1], statistics.alive)
    assert statistics[most[-1]][1] == len("one two three four")  # every length in one pass
    with pytest.raises(KeyError):
        statistics[repeated]


def test_gopher_quality_reasons() -> None:
    good = "The people of the town have to be with that river and its old stone bridge every single day. " * 4
    assert GopherQualityFilter().reason_for(good) is None
    assert GopherQualityFilter().reason_for(None) == "too_few_words"
    assert GopherQualityFilter(max_doc_words=10).reason_for(good) == "too_many_words"
    assert GopherQualityFilter().reason_for("a b c d e f " * 20) == "words_too_short"
    assert GopherQualityFilter().reason_for("abcdefghijklmnop " * 60) == "words_too_long"
    assert GopherQualityFilter().reason_for(good + "# " * 30) == "too_many_hashes"
    assert GopherQualityFilter().reason_for(good + "... " * 30) == "too_many_ellipses"
    assert GopherQualityFilter().reason_for("- " + good.replace(". ", ".\n- ")[:-3]) == "too_many_bullets"
    assert GopherQualityFilter().reason_for((good * 3).replace("day. ", "day…\n")) == "too_many_trailing_ellipses"
    assert GopherQualityFilter().reason_for("1234 " * 60) == "too_few_alphabetic_words"
    assert GopherQualityFilter().reason_for("words without any stop " * 20) == "too_few_stop_words"
    assert GopherQualityFilter(min_doc_words=None, min_avg_word_length=None).reason_for("") == "too_many_hashes"


def test_gopher_repetition_reasons() -> None:
    varied = " ".join(f"word{number}" for number in range(200))
    assert GopherRepetitionFilter().reason_for(varied) is None
    assert GopherRepetitionFilter().reason_for("") == "empty"
    assert GopherRepetitionFilter().reason_for("a\n\n" * 5) == "repeated_paragraphs"
    assert GopherRepetitionFilter().reason_for(f"{varied}\n\n{varied}\n\nx\n\ny") == "repeated_paragraph_chars"
    assert GopherRepetitionFilter().reason_for("a\n" * 5) == "repeated_lines"
    assert GopherRepetitionFilter().reason_for(f"{varied}\n{varied}\nx\ny") == "repeated_line_chars"
    assert GopherRepetitionFilter().reason_for("to be " * 30) == "top_2gram_repeats"
    half = " ".join(f"word{number}" for number in range(80))
    assert GopherRepetitionFilter().reason_for(f"{half} {half}") == "duplicate_5grams"


def test_fineweb_reasons() -> None:
    line = "A sentence that is long enough to count as a line of text."
    assert FineWebQualityFilter().reason_for(line) is None
    assert FineWebQualityFilter().reason_for(" \n ") == "empty"
    assert FineWebQualityFilter().reason_for(line[:-1]) == "too_few_finished_lines"
    assert FineWebQualityFilter(spare_without_marks=True).reason_for(line[:-1]) is None
    assert FineWebQualityFilter(stop_chars=[")"]).reason_for(line) == "too_few_finished_lines"
    assert FineWebQualityFilter().reason_for(f"{line}\nshort.\nshorter.\nbrief.") == "too_many_short_lines"
    assert FineWebQualityFilter().reason_for(f"{line}\n{line}") == "repeated_line_chars"
    assert FineWebQualityFilter().reason_for(f"{line}\n" + "\n" * 40) == "too_many_newlines"


def _clean(text: str) -> str | None:
    kept = []
    for line in text.splitlines():
        line = line.strip()
        words = line.split()
        if any(len(word) > 1000 for word in words):
            continue
        line = re.sub(r"\[\d*]|\[edit]|\[citation needed]", "", line)
        if not line.endswith((".", "?", "!", '"', "'")) or line.endswith("...") or len(words) < 3:
            continue
        low = line.lower()
        if "lorem ipsum" in low:
            return None
        if "javascript" in low:
            continue
        if "{" in line:
            return None
        if not any(phrase in low for phrase in POLICY):
            kept.append(line)
    return "\n".join(kept).strip()


C4_PIECES = [
    "A sentence of words.", " [1]", "[edit]", "[citation needed]", "[٣]", "[x]", "\n", "\r\n", "\u2028",
    "JavaScript is off.", "Read our Privacy Policy here.", "We use coo\u212aies on it.", "Lorem ipsum dolor sit.",
    "{", "one two", "...", " ", "“Quote”", '"',
]  # fmt: skip


@given(plain.st.lists(plain.st.one_of(plain.st.sampled_from(C4_PIECES), plain.texts), max_size=12).map("".join))
@settings(max_examples=200)
def test_c4_cleaning(text: str) -> None:
    cleaned = C4QualityFilter(min_num_sentences=None).clean(text_column([text]))
    expected = _clean(text)
    assert cleaned.kept[0] == (expected is not None)
    assert cleaned.texts[0].as_py() == (expected or "")


def test_c4_reasons_sentences_and_counts_of_lines() -> None:
    five = "One is here. Two is here. Three is here! Four is here? Five is here."
    texts = [
        five,
        five[:40] + ".",
        "Lorem ipsum dolor sit.",
        "A { in a line.",
        None,
        f"{five}\nmenu\nJavaScript is bad here.",
    ]
    cleaned = C4QualityFilter().clean(pa.array(texts))
    reasons = [cleaned.reason(row) for row in range(len(texts))]
    short = "too_few_sentences"
    assert reasons == [None, short, "placeholder_text", "curly_bracket", short, None]
    assert cleaned.texts[5].as_py() == five
    assert cleaned.sentences.tolist()[0] == 5
    assert cleaned.removed_lines["no_end_mark"] == 1
    assert cleaned.removed_lines["javascript"] == 1


@pytest.mark.parametrize("made", [GopherQualityFilter, GopherRepetitionFilter, FineWebQualityFilter, C4QualityFilter])
def test_unknown_splitters_are_refused(made: type) -> None:
    with pytest.raises(UsageError, match="Did you mean 'spacy'"):
        made(word_splitter="spacey")


@pytest.mark.parametrize("made", [GopherQualityFilter, GopherRepetitionFilter, FineWebQualityFilter])
def test_sets_decide_on_every_text(made: type) -> None:
    texts = [None, "", " ", "\n\n", "a", "🙂", "\u0301", "#", ".", "中", "x" * 3000, "\n" * 3000, "a\n" * 3000]
    result = made().evaluate(pa.array(texts, pa.large_string()))
    assert ((result.failed_at >= 0) == ~result.kept).all()
