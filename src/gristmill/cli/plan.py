"""`gristmill plan`: shows what a run would do."""

from __future__ import annotations

import click

from gristmill.cli.edge import common_options
from gristmill.cli.recipe_options import (
    choose_executor,
    executor_options,
    ledger_options,
    read_recipe,
    read_settings,
    recipe_arguments,
)


@click.command("plan")
@recipe_arguments
@executor_options
@ledger_options
@common_options
def command(
    recipe: str,
    input_path: str | None,
    output_path: str | None,
    settings: tuple[str, ...],
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    id_field: str,
    url_field: str,
    scores: str,
) -> None:
    """Check a recipe and show its plan.

    Partitions, segments, workers, resources, and how much of the output an earlier run has left there, or why a run
    would refuse it; give the options of the run to compare with. Reads listings, a few records and the manifest of the
    output, and writes nothing.

    \b
    gristmill plan english crawl/ clean/
    """
    assignments = read_settings(settings, input_path, output_path)
    read = read_recipe(recipe, assignments)
    pipeline = read.pipeline()
    engine = choose_executor(read, assignments, executor=executor, workers=workers, memory_budget=memory_budget)
    click.echo(pipeline.explain(engine, id_field=id_field, url_field=url_field, scores=scores))
