"""`gristmill show`: prints the summary of a run again, from its record; also of an unfinished run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import common_options, echo, json_option, print_json, record_option
from gristmill.figures import plural

if TYPE_CHECKING:
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.pipeline.run import RunReport

DONE = "done"
_FACTS = ("version", "executor", "started", "finished", "error", "partitions_committed", "worker_deaths")


@click.command("show")
@click.argument("output")
@click.option("--all", "show_all", is_flag=True, help="Include stages that dropped nothing.")
@record_option
@json_option
@common_options
def command(output: str, show_all: bool, record_path: str | None, as_json: bool) -> None:
    """Show the summary of a run again.

    Reads the record of OUTPUT: rows per stage, what was dropped and why, and how long it took. For a run that is still
    going, failed or was killed, shows what has been committed so far.

    \b
    gristmill show clean/
    """
    from gristmill.cli.decontaminate import summary as contamination_summary
    from gristmill.cli.dedup_view import summary
    from gristmill.cli.report_view import print_report
    from gristmill.ledger.record.layout import RunFolder
    from gristmill.ledger.record.run_record import read_run
    from gristmill.ledger.record.workflow_record import is_list_only, read_workflow_record

    folder = RunFolder(output, record_path=record_path)
    workflow = read_workflow_record(folder)
    listed = workflow is not None and is_list_only(folder)
    if not listed:
        folder.require_run()
    run = read_run(folder) or {}
    steps = step_states(folder, workflow or {})
    report = None if listed else recorded_report(folder, run)
    if as_json:
        shown = {} if report is None else dataclasses.asdict(report)
        facts = {key: run.get(key) for key in _FACTS} if report is not None else {}
        print_json({"status": DONE, **shown, **facts, "deduplication": workflow, "steps": steps})
        return
    if report is not None:
        for line in state(report, run):
            echo(line)
        print_report(report, as_json=False, quiet=False, show_all=show_all)
    if workflow is not None:
        lines = contamination_summary if "contaminated" in workflow else summary
        echo("\n".join(lines(dict(workflow))))
    elif steps:
        echo("Steps:")
        for step in steps:
            echo(f"  {step['step']}: {step['status']}, {step['committed']} of {step['partitions']} partitions")


def recorded_report(folder: RunFolder, run: Mapping[str, Any]) -> RunReport:
    """The report of the last run of an output; rows cover all partitions committed so far."""
    from gristmill.ledger.record.manifest import Manifest
    from gristmill.ledger.record.plan_record import read_plan
    from gristmill.ledger.record.trail import StageCount
    from gristmill.pipeline.run import RunReport, StageReport

    totals = Manifest(folder).totals()
    timed = {str(stage["stage"]): stage for stage in run.get("stages") or ()}
    planned = [str(stage.get("name")) for stage in (read_plan(folder) or {}).get("stages") or ()]
    stages = []
    for name in dict.fromkeys([*totals.stages, *timed, *planned]):
        count, times = totals.stages.get(name, StageCount()), timed.get(name, {})
        stages.append(
            StageReport(
                name,
                count.rows_in,
                count.rows_out,
                count.created,
                count.dropped,
                count.quarantined,
                count.untracked,
                count.changed,
                float(times.get("busy_seconds", 0)),
                int(times.get("calls", 0)),
                count.skipped,
            )
        )
    return RunReport(
        pipeline=str(run.get("pipeline", "")),
        status=str(run.get("status", "unknown")),
        seconds=float(run.get("wall_seconds") or 0),
        stages=tuple(stages),
        rows_read=totals.rows_read,
        rows_written=totals.rows_written,
        quarantined=totals.quarantined,
        partitions=max(int(run.get("partitions") or 0), totals.partitions),
        partitions_done_before=int(run.get("partitions_done_before") or 0),
        output=folder.path,
        alarms=tuple(map(str, run.get("alarms") or ())),
        left_out=(run.get("files") or {}).get("left_out") or {},
    )


def state(report: RunReport, run: Mapping[str, Any]) -> list[str]:
    """The progress of an unfinished run, and what to do."""
    from gristmill.ledger.record.run_record import RUNNING

    if report.status == DONE:
        return []
    done = int(run.get("partitions_done_before") or 0) + int(run.get("partitions_committed") or 0)
    words = {RUNNING: "running, or killed", "unknown": "unknown: the record of the run is missing"}
    lines = [f"Status: {words.get(report.status, report.status)}; {done} of {plural(report.partitions, 'partition')}"]
    if run.get("error") and report.status == "failed":
        lines.append(f"Error: {run['error']}")
    return [*lines, "Run the same command again to resume."]


def step_states(folder: RunFolder, workflow: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The status of the steps of a multi-step run, as far as they still exist."""
    from gristmill.ledger.record.layout import RECORD_FOLDER, STEPS_FOLDER, step_folder
    from gristmill.ledger.record.manifest import Manifest
    from gristmill.ledger.record.run_record import read_run

    root = workflow.get("steps_folder") or folder.join(f"{RECORD_FOLDER}/{STEPS_FOLDER}")
    names = {name.split("/", 1)[0] for name in folder.walk(root) if "/" in name}
    found = []
    for name in sorted(names):
        step = step_folder(f"{root}/{name}", folder.storage_options)
        run = read_run(step)
        if run is not None:
            totals = Manifest(step).totals()
            found.append(
                {
                    "step": name,
                    "status": run["status"],
                    "partitions": run["partitions"],
                    "committed": totals.partitions,
                    "rows_written": totals.rows_written,
                    "started": run.get("started"),
                }
            )
    return sorted(found, key=lambda step: str(step["started"]))
