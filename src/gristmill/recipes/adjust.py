"""Applies command-line options to a recipe: what to read and write, and the text column."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gristmill.errors import UnknownNameError
from gristmill.recipes.loader import Recipe, StageEntry
from gristmill.recipes.registry import recipe_parameters, registered
from gristmill.recipes.yaml_source import recipe_error

_PARAMETERS = {
    "input_filetype": ("Reader", "filetype"),
    "errors": ("Reader", "errors"),
    "limit": ("Reader", "max_documents"),
    "sample": ("Reader", "sample"),
    "seed": ("Reader", "seed"),
    "output_filetype": ("Writer", "filetype"),
    "compression": ("Writer", "compression"),
}
"""For each option, the suffix of the stages it applies to, and their parameter."""
_TEXT_FIELDS = ("text_field", "input_fields")
"""Parameters that name the text column: the first for filters and stages, the second for modifiers."""


def adjust(recipe: Recipe, options: Mapping[str, Any]) -> Recipe:
    """The recipe with the parameters that options of the command line change.

    Args:
        recipe: The recipe.
        options: `input_filetype`, `errors`, `limit`, `sample` and `seed` for its reader, `output_filetype` and
            `compression` for its writer, and `text_field` for every stage that has a text column and does not set it.

    Raises:
        RecipeError: The recipe has no stage that an option applies to.

    Example:
        >>> adjust(recipe, {"limit": 100, "text_field": "content"})
    """
    stages = list(recipe.stages)
    for option, value in options.items():
        if option == "text_field":
            _set_text_field(recipe, stages, value)
            continue
        kind, name = _PARAMETERS[option]
        shown = f"--{option.replace('_', '-')}"
        place = next((place for place, entry in enumerate(stages) if entry.name.endswith(kind)), None)
        if place is None:
            raise recipe_error(f"{recipe.source.origin}: {shown} does not apply: the recipe has no {kind.lower()}.")
        entry = stages[place]
        if name == "filetype" and entry.name != f"Document{kind}":
            raise recipe_error(
                f"{recipe.source.where(('stages', place, entry.name))}: {shown} does not apply to {entry.name}. "
                f"Use Document{kind} instead, which supports every format."
            )
        stages[place] = replace(entry, parameters={**entry.parameters, name: value})
    return replace(recipe, stages=tuple(stages))


def _set_text_field(recipe: Recipe, stages: list[StageEntry], column: str) -> None:
    changed = recipe.variables.get("text_field") == column
    for place, entry in enumerate(stages):
        known: Mapping[str, Any] = {}
        with suppress(UnknownNameError):  # reported when the pipeline is built
            known = recipe_parameters(registered(entry.name))
        name = next((name for name in _TEXT_FIELDS if name in known), None)
        if name is not None and name not in entry.parameters:
            stages[place] = replace(entry, parameters={**entry.parameters, name: column})
            changed = True
    if not changed:
        raise recipe_error(
            f"{recipe.source.origin}: --text-field has no effect: no stage reads text, or all of them set its column. "
            "Change the recipe instead."
        )
