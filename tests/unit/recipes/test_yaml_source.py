"""YAML as recipes read it."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.errors import RecipeError
from gristmill.recipes.yaml_source import MAX_VALUES, dump_yaml, parse_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("010", 10),
        ("0x1f", 31),
        ("0o17", 15),
        ("100_000", 100_000),
        ("3.5", 3.5),
        ("1e-3", 0.001),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("true", True),
        ("False", False),
        ("no", "no"),
        ("on", "on"),
        ("y", "y"),
        ("null", None),
        ("~", None),
        ("", None),
        ("2021-01-01", "2021-01-01"),
        ("12:30", "12:30"),
        ("'3'", "3"),
        ("1.2.3", "1.2.3"),
        ("[1, no, {a: b}]", [1, "no", {"a": "b"}]),
    ],
)
def test_scalars_follow_yaml_1_2(text: str, value: Any) -> None:
    found = parse_yaml(text, origin="--set x").value
    assert found == value
    assert type(found) is type(value)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("text", ["no", "1e-3", "010", "0o7", "1_0", "12:30", "2021-01-01", "~", "", "<<", "=", "${x}"])
def test_text_stays_text(text: str) -> None:
    assert parse_yaml(dump_yaml({text: [text]})).value == {text: [text]}


@given(plain)
def test_what_is_dumped_is_read_back(value: Any) -> None:
    assert parse_yaml(dump_yaml(value)).value == value


def test_lines_of_values() -> None:
    source = parse_yaml("name: a\nstages:\n  - One:\n      x: 1\n  - Two", origin="r.yaml")
    assert source.where(("stages", 0, "One", "x")) == "r.yaml, line 4"
    assert source.where(("stages", 1)) == "r.yaml, line 5"
    assert source.where(("stages", 0, "One", "missing", "deeper")) == "r.yaml, line 3"
    assert parse_yaml("", origin="empty.yaml").where(("x",)) == "empty.yaml"


def test_duplicate_key_names_both_lines() -> None:
    with pytest.raises(RecipeError, match=r"r\.yaml, line 3: the key 'a' is already on line 1"):
        parse_yaml("a: 1\nb: 2\na: 3", origin="r.yaml")


def test_duplicate_key_inside_a_list() -> None:
    with pytest.raises(RecipeError, match="line 2"):
        parse_yaml("- {x: 1}\n- {x: 1, x: 2}")


def test_merge_keys_may_be_overridden() -> None:
    assert parse_yaml("base: &b {x: 1, y: 2}\nother: {<<: *b, y: 3}").value["other"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1", "not valid YAML"),
        ("a: b: c", "line 1, column 5: this is not valid YAML"),
        ("x: !!python/object/apply:os.system ['true']", "is not allowed"),
        ("x: !!python/name:os.system", "is not allowed"),
        ("x: !!set {a, b}", "is not allowed"),
        ("x: !!binary aGk=", "is not allowed"),
        ("1: x", "a key must be text"),
        ("? [a]\n: x", "a key must be text"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
        ("a: &a [*a]", "contains it"),
        ("x: !!int abc", "cannot read 'abc'"),
    ],
)
def test_refused(text: str, part: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_yaml(text)
    assert part in str(caught.value)


def test_aliases_cannot_multiply_without_end() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(RecipeError, match=f"more than {MAX_VALUES}"):
        parse_yaml("\n".join(lines))


def test_deep_nesting_is_refused_not_a_crash() -> None:
    with pytest.raises(RecipeError):
        parse_yaml("[" * 5_000)
