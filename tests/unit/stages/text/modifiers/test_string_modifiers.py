"""Every built-in string modifier against a plain slow reference, on generated and on awkward texts."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.errors import UsageError
from gristmill.stages.text.filters.statistics import BOILERPLATE_PHRASES
from gristmill.stages.text.modifiers import (
    BoilerPlateStringModifier,
    FastTextLabelModifier,
    LineRemover,
    MarkdownRemover,
    NewlineNormalizer,
    QuotationRemover,
    Slicer,
    UrlRemover,
)
from tests.pace import assert_grows_with_length

SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2000\u200a\u2028\u2029\u202f\u205f\u3000"
PIECES = [*'*_[]()"abw.:/', "\n", "\n\n", "\r\n", "**", "](", "http://", "HTTPS://", "http\u017f://", "www.", "WWW."]
PIECES += [
    *SPACES,
    "é",
    "漢",
    "🙂",
    "e\u0301",
    "\ufffd",
    "line",
    "__label__",
    "Use Cookies",
    "lorem ipsum",
    "coo\u212aies",
]
texts = st.one_of(st.text(max_size=40), st.lists(st.sampled_from(PIECES), max_size=25).map("".join))
columns = st.lists(st.one_of(st.none(), texts), max_size=6)
AWKWARD = [
    "",
    " ",
    "\n",
    "a",
    "🙂",
    "e\u0301\u0301",
    "\ufffd",
    "\u3000x\u3000",
    "\x00",
    '"',
    '""',
    '"""',
    "*",
    "[](",
    "_" * 9,
]


def run(modifier, values):
    return modifier.modify_column(pa.array(values, pa.large_string())).to_pylist()


def markdown(text):
    for pattern in (r"\*\*(.*?)\*\*", r"\*(.*?)\*", r"_(.*?)_", r"\[.*?\]\((.*?)\)"):
        text = re.sub(pattern, r"\1", text)
    return text


def quotation(text):
    if len(text) > 2 and text[0] == text[-1] == '"':
        first, newline, _ = text.partition("\n")
        if not newline or first[-1] != '"':
            return text[1:-1]
    return text


def sliced(text, left, right, include_left, include_right, strip):
    start, end = left or 0, len(text) if right is None else right
    if isinstance(left, str):
        if left not in text:
            return ""
        start = text.index(left) + (0 if include_left else len(left))
    if isinstance(right, str):
        if right not in text:
            return ""
        end = text.rindex(right) + (len(right) if include_right else 0)
    result = text[start:end]
    return result.strip() if strip else result


def boilerplate(text, at_edges):
    paragraphs = text.split("\n\n")
    marks = [any(phrase in p.lower() for phrase in BOILERPLATE_PHRASES) for p in paragraphs]
    if any("lorem ipsum" in p.lower() for p in paragraphs) or (any(marks) and not at_edges):
        return ""
    word = "".join("x" if mark else "." for mark in marks)
    if re.fullmatch(r"x+\.+|\.+x+", word):
        return "\n\n".join(p for p, mark in zip(paragraphs, marks, strict=True) if not mark)
    return text


LINES = ["", "a", "line", "漢"]
CASES = {
    "lines": (LineRemover(LINES), lambda t: "\n".join(x for x in t.split("\n") if x not in LINES)),
    "no lines": (LineRemover([]), lambda t: t),
    "markdown": (MarkdownRemover(), markdown),
    "newlines": (
        NewlineNormalizer(),
        lambda t: re.sub(r"(\r\n){3,}", "\r\n\r\n", re.sub(r"(\n){3,}", "\n\n", t)),
    ),
    "quotation": (QuotationRemover(), quotation),
    "urls": (UrlRemover(), lambda t: re.sub(r"https?://\S+|www\.\S+", "", t, flags=re.IGNORECASE)),
    "label": (
        FastTextLabelModifier("__label__hq"),
        lambda t: "__label__hq " + t.replace("\n", " ").replace("__label__", " "),
    ),
    "boilerplate": (BoilerPlateStringModifier(), lambda t: boilerplate(t, True)),
    "boilerplate anywhere": (BoilerPlateStringModifier(False), lambda t: boilerplate(t, False)),
}


@pytest.mark.parametrize("case", CASES)
def test_awkward_texts_equal_the_reference(case):
    modifier, reference = CASES[case]
    values = [None, *AWKWARD, None]
    assert run(modifier, values) == [None if v is None else reference(v) for v in values]
    assert run(modifier, []) == []
    assert run(modifier, [None]) == [None]


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=150, deadline=None)
@given(values=columns)
def test_generated_texts_equal_the_reference(case, values):
    modifier, reference = CASES[case]
    assert run(modifier, values) == [None if v is None else reference(v) for v in values]


bounds = st.one_of(st.none(), st.integers(-6, 6), st.sampled_from(["", "a", "**", "🙂", "漢", "\n", "zz", "aa"]))


@settings(max_examples=300, deadline=None)
@given(values=columns, left=bounds, right=bounds, inside=st.booleans(), outside=st.booleans(), strip=st.booleans())
def test_slices_equal_those_of_python(values, left, right, inside, outside, strip):
    slicer = Slicer(left, right, inside, outside, strip)
    wanted = [None if v is None else sliced(v, left, right, inside, outside, strip) for v in values]
    assert run(slicer, values) == wanted


def test_slicer_takes_indices_beyond_the_text_and_beyond_64_bits():
    assert Slicer(10, 20).modify_document("abc") == ""
    assert Slicer(-(10**30), 10**30).modify_document(" abc ") == "abc"


@settings(max_examples=60, deadline=None)
@given(values=columns)
def test_a_slice_of_a_column_gives_the_same(values):
    whole = pa.array(["padding", None, *values], pa.large_string())
    for modifier, reference in CASES.values():
        got = modifier.modify_column(whole.slice(2)).to_pylist()
        assert got == [None if v is None else reference(v) for v in values]


@pytest.mark.parametrize("case", CASES)
def test_one_document_alone_gives_the_same(case):
    modifier, reference = CASES[case]
    text = '"A **b** _c_ [d](http://e) Use Cookies\n\n\n\nline\n漢"'
    assert modifier.modify_document(text) == reference(text)


def test_a_lone_surrogate_does_not_raise():
    assert UrlRemover().modify_document("a\ud800b www.x") == "a\ufffdb "
    assert LineRemover(["\ud800"]).modify_document("a") == "a"
    assert Slicer("\ud800").modify_document("a") == ""


HOSTILE = {
    "brackets": lambda size: "[" * (size // 2) + "](" * (size // 4),
    "stars": lambda size: "* _" * (size // 3),
    "lines": lambda size: "x\n" * (size // 2),
    "newlines": lambda size: "\n" * size,
    "addresses": lambda size: "http://" * (size // 7),
    "spaces": lambda size: " \u3000" * (size // 2),
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_no_shape_of_text_makes_a_modifier_slow(shape):
    short, long = HOSTILE[shape](200_000), HOSTILE[shape](800_000)
    modifiers = [modifier for modifier, _ in CASES.values()] + [Slicer("*", "*"), Slicer(-5, 10**7), Slicer()]
    for modifier in modifiers:
        modifier.modify_document("warm")
    for modifier in modifiers:
        assert_grows_with_length(modifier.modify_document, short, long)


def test_patterns_must_be_a_list():
    with pytest.raises(UsageError, match="must be a list"):
        LineRemover("abc")


def test_bounds_must_be_indices_or_texts():
    with pytest.raises(UsageError, match=r"right=1\.5"):
        Slicer(right=1.5)
