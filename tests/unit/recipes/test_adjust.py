"""What options of the command line change in a recipe."""

from __future__ import annotations

import pytest

from gristmill.errors import RecipeError
from gristmill.recipes.adjust import adjust
from gristmill.recipes.loader import find_recipe, load_recipe, parse_recipe

RECIPE = """
stages:
  - DocumentReader: {file_paths: in/, sample: 0.5}
  - WordCountFilter: {min_words: 3}
  - WordCountFilter: {max_words: 90, text_field: title, with: {name: title_words}}
  - UrlRemover
  - DocumentSplitter: {separator: x}
  - DocumentWriter: {path: out/}
"""


def test_reader_and_writer_get_what_is_given_and_the_rest_stays() -> None:
    recipe = parse_recipe(RECIPE)
    changed = adjust(recipe, {"limit": 3, "sample": 0.1, "input_filetype": "parquet", "compression": "gz"})
    assert changed.stages[0].parameters == {
        "file_paths": "in/",
        "sample": 0.1,
        "max_documents": 3,
        "filetype": "parquet",
    }
    assert changed.stages[-1].parameters == {"path": "out/", "compression": "gz"}
    assert changed.stages[1:-1] == recipe.stages[1:-1]
    assert adjust(recipe, {}) == recipe


def test_the_text_field_is_for_stages_that_name_none() -> None:
    changed = adjust(parse_recipe(RECIPE), {"text_field": "content"})
    fields = [[entry.parameters.get(key) for key in ("text_field", "input_fields")] for entry in changed.stages]
    assert fields == [
        [None, None],
        ["content", None],
        ["title", None],
        [None, "content"],
        ["content", None],
        [None] * 2,
    ]
    changed.pipeline()


def test_the_text_field_of_a_shipped_recipe_is_its_variable() -> None:
    paths = {"input_path": "in", "output_path": "out"}
    recipe = load_recipe(find_recipe("english"), variables=paths, text_field="content")
    assert adjust(recipe, {"text_field": "content"}).stages == recipe.stages
    assert {entry.parameters["text_field"] for entry in recipe.stages[1:-1]} == {"content"}
    assert recipe.variables["text_field"] == "content"


@pytest.mark.parametrize(
    ("stages", "options", "part"),
    [
        (
            "[JsonlReader: {file_paths: a}]",
            {"input_filetype": "jsonl"},
            "--input-filetype does not apply to JsonlReader",
        ),
        ("[ParquetWriter: {path: a}]", {"output_filetype": "jsonl"}, "Use DocumentWriter instead"),
        ("[UrlRemover]", {"limit": 1}, "--limit does not apply: the recipe has no reader"),
        ("[UrlRemover]", {"compression": "gz"}, "the recipe has no writer"),
        ("[UrlRemover: {input_fields: a}]", {"text_field": "b"}, "--text-field has no effect"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(stages: str, options: dict[str, object], part: str) -> None:
    with pytest.raises(RecipeError, match=part):
        adjust(parse_recipe(f"stages: {stages}"), options)


def test_what_only_one_format_has_applies_to_its_own_reader() -> None:
    changed = adjust(parse_recipe("stages: [JsonlReader: {file_paths: a}]"), {"limit": 3})
    assert changed.stages[0].parameters == {"file_paths": "a", "max_documents": 3}
