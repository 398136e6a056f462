"""The names of recipes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gristmill.errors import UnknownNameError
from gristmill.recipes.registry import all_registered, find_by_class, registered
from gristmill.stages.text.io.reader import JsonlReader

GOLDEN = Path(__file__).with_name("registered_names.txt")


def test_the_names_are_those_of_the_golden_file() -> None:
    # A name that is gone breaks recipes of users: remove one only with a line in the changelog.
    found = [f"{entry.kind} {entry.name}" for entry in all_registered()]
    assert found == GOLDEN.read_text(encoding="utf-8").splitlines()


def test_every_module_is_of_this_package() -> None:
    assert all(entry.module.startswith("gristmill.stages.") for entry in all_registered())


def test_a_name_leads_to_its_class() -> None:
    assert registered("JsonlReader").load() is JsonlReader
    assert find_by_class(JsonlReader) == registered("JsonlReader")
    assert find_by_class(dict) is None


@pytest.mark.parametrize("name", ["JsonReader", "jsonlreader", "os system", "os.", "..", ""])
def test_anything_else_is_unknown(name: str) -> None:
    with pytest.raises(UnknownNameError, match="'gristmill stages' lists all of them"):
        registered(name)


@pytest.mark.parametrize(("name", "example"), [("ScoreFilter", "- WordCountFilter: {"), ("Modify", "- UrlRemover: {")])
def test_a_wrapper_of_python_is_answered_with_how_recipes_say_it(name: str, example: str) -> None:
    with pytest.raises(UnknownNameError, match="stands by itself") as caught:
        registered(name)
    assert example in str(caught.value)


def test_documentation_is_that_of_the_class() -> None:
    assert registered("JsonlReader").documentation().startswith("Reads JSONL files")
