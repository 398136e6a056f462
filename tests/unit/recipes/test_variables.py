"""Variables of recipes."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.recipes.loader import substitute, used_variables


def replaced(value: Any, **variables: Any) -> Any:
    problems: list[tuple[Any, str]] = []
    result = substitute(value, variables, report=lambda path, message: problems.append((path, message)))
    assert problems == []
    return result


@pytest.mark.parametrize("value", [3, 2.5, True, None, "text", ["a"], {"k": 1}])
def test_whole_value_keeps_its_type(value: Any) -> None:
    assert replaced("${x}", x=value) == value
    assert type(replaced("${x}", x=value)) is type(value)


def test_inside_text_the_value_is_written_out() -> None:
    assert replaced("${a}/${b}-${c}", a="in", b=3, c=True) == "in/3-true"


def test_everywhere_but_in_keys() -> None:
    assert replaced({"${x}": ["${x}", {"k": "${x}"}]}, x=1) == {"${x}": [1, {"k": 1}]}


def test_escape() -> None:
    assert replaced("$${x} ${x}", x=1) == "${x} 1"
    assert replaced("$x $ {x} $$") == "$x $ {x} $$"
    assert used_variables("$${x}") == set()


def test_a_value_is_not_searched_again() -> None:
    assert replaced("${a}", a="${b}", b=1) == "${b}"


@pytest.mark.parametrize(
    ("value", "variables", "part"),
    [
        ("${x}", {}, "--set x=VALUE"),
        ("a${x}", {}, "'x' has no value"),
        ("a${x}", {"x": None}, "cannot be inserted into text"),
        ("a${x}", {"x": [1]}, "cannot be inserted into text"),
        ("${x y}", {}, "is not a variable"),
        ("${}", {}, "is not a variable"),
    ],
)
def test_problems_name_their_place(value: str, variables: dict[str, Any], part: str) -> None:
    problems: list[tuple[Any, str]] = []
    substitute(
        {"k": [0, value]}, variables, path=("top",), report=lambda path, message: problems.append((path, message))
    )
    [(path, message)] = problems
    assert path == ("top", "k", 1)
    assert part in message


def test_a_missing_variable_may_be_a_misspelt_one_that_nothing_uses() -> None:
    messages: list[str] = []
    substitute("${txt_field}", {"text_field": "t"}, report=lambda _, m: messages.append(m), spare={"text_field"})
    assert "Did you mean 'text_field'?" in messages[0]
