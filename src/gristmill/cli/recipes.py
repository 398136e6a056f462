"""`gristmill recipes`: lists the shipped recipes, or prints one."""

from __future__ import annotations

import click

from gristmill.cli.edge import common_options, json_option, print_json


@click.command("recipes")
@click.argument("name", required=False)
@json_option
@common_options
def command(name: str | None, as_json: bool) -> None:
    """List the shipped recipes, or print one.

    The text of the recipe called NAME is there to be copied and changed.

    \b
    gristmill recipes english > mine.yaml
    """
    from gristmill.recipes.shipped_recipes import find_recipe, shipped_recipes

    if name is not None:
        text = find_recipe(name).read_text(encoding="utf-8")
        if as_json:
            print_json({"name": name, "text": text})
        else:
            click.echo(text, nl=False)
        return
    found = shipped_recipes().values()
    if as_json:
        print_json(
            [
                {
                    "name": recipe.name,
                    "description": recipe.description,
                    "required": recipe.required,
                    "defaults": recipe.defaults,
                }
                for recipe in found
            ]
        )
        return
    for recipe in found:
        click.echo(f"{recipe.name}\n    {recipe.description}")
        click.echo(f"    set: {', '.join(recipe.required)}")
        if recipe.defaults:
            defaults = ", ".join(f"{key}={value}" for key, value in recipe.defaults.items())
            click.echo(f"    may be set: {defaults}")
