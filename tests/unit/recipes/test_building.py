"""From an entry of a recipe to a stage."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.recipes.registry import build_stage, recipe_parameters, registered
from gristmill.stages.resources import Resources
from gristmill.stages.text.modifiers import Modify, Slicer


def problems_of(name: str, given: dict[str, Any]) -> list[tuple[Any, str]]:
    problems: list[tuple[Any, str]] = []
    stage = build_stage(registered(name), given, report=lambda path, message: problems.append((path, message)))
    assert stage is None
    return problems


def built(name: str, **given: Any) -> Any:
    stage = build_stage(registered(name), given, report=lambda path, message: pytest.fail(f"{path}: {message}"))
    assert stage is not None
    return stage


def test_a_modifier_is_wrapped() -> None:
    stage = built("Slicer", left=2, input_fields="title", output_fields="short")
    assert isinstance(stage, Modify)
    assert isinstance(stage.modifier_fn[0], Slicer)
    assert stage.inputs() == (["data"], ["title"])
    assert stage.outputs() == (["data"], ["short"])


def test_options_of_wrappers_are_among_the_parameters() -> None:
    assert list(recipe_parameters(registered("UrlRemover"))) == ["input_fields", "output_fields"]
    assert "text_field" in recipe_parameters(registered("WordCountFilter"))
    assert "text_field" not in recipe_parameters(registered("JsonlReader"))


def test_settings() -> None:
    stage = built(
        "UrlRemover",
        **{"with": {"name": "links", "resources": {"cpus": 0.5}, "batch_size": 3, "num_workers": 2, "time_limit_s": 1}},
    )
    assert (stage.name, stage.resources, stage.batch_size) == ("links", Resources(cpus=0.5), 3)
    assert (stage.requested_workers(), stage.time_limit_s) == (2, 1)
    assert built("UrlRemover", **{"with": None}).batch_size == 1


@pytest.mark.parametrize(
    ("given", "path", "part"),
    [
        ({"with": {"batchsize": 1}}, ("with", "batchsize"), "Did you mean 'batch_size'?"),
        ({"with": {"batch_size": "3"}}, ("with", "batch_size"), "expected a whole number or null"),
        ({"with": {"resources": {"cpu": 1}}}, ("with", "resources", "cpu"), "Did you mean 'cpus'?"),
        ({"with": [1]}, ("with",), "expected a mapping of settings"),
        ({"with": {"batch_size": 0}}, (), "at least 1"),
        ({"inputfields": "x"}, ("inputfields",), "Did you mean 'input_fields'?"),
        ({"input_fields": ["a"]}, ("input_fields",), "expected text, found a list"),
    ],
)
def test_problems(given: dict[str, Any], path: tuple[str, ...], part: str) -> None:
    [(found, message)] = problems_of("UrlRemover", given)
    assert found == path
    assert part in message


def test_what_a_constructor_refuses_is_a_problem() -> None:
    [(path, message)] = problems_of("JsonlReader", {"file_paths": "x", "blocksize": "1GB", "files_per_partition": 2})
    assert path == ()
    assert "files_per_partition" in message
