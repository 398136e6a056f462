"""Recipes: pipelines as YAML, made of registered names only, and the ones that ship with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.recipes.catalog import shipped_recipes
    from gristmill.recipes.export import to_recipe
    from gristmill.recipes.loader import Recipe, load_recipe, parse_recipe

__all__ = ["Recipe", "load_recipe", "parse_recipe", "shipped_recipes", "to_recipe"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "catalog": ["shipped_recipes"],
        "export": ["to_recipe"],
        "loader": ["Recipe", "load_recipe", "parse_recipe"],
    },
)
