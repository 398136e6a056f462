"""`gristmill plan`: shows what a run would do."""

from __future__ import annotations

import click

from gristmill.cli.edge import common_options
from gristmill.cli.recipe_options import read_recipe, read_settings, recipe_arguments


@click.command("plan")
@recipe_arguments
@common_options
def command(recipe: str, input_path: str | None, output_path: str | None, settings: tuple[str, ...]) -> None:
    """Check a recipe and show its plan.

    Segments, workers, resources and columns; no data is read and nothing is written.

    \b
    gristmill plan english crawl/ clean/
    """
    assignments = read_settings(settings, input_path, output_path)
    click.echo(read_recipe(recipe, assignments).pipeline().explain())
