"""The report of a run for the eye: what was kept, what was dropped, and why. Views never load anything."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.cli.edge import DONE, FAILED, QUARANTINED
from gristmill.observe.figures import count, duration, plural, share

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from gristmill.pipeline.result import RunReport

PLAIN_WIDTH = 140
"""Columns when the output is no terminal: wide enough that a table in a log does not wrap."""


def make_console() -> Console:
    """A console on stdout that shows text as it is."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def report_values(report: RunReport) -> dict[str, Any]:
    """The report as plain values."""
    return dataclasses.asdict(report)


def exit_code(values: Mapping[str, Any]) -> int:
    """The exit code that a report stands for."""
    if values["status"] != "done":
        return FAILED
    return QUARANTINED if values["quarantined"] else DONE


def print_report(values: Mapping[str, Any], console: Console | None = None) -> None:
    """The table of stages, then the totals and where the files are."""
    console = console or make_console()
    console.print(stage_table(values["stages"]))
    for line in summary_lines(values):
        console.print(line)


def stage_table(stages: Sequence[Mapping[str, Any]]) -> Table:
    """One row per stage; a stage that did nothing to the rows has dashes."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", no_wrap=True, overflow="ellipsis")
    for title in ("rows in", "kept", "dropped", "share"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for stage in stages:
        dropped = sum(stage["dropped"].values())
        rows_in = stage["rows_in"] + stage["created"]
        table.add_row(
            Text(stage["name"]),
            count(rows_in),
            count(stage["rows_out"]),
            count(dropped) if dropped else "–",
            share(dropped / rows_in) if dropped and rows_in else "–",
            Text(reasons(stage)),
        )
    return table


def reasons(stage: Mapping[str, Any]) -> str:
    """The reasons with their counts, the most frequent first; then what was changed or quarantined."""

    def listed(counts: Mapping[str, int]) -> list[str]:
        order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return [f"{reason} {count(number)}" for reason, number in order]

    parts = listed(stage["dropped"])
    if stage["changed"]:
        parts.append(f"changed {count(stage['changed'])}")
    if stage["quarantined"]:
        parts.append("quarantined: " + ", ".join(listed(stage["quarantined"])))
    return ", ".join(parts)


def summary_lines(values: Mapping[str, Any]) -> list[str]:
    """Totals, time, and where the files are."""
    rows = f"{plural(values['rows_read'], 'document')} in, {count(values['rows_written'])} kept"
    lines = ["", f"{rows}, {duration(values['seconds'])}"]
    lines.extend(f"Note: {alarm}" for alarm in values["alarms"])
    if values["quarantined"]:
        bad = plural(values["quarantined"], "record")
        lines.append(
            f"{bad} could not be processed; see: gristmill quarantine {shlex.quote(values['output'] or 'OUTPUT')}"
        )
    if values["output"]:
        lines.append(f"Files: {values['output']}")
    return lines
