"""The example on the page about recipes is a recipe, and the page names every key and option."""

from __future__ import annotations

import re

from gristmill.recipes.loader import KEYS, parse_recipe
from gristmill.recipes.registry import filter_options, modifier_options, parameters_of, registered, stage_settings
from tools.make_cli_reference import PAGE

TEXT = (PAGE.parent / "recipes.md").read_text(encoding="utf-8")


def test_the_example_is_a_recipe() -> None:
    example, unique = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    assert len(parse_recipe(unique, variables={"input_path": "in/", "output_path": "out/"}).pipeline().stages) == 5
    recipe = parse_recipe(example, variables={"input_path": "in/", "output_path": "out/"})
    assert recipe.stages[2].parameters == {"min_words": 50, "score_field": "words"}
    assert recipe.executor_config == {"num_cpus": 4}
    for entry in recipe.stages:
        registered(entry.name)


def test_every_key_and_option_is_on_the_page() -> None:
    names = {*KEYS, "with"}
    for options in (filter_options, modifier_options, stage_settings):
        names.update(parameters_of(options))
    assert {name for name in names if f"`{name}`" not in TEXT} == set()
