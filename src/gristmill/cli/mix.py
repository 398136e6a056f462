"""`gristmill mix`: sources in the shares that a recipe asks for, shuffled together."""

from __future__ import annotations

from typing import Any

import click

from gristmill.cli.dedup import make_engine
from gristmill.cli.main import DONE, before_the_run, common_options, echo, json_option, print_json, record_option
from gristmill.cli.run import error_budget_option, executor_options, salvage_option
from gristmill.cli.shuffle import finish, run_workflow, steps_options


@click.command("mix")
@click.argument("recipe", metavar="RECIPE")
@click.option("--output", metavar="FOLDER", help="Where to write, instead of what the recipe says.")
@click.option("--plan", "plan_only", is_flag=True, help="Only measure the sources and say what will come out.")
@steps_options
@record_option
@executor_options
@error_budget_option
@salvage_option
@click.option("--fresh", is_flag=True, help="Start over instead of resuming the previous run.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor the summary at the end.")
@json_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    recipe: str,
    output: str | None,
    plan_only: bool,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    as_json: bool,
    quiet: bool,
    fresh: bool,
    error_budget: float | int | None,
    salvage: bool,
    **given: Any,
) -> None:
    """Mix sources into one training set.

    RECIPE is a YAML file that names the sources and how much of each is taken: by weight, epochs or budget, with
    quality tiers and caps. All sources are measured first; --plan stops there and says exactly what will come out.
    Documents are taken by a hash of their origin and the seed, so that the result is the same for any number of
    workers, and shares are met to within one document per source and tier.

    \b
    gristmill mix mix.yaml --plan
    gristmill mix mix.yaml
    """
    engine = make_engine(executor, workers, memory_budget)
    with before_the_run():
        from gristmill.recipes.mixtures import load_mixture

        workflow = load_mixture(recipe, output=output, **given)
    if plan_only:
        plan = workflow.plan(engine, fresh=fresh, error_budget=error_budget, salvage=salvage, progress=False)
        if as_json:
            print_json(plan.facts())
        else:
            echo(str(plan))
        ctx.exit(DONE)
    facts = run_workflow(workflow, engine, quiet, fresh=fresh, error_budget=error_budget, salvage=salvage)
    finish(ctx, facts, as_json=as_json, quiet=quiet)
