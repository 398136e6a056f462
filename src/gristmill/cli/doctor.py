"""`gristmill doctor`: the machine before a run, and what limited one afterwards."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import DONE, FAILED, common_options, echo, json_option, print_json, record_option

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gristmill.ledger.ask.bottleneck import SegmentState


@click.command("doctor")
@click.argument("output", required=False)
@record_option
@json_option
@common_options
@click.pass_context
def command(ctx: click.Context, /, output: str | None, record_path: str | None, as_json: bool) -> None:
    """Diagnose this machine, or a slow run.

    Without OUTPUT, checks the machine: memory, disks, shared memory, limits, CPU, Ray, extras, models and compiled
    kernels. Each line says ok, warn or bad and what to do; exits with 1 if anything is bad. With the OUTPUT of a run,
    shows what its workers did (busy, starved of input, blocked by later stages, or starting up), their memory, and the
    one change that would help most, with its expected gain.

    \b
    gristmill doctor
    gristmill doctor clean/
    """
    if output is None:
        from gristmill.advice.doctor import BAD, examine
        from gristmill.advice.doctor import as_json as plain

        found = examine()
        bad = any(one.level == BAD for one in found)
        if as_json:
            print_json({"status": "bad" if bad else "ok", "findings": plain(found)})
        else:
            for one in found:
                echo(f"{one.level:<5}{one.name}: {one.found}" + (f". {one.todo}" if one.todo else ""))
        ctx.exit(FAILED if bad else DONE)
    _after(output, record_path, as_json=as_json)


def _after(output: str, record_path: str | None, *, as_json: bool) -> None:
    from gristmill.errors import InputError
    from gristmill.ledger.ask.bottleneck import segment_states, suggestion
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.ledger.record.plan_record import read_plan
    from gristmill.ledger.record.run_record import read_run

    folder = RunFolder(output, record_path=record_path)
    folder.require_run()
    run = read_run(folder)
    if run is None:
        raise InputError(f"{folder.record} has no run.json: nothing is recorded about the run of {output}.")
    plan = read_plan(folder)
    segments, advice = segment_states(run), suggestion(run, plan)
    notes = _notes(run, segments)
    profile = folder.record_path("profile_page")
    has_profile = folder.exists(profile)
    if as_json:
        shown = {"status": run.get("status"), "wall_seconds": run.get("wall_seconds"), "notes": notes}
        shown["profile"] = profile if has_profile else None
        shown["segments"] = [dataclasses.asdict(one) for one in segments]
        print_json({**shown, "suggestion": dataclasses.asdict(advice)})
        return
    for note in notes:
        echo(note)
    _print_segments(run, segments)
    echo(f"\nSuggestion: {advice}")
    echo(f"Profile: {profile}" if has_profile else "Run with --profile to see where each stage spends its time.")


def _notes(run: Mapping[str, Any], segments: list[SegmentState]) -> list[str]:
    """Anything unusual about the record."""
    notes, status = [], run.get("status")
    if status == "running":
        notes.append(
            f"The run has not finished: it is still running, or was killed after {run.get('updated')}. So far:"
        )
    elif status != "done":
        notes.append(f"The run ended early ({status}): {run.get('error') or 'no reason recorded'}. So far:")
    if any(one.state == "unknown" for one in segments):
        notes.append(
            f"The run was made by version {run.get('version', 'unknown')}, which did not record what workers waited "
            "for. Run again to measure it."
        )
    if run.get("partitions_done_before"):
        notes.append("The run resumed an earlier one: times cover the last part only.")
    return notes


def _print_segments(run: Mapping[str, Any], segments: list[SegmentState]) -> None:
    from rich.table import Table
    from rich.text import Text

    from gristmill.cli.report_view import make_console
    from gristmill.figures import duration, format_size, printable, share

    console = make_console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("segment", overflow="fold")
    table.add_column("state", no_wrap=True)
    for title in ("workers", "busy", "starved", "blocked", "ramping", "memory per worker"):
        table.add_column(title, justify="right", no_wrap=True)
    for one in segments:
        spent = (one.busy_seconds, one.starved_seconds, one.blocked_seconds, one.starting_seconds)
        total = sum(spent)
        shares = [share(part / total) if total else "–" for part in spent]
        first, last = one.stages[0], one.stages[-1]
        name = first if len(one.stages) == 1 else f"{first} … {last} ({len(one.stages)} stages)"
        memory = format_size(one.peak_memory_bytes) if one.peak_memory_bytes else "–"
        table.add_row(Text(printable(name)), one.state, str(one.workers), *shares, memory)
    console.print(table)
    wall, peak = run.get("wall_seconds"), run.get("peak_memory_bytes")
    if isinstance(wall, int | float) and isinstance(peak, int):
        console.print(f"\nWall time {duration(wall)}, peak memory {format_size(peak)}")
