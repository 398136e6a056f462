"""Filters in recipes: wrapped, named, and found back; every shipped recipe is a pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from gristmill.pipeline import Pipeline
from gristmill.recipes import load_recipe, parse_recipe, to_recipe
from gristmill.recipes.catalog import shipped_recipes
from gristmill.recipes.loader import StageEntry, find_recipe
from gristmill.recipes.registry import all_registered, build_stage, parameters_of, registered
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter

SHIPPED = load_recipe(find_recipe("english"), variables={"input_path": "in", "output_path": "out"}).stages[1:-1]


@pytest.mark.parametrize("entry", list(all_registered()), ids=lambda entry: entry.name)
def test_every_name_is_a_documented_class(entry: Any) -> None:
    assert entry.load().__name__ == entry.name
    assert entry.documentation()
    assert all(parameter.type_text for parameter in parameters_of(entry.load()).values())


def test_a_filter_is_wrapped() -> None:
    stage = build_stage(
        registered("WordCountFilter"),
        {"min_words": 3, "text_field": "body", "score_field": "words", "invert": True},
        report=lambda path, message: pytest.fail(f"{path}: {message}"),
    )
    assert isinstance(stage, ScoreFilter)
    assert stage.inputs() == (["data"], ["body"])
    assert "words" in stage.outputs()[1]


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_is_a_pipeline(name: str) -> None:
    needed = dict.fromkeys(shipped_recipes()[name].required, "x")
    pipeline = load_recipe(find_recipe(name), variables=needed).pipeline()
    names = [stage.name for stage in pipeline.stages]
    assert len(set(names)) == len(names)


def test_the_english_recipe_has_thirty_stages() -> None:
    recipe = load_recipe(find_recipe("english"), variables={"input_path": "in", "output_path": "out"})
    assert len(recipe.pipeline().stages) == 30


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.name)
def test_filters_are_found_back_whatever_they_call_their_bounds(entry: StageEntry) -> None:
    given = {name: value for name, value in entry.parameters.items() if name != "text_field"}
    cls = registered(entry.name).load()
    # Other values than the defaults, so that nothing is right by accident.
    changed = {
        name: value + 1 if type(value) is int else value * 0.9 if type(value) is float else value
        for name, value in given.items()
    }
    recipe = to_recipe(Pipeline("p", stages=[ScoreFilter(cls(**changed), text_field="content", score_field="score")]))
    assert parse_recipe(recipe.to_yaml()).stages == recipe.stages
    [found] = recipe.stages
    known = parameters_of(cls)
    beside_defaults = {name: value for name, value in changed.items() if value != known[name].default}
    assert found == StageEntry(entry.name, {**beside_defaults, "text_field": "content", "score_field": "score"})


def test_several_filters_in_one_stage_have_no_recipe() -> None:
    from gristmill.errors import RecipeError

    stage = ScoreFilter([WordCountFilter(), WordCountFilter(min_words=3)])
    with pytest.raises(RecipeError, match="several parts"):
        to_recipe(Pipeline("p", stages=[stage]))
