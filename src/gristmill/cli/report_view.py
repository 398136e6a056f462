"""Prints the report of a run: what was kept, what was dropped, and why. Views never load anything."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from typing import TYPE_CHECKING

from gristmill.cli.main import DONE, FAILED, QUARANTINED, print_json, program
from gristmill.figures import duration, plural, printable, share
from gristmill.ledger.performance import model_usage
from gristmill.ledger.record.input_files import sentence
from gristmill.ledger.record.layout import RECORD_FILES

if TYPE_CHECKING:
    from rich.console import Console

    from gristmill.observe.profile.profile import Profile
    from gristmill.pipeline.run import RunReport, StageReport

WIDE = 100
"""Terminal width that the summary needs to show every figure."""
PLAIN_WIDTH = 140
"""Width if the output is not a terminal: wide enough that a table in a log does not wrap."""


def make_console() -> Console:
    """A console on stdout that prints text unchanged."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else PLAIN_WIDTH
    return Console(file=sys.stdout, width=width, highlight=False, emoji=False, markup=False)


def exit_code(report: RunReport) -> int:
    """The exit code for a report."""
    if report.status != "done":
        return FAILED
    return QUARANTINED if report.quarantined else DONE


def print_report(
    report: RunReport,
    *,
    as_json: bool,
    quiet: bool,
    show_all: bool = False,
    record: str | None = None,
    has_page: bool = True,
    profile: Profile | None = None,
    console: Console | None = None,
) -> None:
    """Print JSON or, unless `quiet`, a table of the stages that changed or dropped documents, and the totals.

    Args:
        report: What the run did.
        as_json: Print JSON and nothing else.
        quiet: Print nothing but JSON.
        show_all: Also show the stages that dropped and changed nothing, which are otherwise counted in one line.
        record: Path of the record, if not beside the output; the printed commands need it.
        has_page: Whether the record holds a page about the run.
        profile: The profile, if the run was profiled.
        console: Console to print to; stdout by default.
    """
    if as_json:
        print_json(dataclasses.asdict(report) | ({} if profile is None else {"profile": profile.figures()}))
    if as_json or quiet:
        return
    from rich.table import Table
    from rich.text import Text

    console = console or make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", no_wrap=True, overflow="ellipsis")
    # A narrow terminal has room for names and reasons only.
    titles = ("rows in", "kept", "dropped", "share")[0 if console.width >= WIDE else 2 :]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("why", overflow="fold")
    for place, stage in enumerate(report.stages):
        dropped = sum(stage.dropped.values())
        rows_in = stage.rows_in + stage.created
        # The first stage always creates rows; any other stage that does has split documents.
        if show_all or dropped or stage.quarantined or stage.changed or stage.skipped or (stage.created and place):
            figures = (
                f"{rows_in:,}",
                f"{stage.rows_out:,}",
                f"{dropped:,}" if dropped else "–",
                share(dropped / rows_in) if dropped and rows_in else "–",
            )
            table.add_row(Text(printable(stage.name)), *figures[-len(titles) :], Text(printable(reasons(stage))))
    if table.row_count:
        console.print(table)
    idle = len(report.stages) - table.row_count
    if idle:
        more = "more " if table.row_count else ""
        console.print(f"{idle:,} {more}{'stage' if idle == 1 else 'stages'} dropped nothing (--all shows them)")
    rows = f"{plural(report.rows_read, 'document')} in, {report.rows_written:,} kept"
    console.print(f"\n{rows}, {duration(report.seconds)}")
    for stage in report.stages:
        if "llm_requests" in stage.custom:
            console.print(printable(f"{stage.name}: {model_usage(stage.custom, stage.busy_s)}"), soft_wrap=True)
    if report.left_out:
        console.print(printable(sentence(report.left_out)))
    for alarm in report.alarms:
        console.print(printable(f"Note: {alarm}"))
    if report.quarantined:
        bad, output = plural(report.quarantined, "record"), shlex.quote(report.output or "OUTPUT")
        elsewhere = f" --record {shlex.quote(record)}" if record else ""
        console.print(f"{bad} could not be processed; see: {program()} quarantine {output}{elsewhere}", soft_wrap=True)
    if report.output:
        console.print(printable(f"Files: {report.output}"), soft_wrap=True)
    if report.record and has_page:
        console.print(printable(f"Report: {report.record}/{RECORD_FILES['report']}"), soft_wrap=True)
    if profile is not None:
        from gristmill.cli.profile_view import print_profile

        print_profile(profile, report.record, console)


def reasons(stage: StageReport) -> str:
    """The reasons with their counts, the most frequent first; then the numbers changed, quarantined or skipped."""
    listed = []
    for counts in (stage.dropped, stage.quarantined, stage.skipped):
        names = sorted(sorted(counts), key=counts.__getitem__, reverse=True)  # equally frequent ones by name
        listed.append(", ".join(map("{} {:,}".format, names, map(counts.__getitem__, names))))
    dropped, quarantined, skipped = listed
    changed = f"changed {stage.changed:,}" if stage.changed else ""
    told = [dropped, changed, f"quarantined: {quarantined}" if quarantined else ""]
    return "; ".join(filter(None, [", ".join(filter(None, told)), f"not documents: {skipped}" if skipped else ""]))
