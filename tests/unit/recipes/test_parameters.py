"""Values checked against signatures and type hints."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union

import pytest

from gristmill.recipes.registry import (
    Mismatch,
    all_registered,
    check_parameters,
    describe_type,
    fit,
    parameters_of,
    recipe_parameters,
)
from gristmill.stages.resources import Resources

if TYPE_CHECKING:
    from gristmill.nowhere import OnlyForCheckers  # type: ignore[import-not-found]


FITS: list[tuple[Any, Any]] = [
    (3, int),
    (-3, int),
    (3, float),
    (3.5, float),
    ("a", str),
    (True, bool),
    (None, None),
    (None, int | None),
    (3, Optional[int]),  # noqa: UP045 (the old spelling must work too)
    ("a", Union[int, str]),  # noqa: UP007
    (["a"], list[str]),
    ([], list[int]),
    (["a"], Sequence[str]),
    (["a", 1], list),
    (["a"], Iterable[str] | None),
    ({"a": 1}, dict[str, int]),
    ({"a": [1]}, Mapping[str, Any]),
    ("x", Literal["x", "y"]),
    (3, Any),
    ([1, {"a": 2}], object),
    ("text", str | Callable[[str], str]),
]

MISFITS: list[tuple[Any, Any, str]] = [
    (True, int, "expected a whole number, found true"),
    (False, float, "expected a number, found false"),
    (1, bool, "expected true or false, found 1"),
    (3.5, int, "expected a whole number, found 3.5"),
    (50.0, int, "Write 50."),
    ("3", int, "found '3'"),
    (3, str, "Quote it"),
    (None, int, "found null"),
    ("a", list[str], "expected a list of texts, found 'a'"),
    (["a", 1], list[str], "expected text, found 1"),
    ({"a": "b"}, dict[str, int], "expected a whole number, found 'b'"),
    ([1], dict[str, int], "expected a mapping, found a list"),
    ("z", Literal["x", "y"], "expected one of 'x', 'y', found 'z'"),
    ("decisiv", Literal["decisive", "all"], "Did you mean 'decisive'?"),
    (1, Literal[True, "auto"], "expected one of true, 'auto'"),
    (True, int | str | None, "expected a whole number or text or null, found true"),
    ("f", Callable[[str], str], "which a recipe cannot express"),
    ([1, 2, 3], tuple[int, int], "found 3 values"),
]


@pytest.mark.parametrize(("value", "annotation"), FITS)
def test_fits_unchanged(value: Any, annotation: Any) -> None:
    assert fit(value, annotation) == value
    assert type(fit(value, annotation)) is type(value)


@pytest.mark.parametrize(("value", "annotation", "part"), MISFITS)
def test_does_not_fit(value: Any, annotation: Any, part: str) -> None:
    with pytest.raises(Mismatch) as caught:
        fit(value, annotation)
    assert part in str(caught.value)


def test_lists_become_what_is_asked_for() -> None:
    assert fit([1, 2], tuple[int, ...]) == (1, 2)
    assert fit([1, "a"], tuple[int, str]) == (1, "a")


def test_recipes_can_give_every_parameter_that_is_needed() -> None:
    """Only a few kinds of types are known: whoever adds a stage with another one learns it here."""
    needed = [
        (entry.name, parameter)
        for entry in all_registered()
        for parameter in recipe_parameters(entry).values()
        if parameter.required
    ]
    assert [one for one in needed if "a Python object" in one[1].type_text] == []


def test_own_value_classes_are_made_from_mappings() -> None:
    assert fit({"cpus": 2}, Resources | None) == Resources(cpus=2)
    with pytest.raises(Mismatch, match=r"unknown parameter 'cpu'\. Did you mean 'cpus'"):
        fit({"cpu": 2}, Resources)


def test_the_wrong_item_is_named() -> None:
    with pytest.raises(Mismatch) as caught:
        fit({"a": ["x", 1]}, dict[str, list[str]] | None)
    assert caught.value.path == ("a", 1)


class Example:
    def __init__(
        self, words: int, *, name: str | None = None, thing: OnlyForCheckers | None = None, _hidden: int = 0
    ) -> None: ...


def test_parameters_of_a_class() -> None:
    found = parameters_of(Example)
    assert list(found) == ["words", "name", "thing"]
    assert found["words"].required
    assert not found["name"].required
    assert found["name"].default is None
    assert found["name"].type_text == "text or null"
    # A type that only a type checker can see is left open.
    assert found["thing"].type_text == "any value"


def test_every_problem_is_reported() -> None:
    problems: list[tuple[Any, str]] = []
    accepted = check_parameters({"nmae": "x", "name": 3}, parameters_of(Example), problems)
    assert accepted == {}
    assert [path for path, _ in problems] == [("nmae",), ("name",), ()]
    texts = [message for _, message in problems]
    assert "Did you mean 'name'?" in texts[0]
    assert "It takes: words, name, thing." in texts[0]
    assert "expected text or null, found 3" in texts[1]
    assert "'words' is missing; it is a whole number" in texts[2]


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (str | list[str], "text or a list of texts"),
        (None | int, "a whole number or null"),
        (list, "a list"),
        (list[Any], "a list"),
        (list[list[str]], "a list of (a list of texts)"),
        (dict[str, Any], "a mapping"),
        (Resources, "a mapping of cpus, gpu_memory_gb, gpus"),
        (Callable[[str], int], "a Python object (Callable)"),
    ],
)
def test_types_in_words(annotation: Any, words: str) -> None:
    assert describe_type(annotation) == words


def test_a_default_that_is_made_anew_is_shown_as_it_is_made() -> None:
    @dataclasses.dataclass
    class Made:
        options: dict[str, int] = dataclasses.field(default_factory=dict)

    assert parameters_of(Made)["options"].default == {}
