"""The recipes that ship with the package, by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gristmill.recipes.loader import SHIPPED, used_variables
from gristmill.recipes.yaml_source import parse_yaml


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
    found = {}
    for path in sorted(SHIPPED.glob("*.yaml")):
        value = parse_yaml(path.read_text(encoding="utf-8"), origin=path.name).value
        defaults = value.get("variables") or {}
        required = tuple(sorted(used_variables(value) - set(defaults)))
        found[path.stem] = ShippedRecipe(path.stem, path, value["description"].strip(), defaults, required)
    return found
