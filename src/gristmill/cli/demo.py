"""`gristmill demo`: curates the shipped sample and shows what happened to it."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import click

from gristmill.cli.edge import common_options, print_json
from gristmill.cli.recipe_options import Assignments, executor_options
from gristmill.cli.run import run_options, run_recipe

RECIPE = "english"


@click.command("demo")
@click.argument("output", default="demo-output")
@executor_options
@run_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    output: str,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    quiet: bool,
    as_json: bool,
    fresh: bool,
) -> None:
    """Curate the shipped sample.

    The documents that are kept go to the folder OUTPUT (default: demo-output). Shows what was kept and dropped and
    why, where the files are, and what to try next.
    """
    from gristmill.cli.report_view import exit_code, print_report
    from gristmill.recipes.shipped_recipes import sample_file

    sample = sample_file()
    values = run_recipe(
        RECIPE,
        Assignments({"input_path": str(sample), "output_path": output}, {}),
        executor=executor,
        workers=workers,
        memory_budget=memory_budget,
        show=not quiet,
        fresh=fresh,
    )
    if as_json:
        print_json(values)
    elif not quiet:
        print_report(values)
        _print_next(sample, Path(output))
    ctx.exit(exit_code(values))


def _print_next(sample: Path, output: Path) -> None:
    """Commands that work right now, with a document that was really dropped."""
    folder = shlex.quote(str(output))
    dropped = first_dropped(sample, output)
    click.echo("\nTry next:")
    if dropped is not None:
        click.echo(f"  gristmill why {folder} {shlex.quote(dropped)}   # why this document was dropped")
    click.echo(f"  gristmill verify {folder}   # prove that nothing was lost")
    click.echo(f"  gristmill recipes {RECIPE}   # the recipe, to copy and change")
    click.echo(f"  gristmill run {RECIPE} YOUR_FILES/ OUTPUT/")


def first_dropped(sample: Path, output: Path) -> str | None:
    """The id of the first document of the sample that is not in the output."""
    kept = {document["id"] for path in sorted(output.glob("*.jsonl*")) for document in _documents(path)}
    return next((document["id"] for document in _documents(sample) if document["id"] not in kept), None)


def _documents(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines() if line]
