"""The pages for people who come from other tools: their names exist."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

import gristmill
from gristmill.recipes.names import NAMES

HOW_TO = Path(__file__).resolve().parents[2] / "docs" / "how-to"
CLASS = re.compile(r"`([A-Z]\w+)")
HERE = ("backends.ray_data", "stages.text.filters", "stages.text.modifiers", "stages.function_decorators")


def rows(page: str) -> list[list[str]]:
    """The cells of the table that says which stage replaces which."""
    text = (HOW_TO / page).read_text(encoding="utf-8").partition("## Which stage replaces")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")][1:]


def is_here(name: str) -> bool:
    modules = [importlib.import_module(f"gristmill.{one}") for one in HERE]
    return name in NAMES or any(hasattr(one, name) for one in (gristmill, *modules))


@pytest.mark.parametrize("page", ["from-datatrove.md", "from-data-juicer.md"])
def test_what_replaces_a_step_exists(page: str) -> None:
    assert [name for row in rows(page) for name in CLASS.findall(row[1]) if not is_here(name)] == []
    assert len(rows(page)) > 15


def test_the_steps_of_datatrove_exist() -> None:
    spec = importlib.util.find_spec("datatrove")
    if spec is None or spec.origin is None:
        pytest.skip("needs datatrove")
    source = "".join(path.read_text(encoding="utf-8") for path in Path(spec.origin).parent.rglob("*.py"))
    named = [name for row in rows("from-datatrove.md") for name in CLASS.findall(row[0])]
    assert [name for name in named if not re.search(rf"^class {name}\b", source, re.MULTILINE)] == []
