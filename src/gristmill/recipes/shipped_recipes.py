"""The recipes that come with the package, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from gristmill.errors import RecipeError, did_you_mean
from gristmill.recipes.variables import used_variables
from gristmill.recipes.yaml_source import parse_yaml

SAMPLE = "sample/sample.jsonl.gz"


@dataclass(frozen=True, slots=True)
class ShippedRecipe:
    """A recipe of the package: its name, file, purpose and variables (None for one that has no default)."""

    name: str
    path: Path
    description: str
    defaults: Mapping[str, Any]
    required: tuple[str, ...]


def shipped_recipes() -> dict[str, ShippedRecipe]:
    """Every shipped recipe by name.

    Example:
        >>> "english" in shipped_recipes()
        True
    """
    folder = _folder() / "shipped"
    return {path.stem: _summary(path) for path in sorted(folder.glob("*.yaml"))}


def find_recipe(name_or_path: str) -> Path:
    """The file that `name_or_path` means: a path if it looks like one or exists, else a shipped recipe.

    Raises:
        RecipeError: There is neither such a file nor such a name.
    """
    path = Path(name_or_path)
    shipped = {file.stem: file for file in (_folder() / "shipped").glob("*.yaml")}
    if name_or_path in shipped and not path.is_file():
        return shipped[name_or_path]
    if path.is_file():
        return path
    message = (
        f"There is no recipe {name_or_path!r}: no such file, and the shipped recipes are "
        f"{', '.join(sorted(shipped))}.{did_you_mean(name_or_path, shipped)}"
    )
    raise RecipeError(message, problems=[message])


def sample_file() -> Path:
    """The shipped sample of real documents."""
    return _folder() / SAMPLE


def _folder() -> Path:
    return Path(str(files("gristmill"))) / "recipes"


def _summary(path: Path) -> ShippedRecipe:
    value = parse_yaml(path.read_text(encoding="utf-8"), origin=path.name).value
    defaults = value.get("variables") or {}
    required = tuple(sorted(used_variables(value) - set(defaults)))
    return ShippedRecipe(path.stem, path, value["description"].strip(), defaults, required)
