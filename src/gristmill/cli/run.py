"""`gristmill run`: runs a recipe."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.edge import common_options, json_option, marks_resumable, print_json
from gristmill.cli.recipe_options import (
    Assignments,
    choose_executor,
    error_budget_option,
    executor_options,
    ledger_options,
    read_recipe,
    read_settings,
    recipe_arguments,
)
from gristmill.errors import RecipeError

if TYPE_CHECKING:
    from gristmill.recipes import Recipe


WRITERS = ("JsonlWriter", "ParquetWriter")


def run_options(command: Any) -> Any:
    """The options of a run that `demo` has too."""
    for decorate in (
        json_option,
        click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor the table at the end."),
        click.option("--fresh", is_flag=True, help="Start over: do not take up what an earlier run left."),
    ):
        command = decorate(command)
    return command


@click.command("run")
@recipe_arguments
@executor_options
@run_options
@error_budget_option
@click.option(
    "--ignore-failures", is_flag=True, help="Quarantine the documents on which a stage raises, instead of failing."
)
@ledger_options
@click.option(
    "--alarm-share",
    type=click.FloatRange(0, 1),
    default=0.9,
    show_default=True,
    help="Raise an alarm for a stage that drops more than this share; 1 for none.",
)
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    recipe: str,
    input_path: str | None,
    output_path: str | None,
    settings: tuple[str, ...],
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    quiet: bool,
    as_json: bool,
    fresh: bool,
    error_budget: float | int | None,
    ignore_failures: bool,
    id_field: str,
    url_field: str,
    scores: str,
    alarm_share: float,
) -> None:
    """Run a recipe.

    RECIPE is a YAML file, or the name of a shipped one (see 'gristmill recipes'). INPUT and OUTPUT set its variables
    input_path and output_path. Interrupt a run at any time: the same command takes it up where it stopped.

    \b
    gristmill run english crawl/ clean/
    gristmill run my.yaml --set min_words=20 --workers 8
    """
    assignments = read_settings(settings, input_path, output_path)
    values = run_recipe(
        recipe,
        assignments,
        executor=executor,
        workers=workers,
        memory_budget=memory_budget,
        show=not quiet,
        fresh=fresh,
        error_budget=error_budget,
        # None leaves the choice to the executor's own setting.
        ignore_failures=True if ignore_failures else None,
        id_field=id_field,
        url_field=url_field,
        scores=scores,
        alarm_share=alarm_share,
    )
    finish(ctx, values, as_json=as_json, quiet=quiet)


def run_recipe(
    name: str,
    assignments: Assignments,
    *,
    executor: str | None = None,
    workers: int | None = None,
    memory_budget: str | None = None,
    show: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """Run it with a display and return the report as plain values."""
    from gristmill.cli.early_start import start_early
    from gristmill.execution.late_imports import defer_imports

    recipe = read_recipe(name, assignments)
    start_early(recipe, executor=executor, workers=workers, settings=assignments.executor)
    defer_imports()
    from gristmill.cli.report_view import report_values
    from gristmill.observe.display import LOGGING_INTERVAL_S, make_listener

    pipeline = recipe.pipeline()
    require_writer(recipe)
    pipeline.config["recipe"] = recipe.without_secrets().to_yaml()
    engine = choose_executor(recipe, assignments, executor=executor, workers=workers, memory_budget=memory_budget)
    interval = {**recipe.executor_config, **assignments.executor}.get("logging_interval", LOGGING_INTERVAL_S)
    display = make_listener("auto" if show else "off", logging_interval=interval)
    marks_resumable()
    gc.freeze()
    gc.enable()
    try:
        result = pipeline.run(executor=engine, listeners=[display], progress=False, **options)
    finally:
        display.close()
    return report_values(result.report)


def require_writer(recipe: Recipe) -> None:
    """Refuse a recipe whose documents would go nowhere; a command has nobody to return them to.

    Raises:
        RecipeError: It has no writer.
    """
    if not any(entry.name in WRITERS for entry in recipe.stages):
        message = (
            f"{recipe.source.origin}: the recipe has no writer, so that nothing would be kept. "
            "End it with one, such as: - JsonlWriter: {path: clean/}"
        )
        raise RecipeError(message, problems=[message])


def finish(ctx: click.Context, values: dict[str, Any], *, as_json: bool, quiet: bool) -> None:
    """Show the report as asked and leave with the exit code it stands for."""
    from gristmill.cli.report_view import exit_code, print_report

    if as_json:
        print_json(values)
    elif not quiet:
        print_report(values)
    ctx.exit(exit_code(values))
