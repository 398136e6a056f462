"""`gristmill report`: writes the page that shows what a run did, or how two runs differ."""

from __future__ import annotations

import os

import click

from gristmill.cli.main import common_options, echo, json_option, print_json, record_option
from gristmill.figures import format_size

COMPARISON = "comparison.html"


@click.command("report")
@click.argument("outputs", metavar="OUTPUT [OUTPUT_B]", nargs=-1, required=True)
@click.option("--compare", is_flag=True, help="Compare the runs of two outputs.")
@click.option(
    "--to",
    metavar="FILE",
    help=f"File to write [default: report.html in the record; with --compare: {COMPARISON} in this folder].",
)
@record_option
@click.option("--record-b", metavar="FOLDER", help="With --compare: folder with the record of OUTPUT_B.")
@json_option
@common_options
def command(
    outputs: tuple[str, ...],
    compare: bool,
    to: str | None,
    record_path: str | None,
    record_b: str | None,
    as_json: bool,
) -> None:
    """Write the HTML report of a run.

    A single self-contained page: what happened to the documents and why, what other thresholds would keep, examples of
    dropped documents and duplicates, quarantine, speed and memory. Every run writes one to its record; this command
    rebuilds it from the full record rather than a sample, also for runs that failed or were killed. With --compare,
    writes a page that compares two runs.

    \b
    gristmill report clean/
    gristmill report clean/ --to report.html
    gristmill report --compare clean-may/ clean-june/ --to changes.html
    """
    from gristmill.report.page import write_comparison, write_report

    if len(outputs) != (2 if compare else 1):
        if compare:
            raise click.UsageError(f"--compare takes the outputs of two runs (got {len(outputs)}).")
        raise click.UsageError(f"Expected one output, got {len(outputs)}. To compare two runs, add --compare.")
    if record_b is not None and not compare:
        raise click.UsageError("--record-b needs --compare.")
    if compare:
        place = write_comparison(
            outputs[0], outputs[1], to=to or COMPARISON, record_before=record_path, record_after=record_b
        )
    else:
        place = write_report(outputs[0], to=to, record_path=record_path)
    size = os.path.getsize(place) if os.path.exists(place) else None
    if as_json:
        print_json({"status": "done", "report": place, "bytes": size})
    else:
        echo(f"Report: {place}" + ("" if size is None else f" ({format_size(size)})"))
