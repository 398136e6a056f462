"""References and required values in the notation of NeMo Curator's configuration files."""

from __future__ import annotations

import os
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import RecipeError
from gristmill.recipes.interpolation import MAX_DEPTH, Interpolation


def resolved(root: dict[str, Any], *path: str | int) -> Any:
    problems: list[str] = []
    value = Interpolation(root, lambda _, message: problems.append(message)).value_at(path)
    assert problems == []
    return value


def problems(root: dict[str, Any], *path: str | int) -> list[str]:
    found: list[str] = []
    Interpolation(root, lambda _, message: found.append(message)).value_at(path)
    return found


@pytest.mark.parametrize("value", [3, 2.5, True, None, "text", ["a"], {"k": 1}])
def test_a_single_reference_keeps_the_type(value: Any) -> None:
    found = resolved({"x": value, "at": "${x}"}, "at")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("${a}/${n}.jsonl", "in/3.jsonl"),
        ("${deep.er}", "found"),
        ("${deep[er]}", "found"),
        ("${list[1]}", "two"),
        ("${list.1}", "two"),
        ("${deep.${key}}", "found"),
        ("${alias.er}", "found"),
        (r"\${a} ${a}", "${a} in"),
        (r"C:\\${a}", r"C:\in"),
        ("{a} } $ {", "{a} } $ {"),
        ("", ""),
    ],
)
def test_references(text: str, wanted: Any) -> None:
    root = {
        "a": "in", "n": 3, "deep": {"er": "found"}, "key": "er", "list": ["one", "two"], "alias": "${deep}", "at": text,
    }  # fmt: skip
    assert resolved(root, "at") == wanted


def test_relative_references() -> None:
    root = {"stage": {"path": "out", "near": "${.path}", "inner": {"up": "${..path}"}}}
    assert resolved(root, "stage") == {"path": "out", "near": "out", "inner": {"up": "out"}}


def test_what_a_reference_brings_is_not_searched_again() -> None:
    assert resolved({"a": r"\${b}", "b": 1, "at": "${a}"}, "at") == "${b}"


@pytest.mark.parametrize(
    ("root", "part"),
    [
        ({"at": "???"}, "the variable 'at' has no value (???). Set it with --set at=VALUE."),
        ({"x": {"y": "???"}, "at": "${x.y}/a"}, "'x.y' has no value"),
        ({"at": "${inputpath}", "input_path": 1}, "there is no 'inputpath'. Did you mean 'input_path'?"),
        ({"at": "${x.y}", "x": 1}, "there is no 'x.y'"),
        ({"at": "${x[7]}", "x": [1]}, "there is no 'x.7'"),
        ({"at": "a${x}", "x": None}, "must lead to text or a number"),
        ({"at": "a${x}", "x": [1]}, "must lead to text or a number"),
        ({"at": "${x", "x": 1}, "is not closed"),
        ({"at": "${}"}, "is not a reference"),
        ({"at": "${a b}"}, "is not a reference"),
        ({"at": "${oc.env:HOME}"}, "calls the resolver 'oc.env'"),
        ({"at": "${now:%Y}"}, "calls the resolver 'now'"),
    ],
)
def test_problems(root: dict[str, Any], part: str) -> None:
    [message] = problems(root, "at")
    assert part in message


def test_a_missing_value_is_reported_once() -> None:
    assert len(problems({"x": "???", "at": ["${x}", "${x}", "${x}/a"]}, "at")) == 1


@pytest.mark.parametrize(
    ("root", "circle"),
    [
        ({"at": "${at}"}, "at → at"),
        ({"at": "${b}/x", "b": "${c}", "c": "${b}"}, "b → c → b"),
        ({"at": {"inner": "${at}"}}, "at → at"),
    ],
)
def test_a_circle_is_an_error_that_shows_it(root: dict[str, Any], circle: str) -> None:
    assert any(message == f"references form a circle: {circle}." for message in problems(root, "at"))


def test_chains_are_followed_up_to_a_depth() -> None:
    chain = {f"v{n}": f"${{v{n + 1}}}" for n in range(MAX_DEPTH - 1)} | {f"v{MAX_DEPTH - 1}": "end"}
    assert resolved(chain, "v0") == "end"
    longer = {f"v{n}": f"${{v{n + 1}}}" for n in range(2 * MAX_DEPTH)} | {f"v{2 * MAX_DEPTH}": "end"}
    with pytest.raises(RecipeError, match=f"more than {MAX_DEPTH} times"):
        resolved(longer, "v0")
    with pytest.raises(RecipeError, match=f"nested more than {MAX_DEPTH} deep"):
        resolved({"at": "${" * (MAX_DEPTH + 2) + "a" + "}" * (MAX_DEPTH + 2), "a": "a"}, "at")


@pytest.mark.parametrize(
    "doubled",
    ["${v%d}${v%d}", ["${v%d}", "${v%d}"]],
    ids=["texts", "lists"],
)
def test_references_that_multiply_end_soon(doubled: Any) -> None:
    def at(place: int) -> Any:
        if isinstance(doubled, str):
            return doubled % (place + 1, place + 1)
        return [one % (place + 1) for one in doubled]

    root = {f"v{n}": at(n) for n in range(MAX_DEPTH - 2)} | {f"v{MAX_DEPTH - 2}": "x" * 1000}
    begun = time.process_time()
    with pytest.raises(RecipeError, match="references expand"):
        resolved(root, "v0")
    assert time.process_time() - begun < 10


def test_long_runs_of_marks_take_no_long() -> None:
    begun = time.process_time()
    for text in ("\\" * 1_000_000, "}" * 300_000, "$" * 1_000_000, "\\" * 1_000_000 + "${a}"):
        resolved({"at": text, "a": 1}, "at")
    assert time.process_time() - begun < 10


def test_the_environment_stays_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "GRISTMILL_SECRET_TEST", "leaked")
    for text in ("${oc.env:GRISTMILL_SECRET_TEST}", "${env:GRISTMILL_SECRET_TEST}", "$GRISTMILL_SECRET_TEST"):
        found: list[str] = []
        value = Interpolation({"at": text}, lambda _, message: found.append(message)).value_at(("at",))  # noqa: B023
        assert "leaked" not in f"{value}{found}"


NAMES = ["a", "b", "c", "d"]
PIECES = st.lists(st.sampled_from([*NAMES, "/", "x", "7"]), max_size=4)


def plainly(texts: dict[str, str]) -> dict[str, str]:
    """The slow way: put values in the place of names until none is left."""
    for _ in range(10):
        texts = {
            name: re.sub(r"\$\{(\w)\}", lambda match: texts[match.group(1)], text)  # noqa: B023
            for name, text in texts.items()
        }
    return texts


@given(st.lists(PIECES, min_size=4, max_size=4))
def test_like_replacing_by_hand(drawn: list[list[str]]) -> None:
    # A name only uses names behind it, so that there is no circle.
    texts = {
        name: "|" + "".join(f"${{{one}}}" if one in NAMES[place + 1 :] else one for one in pieces)
        for place, (name, pieces) in enumerate(zip(NAMES, drawn, strict=True))
    }
    assert {name: resolved(dict(texts), name) for name in NAMES} == plainly(texts)


@given(st.text(alphabet="${}\\.[]ab:? ", max_size=40))
def test_any_text_is_a_value_or_a_problem(text: str) -> None:
    found: list[str] = []
    value = Interpolation({"a": 1, "b": "${a}", "at": text}, lambda _, message: found.append(message)).value_at(("at",))
    assert found or isinstance(value, str | int)
