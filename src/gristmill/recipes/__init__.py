"""Recipes: pipelines as YAML, made of registered names only, and the ones that ship with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill.recipes.export import to_recipe
    from gristmill.recipes.loader import Recipe, load_recipe, parse_recipe
    from gristmill.recipes.shipped_recipes import shipped_recipes

__all__ = ["Recipe", "load_recipe", "parse_recipe", "shipped_recipes", "to_recipe"]

_HOMES = {
    "Recipe": "loader",
    "load_recipe": "loader",
    "parse_recipe": "loader",
    "shipped_recipes": "shipped_recipes",
    "to_recipe": "export",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
