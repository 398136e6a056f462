"""`gristmill replay`: processes quarantined records again, after a fix."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from gristmill.cli.main import common_options, echo, json_option, print_json, record_option
from gristmill.cli.run import code_option


@click.command("replay")
@click.argument("output")
@click.option("--recipe", metavar="FILE", help="Recipe that contains the fix [default: the recipe of the run].")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="Set a variable of --recipe. Repeatable.")
@code_option
@click.option("--cause", metavar="CAUSE", help="Only replay partitions that hold records with this cause.")
@record_option
@json_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    output: str,
    recipe: str | None,
    settings: tuple[str, ...],
    allow_code: tuple[str, ...],
    cause: str | None,
    record_path: str | None,
    as_json: bool,
) -> None:
    """Process quarantined records again.

    Reads the partitions that hold them from the input again and replaces their output. Records that fail again stay
    quarantined. Works for runs of recipes; in Python, call the pipeline's replay().
    """
    report = replay_recipe(output, recipe, cause, settings, allow_code, record_path)
    if as_json:
        print_json({"output": output, **asdict(report)})
    else:
        for change in report.plan_changes:
            echo(f"Changed since the run: {change}", err=True)
        echo(str(report))
    ctx.exit(3 if report.still_quarantined else 0)


def replay_recipe(
    output: str,
    recipe: str | None,
    cause: str | None,
    settings: tuple[str, ...] = (),
    allow_code: tuple[str, ...] = (),
    record_path: str | None = None,
) -> Any:
    """Replay with the recipe kept beside the output, or with another one."""
    from gristmill.cli.run import read_recipe, read_settings, search_current_folder
    from gristmill.errors import ResumeError
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.recipes import parse_recipe
    from gristmill.recipes.loader import find_recipe

    folder = RunFolder(output, record_path=record_path)
    folder.require_run()
    if recipe is not None:
        text = find_recipe(recipe).read_text(encoding="utf-8-sig")
        asks = "${output_path}" in text and not any(name.startswith("output_path=") for name in settings)
        assignments = read_settings(settings)
        assignments.variables.update({"output_path": output} if asks else {})
        loaded = read_recipe(recipe, assignments)
    elif folder.exists(kept := folder.record_path("recipe")):
        loaded = parse_recipe(folder.read(kept).decode(errors="replace"), origin=kept)
    else:
        raise ResumeError(
            f"{output} was not made from a recipe, so there is nothing to run again. Call the pipeline's replay() in "
            "Python, or pass --recipe.",
            path=output,
        )
    search_current_folder(allow_code)
    return loaded.pipeline(allow_code=allow_code).replay(cause=cause, record_path=record_path)
