"""Low-quality lines: which rule cuts what, and when a document goes with them."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.stages.text.filters import LineQuality
from gristmill.tasks.document import DocumentBatch

SENTENCE = "This line has several words and ends as sentences do."
OFF: dict[str, Any] = {
    "url_only": False, "notice_phrases": None, "navigation_lines": None, "min_separators": None,
    "max_symbol_share": None, "min_words": None, "repeated": False, "max_cut_share": None,
}  # fmt: skip


def marks(text: str | None, **options: Any) -> list[tuple[str, str]]:
    """The lines that are marked in a text, with their rules."""
    batch = DocumentBatch(data=pa.table({"text": pa.array([text], pa.string())}))
    found = LineQuality(**{**options, "action": "mark"}).process(batch).to_pyarrow().column("low_quality")[0].as_py()
    return [((text or "")[mark["start"] : mark["end"]], mark["reason"]) for mark in found]


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("https://example.org/a?b=c", "url_only"),
        ("www.example.org  me@example.org", "url_only"),
        ("This site USES cookies to improve your visit.", "cookie_notice"),
        ("Home | About us | Contact", "navigation"),
        ("News » Sports › Football", "navigation"),
        ("Skip to main content", "navigation"),
        ("READ MORE…", "too_short"),
        ("Read more!", "navigation"),
        ("*** --- === ###", "too_many_symbols"),
        ("Lonely", "too_short"),
    ],
)
def test_each_rule_has_its_lines(line: str, rule: str) -> None:
    found = marks(f"{SENTENCE}\n{line}\r\n{SENTENCE[:-1]}!", navigation_lines=("skip to main content", "read more"))
    if rule == "too_short" and line.startswith("READ"):
        assert found == []  # an ellipsis ends a sentence, and two words are enough
    else:
        assert found == [(line, rule)]


@pytest.mark.parametrize(
    "line",
    [
        SENTENCE,
        "Yes.",
        "He said: \u201cStop!\u201d",
        "See https://example.org for more of this",
        "The price (in euros) was 3.50, or 4 | 5 with shipping to other countries.",
        "日本語の文です。",
        "“Cookies” are baked at 180 degrees.",
    ],
)
def test_ordinary_lines_stay(line: str) -> None:
    assert marks(f"{SENTENCE}\n{line}" if line != SENTENCE else line) == []


def test_repeated_lines_keep_their_first() -> None:
    text = f"{SENTENCE}\nOther words here.\n  {SENTENCE}"
    assert marks(text) == [(SENTENCE, "repeated")]
    assert marks(text, repeated=False) == []


@pytest.mark.parametrize("text", [None, "", "\n \r\n", SENTENCE])
def test_nothing_to_cut(text: str | None) -> None:
    assert marks(text) == []
    batch = DocumentBatch(data=pa.table({"text": pa.array([text], pa.string())}))
    assert LineQuality().process(batch).to_pyarrow().column("text").to_pylist() == [text]


def test_a_document_goes_only_when_too_many_words_went() -> None:
    half = "Home | About | Contact\nOne two three four five."  # 5 of 10 words, the bars counted
    batch = DocumentBatch(data=pa.table({"text": [half, f"Menu\n{half}", "Menu\nSearch", SENTENCE]}))
    kept = LineQuality(max_cut_share=0.5).process(batch)
    assert kept.to_pyarrow().column("text").to_pylist() == ["One two three four five.", SENTENCE]
    (decision,) = batch._tracking.trail.decisions
    assert (decision.reason, decision.threshold, len(decision.rows)) == ("too_much_cut", 0.5, 2)
    reasons = {cut.reason: len(cut.rows) for cut in batch._tracking.trail.cuts}
    assert reasons == {"navigation": 5}
    kept = LineQuality(max_cut_share=None).process(batch)
    assert kept.to_pyarrow().column("text").to_pylist() == ["One two three four five."] * 2 + [SENTENCE]
    assert batch._tracking.trail.decisions[-1].reason == "nothing_left"


@settings(max_examples=100)
@given(
    text=st.text("aB 1.|/*\n@é日。", max_size=60),
    share=st.sampled_from([0.0, 0.3, 0.5]),
    words=st.integers(1, 3),
)
def test_symbols_and_words_are_counted_as_python_counts(text: str, share: float, words: int) -> None:
    wanted = []
    for line in text.split("\n"):
        line = line.strip()
        chars = [char for char in line if not char.isspace()]
        symbols = sum(not char.isalnum() for char in chars)
        if line and symbols > share * len(chars):
            wanted.append((line, "too_many_symbols"))
        elif line and len(line.split()) < words and not re.search(r"[.。]$", line):
            wanted.append((line, "too_short"))
    assert marks(text, **{**OFF, "max_symbol_share": share, "min_words": words}) == wanted


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"notice_phrases": "cookies"}, "must be a list"), ({"navigation_lines": ["x"]}, "two characters"),
        ({"min_words": 0}, "at least 1,"), ({"max_cut_share": 1.5}, "between 0 and 1"),
        ({"action": "drop", "max_cut_share": None}, "max_cut_share"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(options: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        LineQuality(**options)
