"""Recipes as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import RecipeError
from gristmill.recipes.loader import Recipe, StageEntry, load_recipe, parse_recipe

TEXT = """\
name: short
description: Two stages.
variables:
  text_field: text
  words: 50
stages:
  - JsonlReader: {file_paths: "${input_path}"}
  - WordCountFilter:
      min_words: ${words}
      text_field: ${text_field}
  - JsonlWriter: {path: "${output_path}/clean"}
executor:
  name: local
  config: {num_cpus: "${cpus}"}
"""
NEEDED: dict[str, Any] = {"input_path": "in/", "output_path": "out", "cpus": 2}


def problems(text: str, **variables: Any) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, origin="r.yaml", variables=variables)
    found: list[str] = caught.value.facts["problems"]
    assert all(message in str(caught.value) for message in found)
    return found


def test_a_recipe() -> None:
    recipe = parse_recipe(TEXT, variables=NEEDED)
    assert recipe.name == "short"
    assert recipe.description == "Two stages."
    assert recipe.executor == "local"
    assert recipe.executor_config == {"num_cpus": 2}
    assert recipe.stages == (
        StageEntry("JsonlReader", {"file_paths": "in/"}),
        StageEntry("WordCountFilter", {"min_words": 50, "text_field": "text"}),
        StageEntry("JsonlWriter", {"path": "out/clean"}),
    )


def test_given_values_win_over_defaults() -> None:
    assert parse_recipe(TEXT, variables={**NEEDED, "words": 7}).stages[1].parameters["min_words"] == 7


def test_short_forms() -> None:
    recipe = parse_recipe("stages:\n- A\n- B:\n- C: {}\nexecutor: ray_data", origin="some/where.yaml")
    assert [entry.parameters for entry in recipe.stages] == [{}, {}, {}]
    assert recipe.executor == "ray_data"
    assert recipe.name == "where"


def test_text_form_gives_the_same_recipe() -> None:
    recipe = parse_recipe(TEXT, variables=NEEDED)
    again = parse_recipe(recipe.to_yaml())
    assert (again.name, again.description, again.stages) == (recipe.name, recipe.description, recipe.stages)
    assert (again.executor, again.executor_config) == (recipe.executor, recipe.executor_config)


def test_text_form_escapes_what_looks_like_a_variable() -> None:
    recipe = Recipe("r", (StageEntry("SubstringFilter", {"substring": "${x}", "more": ["$${y}"]}),))
    assert parse_recipe(recipe.to_yaml()).stages == recipe.stages


def test_missing_variables_are_all_named_with_their_lines() -> None:
    found = problems(TEXT)
    assert [message.split(":")[0] for message in found] == ["r.yaml, line 7", "r.yaml, line 11", "r.yaml, line 14"]
    assert "--set input_path=VALUE" in found[0]


def test_unknown_variable() -> None:
    [message] = problems(TEXT, **NEEDED, word=3)
    assert "there is no variable 'word' in this recipe. Did you mean 'words'?" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "a recipe is a mapping"),
        ("- A", "a recipe is a mapping"),
        ("name: x", "'stages' must be a list"),
        ("stages: []", "'stages' must be a list"),
        ("stages: A", "'stages' must be a list"),
        ("stages:\n- A: 3", "line 2: A: the parameters must be a mapping"),
        ("stages:\n- {A: {}, B: {}}", "line 2: a stage is"),
        ("stages:\n- A:\n  x: 1", "further to the right"),
        ("stages:\n- 3", "line 2: a stage is"),
        ("stage:\n- A\nstages: [A]", "unknown key 'stage'. Did you mean 'stages'?"),
        ("name: 3\nstages: [A]", "line 1: 'name' must be text"),
        ("variables: [a]\nstages: [A]", "'variables' must be a mapping"),
        ("variables: {a-b: 1}\nstages: [A]", "'a-b' is not a valid variable name"),
        ("variables: {a: '${b}'}\nstages: [A]", "a default cannot use another variable"),
        ("stages: [A]\nexecutor: 3", "'executor' must be a name"),
        ("stages: [A]\nexecutor: {nam: local}", "unknown key 'nam'. Did you mean 'name'?"),
        ("stages: [A]\nexecutor: {name: 3}", "the executor's name must be text"),
        ("stages: [A]\nexecutor: {config: 3}", "config must be a mapping"),
    ],
)
def test_refused(text: str, part: str) -> None:
    assert any(part in message for message in problems(text))


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert load_recipe(path, variables=NEEDED).name == "short"
    with pytest.raises(RecipeError, match="No such file"):
        load_recipe(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="Cannot read"):
        load_recipe(tmp_path)
    path.write_bytes(b"name: \xff")
    with pytest.raises(RecipeError, match=r"not UTF-8 text: .* at byte 6"):
        load_recipe(path)


def test_numbers_that_no_one_means() -> None:
    with pytest.raises(RecipeError, match=r"line 2: .*the number 11111111111111111111… has 5,000 digits"):
        parse_recipe("stages:\n- WordCountFilter: {min_words: " + "1" * 5000 + "}\n")
    for name, value in (("MeanWordLengthFilter", "min_mean_word_length"), ("WordCountFilter", "min_words")):
        with pytest.raises(RecipeError, match=rf"{name}.*{value}.*nan"):
            parse_recipe(f"stages:\n- {name}: {{{value}: .nan}}\n").pipeline()
    with pytest.raises(RecipeError, match="with: time_limit_s: expected a number or null, found nan"):
        parse_recipe("stages:\n- WordCountFilter: {with: {time_limit_s: .nan}}\n").pipeline()
