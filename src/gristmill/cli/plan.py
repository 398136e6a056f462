"""`gristmill plan`: shows what a run would do."""

from __future__ import annotations

import click

from gristmill.cli.edge import common_options
from gristmill.cli.recipe_options import choose_executor, executor_options, read_recipe, read_settings, recipe_arguments


@click.command("plan")
@recipe_arguments
@executor_options
@common_options
def command(
    recipe: str,
    input_path: str | None,
    output_path: str | None,
    settings: tuple[str, ...],
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
) -> None:
    """Check a recipe and show its plan.

    Partitions, segments, workers and resources; reads listings and a few records, and writes nothing.

    \b
    gristmill plan english crawl/ clean/
    """
    assignments = read_settings(settings, input_path, output_path)
    read = read_recipe(recipe, assignments)
    pipeline = read.pipeline()
    engine = choose_executor(read, assignments, executor=executor, workers=workers, memory_budget=memory_budget)
    click.echo(pipeline.explain(engine))
