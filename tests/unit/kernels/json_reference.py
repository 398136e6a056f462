"""Plain slow references for the JSON kernels, and strategies that write JSON in every way the grammar allows."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def strict(line: bytes) -> tuple[str | None, Any]:
    """Why a line is not a record, or None and what Python's json reads."""
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        return "invalid_utf8", None
    if "\0" in text:
        return "nul_byte", None
    try:
        value = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return "malformed_json", None
    return (None, value) if isinstance(value, dict) else ("not_an_object", None)


def _refuse(name: str) -> None:
    raise ValueError(name)


def replaced(value: Any) -> Any:
    """The value with U+FFFD for every half of a surrogate pair."""
    return re.sub("[\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value


def block(lines: list[bytes], *, gap: bytes = b"\n") -> tuple[npt.NDArray[np.uint8], list[int], list[int]]:
    """One buffer with all the lines, and where each of them starts and ends."""
    starts, ends, at = [], [], 0
    for line in lines:
        starts.append(at)
        ends.append(at + len(line))
        at += len(line) + len(gap)
    return np.frombuffer(gap.join(lines) + gap, np.uint8), starts, ends


spaces = st.text(" \t\r", max_size=2)
characters = st.one_of(
    st.characters(exclude_categories=["Cs"]), st.sampled_from(list('"\\/\b\f\n\r\t\x00\x1f\x7f\u2028é€😀 abc'))
)
texts = st.one_of(st.text(characters, max_size=12), st.text(characters, min_size=30, max_size=80))
halves = st.sampled_from(["\\ud800", "\\uDC00", "\\ud83d", "\\uDBFF\\uDBFF"])


@st.composite
def strings(draw: st.DrawFn) -> str:
    """A JSON string with each character raw or escaped in one of the allowed ways."""
    pieces = []
    for character in draw(texts):
        way = draw(st.integers(0, 9))
        if way == 0 or (character < " " and character not in SHORT):
            units = character.encode("utf-16-be")
            codes = [units[k : k + 2].hex() for k in range(0, len(units), 2)]
            pieces.append("".join("\\u" + (code.upper() if draw(st.booleans()) else code) for code in codes))
        elif character in SHORT and (way < 5 or character < " " or character in '"\\'):
            pieces.append(SHORT[character])
        else:
            pieces.append(character)
    if draw(st.integers(0, 5)) == 0:
        pieces.insert(draw(st.integers(0, len(pieces))), draw(halves))
    return '"' + "".join(pieces) + '"'


numbers = st.one_of(
    st.integers(-1000, 1000).map(str),
    st.integers(-(2**70), 2**70).map(str),
    st.integers(2**53 - 3, 2**53 + 3).map(str),
    st.integers(2**63 - 3, 2**63 + 3).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.sampled_from(
        ["-0", "0.0", "-0.0", "1E5", "1e-7", "2.50", "1e400", "5e-324", "1e-400", "0e1", "-9223372036854775808"]
    ),
)
scalars = st.one_of(numbers, strings(), st.sampled_from(["true", "false", "null"]))


@st.composite
def _arrays(draw: st.DrawFn, items: st.SearchStrategy[str]) -> str:
    inside = [draw(spaces) + item + draw(spaces) for item in draw(st.lists(items, max_size=3))]
    return "[" + (",".join(inside) if inside else draw(spaces)) + "]"


@st.composite
def objects(draw: st.DrawFn, items: st.SearchStrategy[str], keys: st.SearchStrategy[str]) -> str:
    """A JSON object with white space anywhere; keys may repeat."""
    members = [
        f"{draw(spaces)}{draw(keys)}{draw(spaces)}:{draw(spaces)}{item}{draw(spaces)}"
        for item in draw(st.lists(items, max_size=4))
    ]
    return "{" + (",".join(members) if members else draw(spaces)) + "}"


values = st.recursive(scalars, lambda inner: _arrays(inner) | objects(inner, strings()), max_leaves=6)
# Few names, so that records share them; one of them is spelt with an escape, one is longer than a vector.
names = st.sampled_from(['"a"', '"b"', '"text"', '"te\\u0078t"', '"é"', '""', '"' + "k" * 40 + '"'])
records = objects(values, st.one_of(names, names, names, strings())).map(str.encode)
