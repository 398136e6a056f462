"""The shipped recipes: found by name, and with the published order and thresholds."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.errors import RecipeError
from gristmill.recipes.catalog import shipped_recipes
from gristmill.recipes.loader import SAMPLE_FILE, find_recipe, load_recipe
from gristmill.recipes.registry import registered

NEEDED = {
    "demo": {"input_path", "output_path"},
    "english": {"input_path", "output_path"},
    "non_english": {"input_path", "output_path"},
    "code": {"input_path", "output_path", "path_to_tokenizer"},
    "grade": {"input_path", "model", "output_path"},
    "translate": {"input_path", "model", "output_path", "source_lang", "target_lang"},
    "knowledge": {"input_path", "model", "output_path"},
    "rephrase": {"input_path", "model", "output_path"},
    "web": {"input_path", "output_path"},
    "web_crawl": {"input_path", "output_path"},
    "web_dedup": {"input_path", "output_path"},
}


def test_names_and_variables() -> None:
    assert {name: set(recipe.required) for name, recipe in shipped_recipes().items()} == NEEDED


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_every_name_in_it_is_registered(name: str) -> None:
    recipe = load_recipe(find_recipe(name), variables=dict.fromkeys(NEEDED[name], "x"))
    assert recipe.name == name
    kinds = [registered(entry.name).kind for entry in recipe.stages]
    assert kinds[0] == kinds[-1] == "stage"


def test_the_english_cascade() -> None:
    recipe = load_recipe(find_recipe("english"), variables={"input_path": "in", "output_path": "out"})
    filters = recipe.stages[1:-1]
    assert len(filters) == 28
    assert all(entry.parameters["text_field"] == "text" for entry in filters)
    assert [entry.name for entry in filters[:3]] == ["NonAlphaNumericFilter", "SymbolsToWordsFilter", "NumbersFilter"]
    n_grams = [
        (entry.parameters["n"], value)
        for entry in filters
        for key, value in entry.parameters.items()
        if key.endswith("ngram_ratio")
    ]
    assert n_grams == [(2, 0.2), (3, 0.18), (4, 0.16), (5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1)]
    assert filters[-1].name == "BulletsFilter"


def test_the_demonstration_filters_like_the_english_recipe() -> None:
    values = {"input_path": "in", "output_path": "out"}
    english = load_recipe(find_recipe("english"), variables=values).stages
    *filters, classifier, writer = load_recipe(find_recipe("demo"), variables=values).stages
    assert (*filters, writer) == english
    assert classifier.name == "LinearClassifier"


def test_other_languages_have_no_rule_for_english() -> None:
    values = {"input_path": "in", "output_path": "out"}
    english = {entry.name for entry in load_recipe(find_recipe("english"), variables=values).stages}
    other = {entry.name for entry in load_recipe(find_recipe("non_english"), variables=values).stages}
    assert english - other == {"NonAlphaNumericFilter", "WordsWithoutAlphabetsFilter", "CommonEnglishWordsFilter"}


def test_a_file_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shipped = find_recipe("english")
    assert shipped.name == "english.yaml"
    Path("english").write_text("stages: [A]")
    assert find_recipe("english") == Path("english")


@pytest.mark.parametrize("path", ["mine/english", "../shipped/english"])
def test_a_path_never_means_a_shipped_recipe(path: str) -> None:
    with pytest.raises(RecipeError, match="no such file"):
        find_recipe(path)


def test_unknown() -> None:
    listed = r"code, demo, english, grade, knowledge, non_english, rephrase, translate, web, web_crawl, web_dedup\. "
    with pytest.raises(RecipeError, match=listed + "Did you mean 'english'"):
        find_recipe("englisch")


def test_the_sample_is_there() -> None:
    assert SAMPLE_FILE.is_file()


def test_the_public_name_stays_a_function() -> None:
    """A module of the same name would take its place as soon as it is loaded."""
    import gristmill.recipes

    assert "english" in gristmill.recipes.shipped_recipes()
    assert "english" in gristmill.recipes.shipped_recipes()


def test_hyphens_in_names_are_underscores() -> None:
    assert find_recipe("web-crawl") == find_recipe("web_crawl")
