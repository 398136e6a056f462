"""`gristmill mix`: samples sources in the shares set by a recipe and shuffles them together."""

from __future__ import annotations

from typing import Any

import click

from gristmill.cli.main import DONE, before_the_run, common_options, echo, print_json, record_option
from gristmill.cli.shuffle import steps_options, summary
from gristmill.cli.workflow_options import Start, start_options


@click.command("mix")
@click.argument("recipe", metavar="RECIPE")
@click.argument("output", metavar="[OUTPUT]", required=False)
@click.option(
    "--plan", "plan_only", is_flag=True, help="Only measure the sources and show what the result will contain."
)
@steps_options
@record_option
@start_options
@common_options
@click.pass_context
def command(ctx: click.Context, /, recipe: str, output: str | None, plan_only: bool, **given: Any) -> None:
    """Mix sources into one training set.

    RECIPE is a YAML file that lists the sources and how much to take of each: by weight, epochs or budget, with quality
    tiers and caps. OUTPUT is the folder to write to, by default the recipe's `output`. All sources are measured first;
    --plan stops there and shows exactly what the result will contain. Documents are selected by a hash of their origin
    and the seed, so that the result is the same for any number of workers, and shares are met to within one document
    per source and tier.

    \b
    gristmill mix mix.yaml --plan
    gristmill mix mix.yaml mixed/
    """
    start = Start.taken_from(given)
    with before_the_run():
        from gristmill.recipes.mixtures import load_mixture

        workflow = load_mixture(recipe, output=output, **given)
    if plan_only:
        plan = workflow.plan(start.engine, progress=False, **start.given)
        if start.as_json:
            print_json(plan.facts())
        else:
            echo(str(plan))
        ctx.exit(DONE)
    start.run_and_end(workflow, summary)
