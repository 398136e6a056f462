"""`gristmill stages` and `gristmill recipes`: what recipes are made of, and the recipes that are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import before_the_run, common_options, echo, json_option, print_json
from gristmill.cli.run import code_option
from gristmill.errors import MissingExtraError

if TYPE_CHECKING:
    from gristmill.recipes.names import Registered

_HEADINGS = {"stage": "Stages", "filter": "Filters", "modifier": "Modifiers"}


@click.command("recipes")
@click.argument("name", required=False)
@json_option
@common_options
def recipes(name: str | None, as_json: bool) -> None:
    """List the built-in recipes, or print one.

    Save the recipe NAME to a file and edit it to make your own.

    \b
    gristmill recipes english > mine.yaml
    """
    from gristmill.recipes.catalog import shipped_recipes
    from gristmill.recipes.loader import find_recipe

    if name is not None:
        text = find_recipe(name).read_text(encoding="utf-8")
        if as_json:
            print_json({"name": name, "text": text})
        else:
            echo(text, nl=False)
        return
    found = shipped_recipes().values()
    if as_json:
        shown = ("name", "description", "required", "defaults")
        print_json([{key: getattr(recipe, key) for key in shown} for recipe in found])
        return
    for recipe in found:
        echo(f"{recipe.name}\n    {recipe.description}")
        echo(f"    required variables: {', '.join(recipe.required)}")
        if recipe.defaults:
            defaults = ", ".join(f"{key}={value}" for key, value in recipe.defaults.items())
            echo(f"    optional variables: {defaults}")


@click.command("stages")
@click.argument("name", required=False)
@code_option
@json_option
@common_options
def stages(name: str | None, allow_code: tuple[str, ...], as_json: bool) -> None:
    """List stages, filters and modifiers, or document one.

    Includes the names that installed packages declare. With NAME, shows its parameters with their types and defaults;
    NAME can also be MODULE:Class from a module passed to --allow-code.

    \b
    gristmill stages WordCountFilter
    """
    from gristmill.cli.run import search_current_folder
    from gristmill.recipes.names import NAMES
    from gristmill.recipes.registry import all_registered, registered
    from gristmill.recipes.user_stages import declared_stages, package_of

    if name is None:
        found = list(all_registered())
        declared = {
            name: " and ".join(map(package_of, points)) + (" (unusable: the name is built in)" if name in NAMES else "")
            for name, points in declared_stages().items()
        }
        if as_json:
            others = [{"name": name, "kind": None, "package": package} for name, package in declared.items()]
            print_json([*map(description, found), *others])
        else:
            _print_list(found, declared)
        return
    search_current_folder(allow_code)
    with before_the_run():
        entry = registered(name, allow_code=allow_code)
    if as_json:
        print_json(description(entry))
    else:
        _print_one(description(entry))


def description(entry: Registered) -> dict[str, Any]:
    """Everything that is known about an entry, as plain values."""
    from gristmill.recipes.registry import recipe_parameters

    return {
        "name": entry.name,
        "kind": entry.kind,
        "documentation": entry.documentation(),
        "parameters": [
            {
                "name": parameter.name,
                "type": parameter.type_text,
                "required": parameter.required,
                "default": None if parameter.required else parameter.default,
            }
            for parameter in recipe_parameters(entry).values()
        ],
    }


def _print_list(found: list[Registered], declared: Mapping[str, str]) -> None:
    width = max(len(entry.name) for entry in found)
    heading = ""
    for entry in found:
        if entry.kind != heading:
            heading = entry.kind
            echo(f"\n{_HEADINGS[heading]}" if entry is not found[0] else _HEADINGS[heading])
        try:
            first = entry.documentation().split("\n", 1)[0]
        except MissingExtraError as error:
            first = f"(not available: {error.message})"
        echo(f"  {entry.name:<{width}}  {first}".rstrip())
    if declared:
        echo("\nDeclared by installed packages")
        for name, package in declared.items():
            echo(f"  {name:<{width}}  {package}")
    echo("\nRun 'gristmill stages NAME' for the parameters of one.")


def _print_one(entry: dict[str, Any]) -> None:
    echo(f"{entry['name']} ({entry['kind']})\n")
    if entry["documentation"]:
        echo(entry["documentation"] + "\n")
    echo("In a recipe:")
    if not entry["parameters"]:
        echo(f"  - {entry['name']}")
        return
    echo(f"  - {entry['name']}:")
    for parameter in entry["parameters"]:
        default = "required" if parameter["required"] else f"default {_yaml(parameter['default'])}"
        echo(f"      {parameter['name']}: {parameter['type']} ({default})")


def _yaml(value: Any) -> str:
    import yaml

    try:
        return yaml.safe_dump(value, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
    except yaml.YAMLError:
        return repr(value)
