"""`gristmill demo`: curates the shipped sample and shows what happened to it."""

from __future__ import annotations

import gzip
import json
import shlex
from contextlib import closing
from pathlib import Path
from typing import Any

import click

from gristmill.cli.main import common_options, echo, program
from gristmill.cli.run import Assignments, executor_options, make_ready, metrics_options, read_recipe, run_options

RECIPE, BASIS = "demo", "english"
KIND_FIELD = "kind"
_EXAMPLE_CHARS = 72


@click.command("demo")
@click.argument("output", default="demo-output")
@executor_options
@run_options
@metrics_options
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    output: str,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
    quiet: bool,
    show_all: bool,
    as_json: bool,
    **run_with: Any,  # options named like those of `Pipeline.run`
) -> None:
    """Curate a small sample that ships with Gristmill.

    Writes the documents it keeps to the folder OUTPUT (default: demo-output), labelled by a small built-in classifier.
    Shows what was kept, what was dropped and why, the labels, where the files are, and what to try next.
    """
    from gristmill.cli.report_view import exit_code, print_report
    from gristmill.recipes.loader import SAMPLE_FILE

    sample = SAMPLE_FILE
    assignments = Assignments({"input_path": str(sample), "output_path": output})
    pipeline, engine, display = make_ready(
        read_recipe(RECIPE, assignments),
        assignments,
        executor=executor,
        workers=workers,
        memory_budget=memory_budget,
        show=not quiet,
    )
    with closing(display):
        report = pipeline.run(
            executor=engine, listeners=[display], progress=False, ignore_failures=False, **run_with
        ).report
    print_report(report, as_json=as_json, quiet=quiet, show_all=show_all)
    if not as_json and not quiet:
        _print_kinds(Path(output))
        _print_next(sample, Path(output))
    ctx.exit(exit_code(report))


def _print_kinds(output: Path) -> None:
    """Number of kept documents per label, with the beginning of one document each."""
    kinds = labelled_documents(output)
    if not kinds:
        return
    width = max(len(kind) for kind in kinds)
    echo("\nLabels of the built-in classifier:")
    for kind, (number, example) in sorted(kinds.items(), key=lambda item: (-item[1][0], item[0])):
        echo(f"  {kind:<{width}} {number:>5,}   {example}")


def labelled_documents(output: Path) -> dict[str, tuple[int, str]]:
    """For each label in the output, the number of documents and the beginning of the last one."""
    kinds: dict[str, tuple[int, str]] = {}
    for path in _files(output):
        for document in _documents(path):
            number, _ = kinds.get(document[KIND_FIELD], (0, ""))
            kinds[document[KIND_FIELD]] = (number + 1, _beginning(document["text"]))
    return kinds


def _beginning(text: str) -> str:
    line = " ".join(text[: 4 * _EXAMPLE_CHARS].split())
    return line if len(line) <= _EXAMPLE_CHARS else line[: _EXAMPLE_CHARS - 1].rstrip() + "…"


def _print_next(sample: Path, output: Path) -> None:
    """Commands that work where they are pasted, with a document that was really dropped."""
    folder = shlex.quote(str(output))
    dropped = first_dropped(sample, output)
    # Some shells take a comment after a command for arguments, so the description comes first.
    commands = [
        ("Verify that nothing was lost", f"verify {folder}"),
        ("Print the recipe, to copy and edit it", f"recipes {RECIPE}"),
        ("Train a classifier on your own labels", "classifier train --help"),
    ]
    if dropped is not None:
        commands.insert(0, ("See why this document was dropped", f"why {folder} {shlex.quote(dropped)}"))
    echo("\nTry next:")
    for what, command in commands:
        echo(f"  {what}:\n    {program()} {command}")
    echo(f"The same filters on your own files: {program()} run {BASIS} INPUT OUTPUT")


def first_dropped(sample: Path, output: Path) -> str | None:
    """The id of the first document of the sample that is not in the output."""
    kept = {document["id"] for path in _files(output) for document in _documents(path)}
    return next((document["id"] for document in _documents(sample) if document["id"] not in kept), None)


def _files(output: Path) -> list[Path]:
    return [output] if output.is_file() else sorted(output.glob("*.jsonl*"))


def _documents(path: Path) -> list[dict[str, Any]]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines() if line]
