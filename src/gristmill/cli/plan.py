"""`gristmill plan`: shows what a run would do and, with a sample, what it would cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import before_the_run, common_options, echo, json_option, print_json, record_option
from gristmill.cli.run import (
    STANDARD_INPUT,
    choose_executor,
    code_option,
    executor_options,
    input_options,
    ledger_options,
    output_options,
    read_recipe,
    read_settings,
    recipe_arguments,
    salvage_option,
    search_current_folder,
)

if TYPE_CHECKING:
    from gristmill.advice.forecast import Forecast
    from gristmill.backends.base import BaseExecutor
    from gristmill.recipes import Recipe


@click.command("plan")
@recipe_arguments
@input_options
@output_options
@click.option(
    "--sample",
    metavar="SHARE|N",
    help="Run the recipe on a sample, such as 1% or 5000 documents, and forecast the full run.",
)
@click.option("--seed", type=int, metavar="N", help="Random seed of --sample [default: 0].")
@code_option
@executor_options
@salvage_option
@ledger_options
@record_option
@json_option
@common_options
def command(
    recipe: str,
    paths: tuple[str, ...],
    settings: tuple[str, ...],
    allow_code: tuple[str, ...],
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    sample: str | None,
    seed: int | None,
    as_json: bool,
    **explained_with: Any,  # those of `document_options`, and options named like those of `Pipeline.explain`
) -> None:
    """Check a recipe and show its plan.

    Shows partitions, segments, workers and resources, and how much of OUTPUT is already done or why a run would refuse
    to resume it; pass the options you would run with. Fails where a run would: missing packages or models, unreachable
    stores. Reads listings, a few records and the output's manifest, and writes nothing.

    With --sample, runs the recipe on a sample in a temporary folder and forecasts the full run: time, CPU, memory and
    disk, and what each stage would keep. A sample too short to measure is enlarged. The forecast is stored and compared
    with the run that follows. OUTPUT is optional.

    \b
    gristmill plan english crawl/ clean/
    gristmill plan english crawl/ clean/ --sample 1%
    """
    from gristmill.recipes.adjust import adjust

    if sample is None and (seed is not None or as_json):
        raise click.UsageError(f"{'--json' if as_json else '--seed'} needs --sample.")
    if sample is not None and explained_with["limit"] is not None:
        raise click.UsageError("--limit cannot be combined with --sample: a forecast covers the whole input.")
    assignments = read_settings(settings, paths, explained_with)
    if assignments.variables.get("input_path") == STANDARD_INPUT:
        raise click.UsageError("Planning reads the input, and standard input can only be read once. Pass a file.")
    output = assignments.variables.get("output_path")
    if sample is not None and output is None:
        import tempfile

        assignments.variables["output_path"] = f"{tempfile.gettempdir()}/gristmill-plan-output"
    read = read_recipe(recipe, assignments)
    engine = choose_executor(read, assignments, executor=executor, workers=workers, memory_budget=memory_budget)
    if read.workflow is not None and sample is None:
        from gristmill.cli.workflow_run import print_workflow_plan

        print_workflow_plan(read, engine, explained_with["record_path"])
        return
    read = adjust(read, assignments.options)
    search_current_folder(allow_code)
    if sample is None or (output is not None and not as_json):
        echo(read.pipeline(allow_code=allow_code).explain(engine, **explained_with))
    if sample is not None:
        record_path = explained_with.pop("record_path")
        made = _forecast(read, engine, sample, seed or 0, allow_code, output, explained_with, quiet=as_json)
        from gristmill.advice.forecast_history import past_forecasts, remember, sentence

        past = past_forecasts()
        remember(made, output, record_path)
        if as_json:
            print_json({**made.as_json(), "past_errors": [one.errors for one in past]})
            return
        if output is not None:
            echo()
        print_forecast(made)
        echo(sentence(past))


def _forecast(
    recipe: Recipe,
    engine: BaseExecutor,
    sample: str,
    seed: int,
    allow_code: tuple[str, ...],
    output: str | None,
    options: dict[str, Any],
    *,
    quiet: bool,
) -> Forecast:
    from gristmill.advice.forecast import forecast, parse_sample

    with before_the_run():
        size = parse_sample(sample)
    return forecast(
        recipe, engine, size, seed=seed, allow_code=allow_code, near=output,
        tell=lambda line: None if quiet else echo(line, err=True), **options,
    )  # fmt: skip


def print_forecast(made: Forecast) -> None:
    """The forecast as text."""
    from rich.table import Table
    from rich.text import Text

    from gristmill.cli.report_view import make_console
    from gristmill.figures import duration, format_size, plural, printable, share

    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", no_wrap=True, overflow="ellipsis")
    for title in ("documents in", "kept", "±", "out", "size", "worker time"):
        table.add_column(title, justify="right", no_wrap=True)
    idle = 0
    for stage in made.stages:
        if stage.kept == 1.0 and not stage.busy_seconds:
            idle += 1
            continue
        table.add_row(
            Text(printable(stage.name)),
            f"{stage.rows_in:,}",
            ("≤ " if stage.compares else "") + share(stage.kept),
            share(stage.error) if stage.error else "–",
            f"{stage.rows_out:,}",
            "–" if stage.bytes_out is None else format_size(stage.bytes_out),
            duration(stage.busy_seconds) if stage.busy_seconds else "–",
        )
    whole = made.sample_share >= 1
    taken = "the whole input" if whole else f"a sample of {share(made.sample_share)}"
    console.print(
        f"Forecast from {taken} ({plural(made.sample_documents, 'document')}, {duration(made.sample_seconds)}):"
    )
    console.print(table)
    if idle:
        console.print(f"{plural(idle, 'stage')} would drop nothing")
    console.print(
        f"\nWall time: {duration(made.wall_seconds)} on {plural(made.workers, 'worker')}, of which "
        f"{duration(made.startup_seconds)} to start"
    )
    if made.compile_seconds:
        console.print(
            f"Kernels were compiled for this forecast ({duration(made.compile_seconds)}); the run will reuse them."
        )
    gpus = f", {made.gpu_hours:.3g} GPU-hours" if made.gpu_hours else ""
    console.print(f"CPU: {made.core_hours:.3g} core-hours{gpus}. Memory: {format_size(made.memory_bytes)}")
    console.print(
        f"Disk: {format_size(made.output_bytes)} for the output, {format_size(made.record_bytes)} for the record, "
        f"and up to {format_size(made.staging_bytes)} of uncommitted files"
    )
    console.print(f"Output: {plural(made.documents_out, 'document')} of {made.documents:,}")
    for note in made.notes:
        console.print(printable(f"Note: {note}"), soft_wrap=True)
