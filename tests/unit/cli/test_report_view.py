"""The report of a run for the eye."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from gristmill.cli.report_view import exit_code, print_report, reasons
from gristmill.pipeline.run import RunReport, StageReport


def report(**changes: Any) -> RunReport:
    values: dict[str, Any] = {
        "pipeline": "clean",
        "status": "done",
        "seconds": 1.5,
        "stages": (
            StageReport("read", rows_out=10, created=12, quarantined={"not_json": 2}),
            StageReport("[red]words", rows_in=10, rows_out=6, dropped={"too_few": 1, "too_many": 3}),
            StageReport("write", rows_in=6, rows_out=6),
        ),
        "rows_read": 12,
        "rows_written": 6,
        "quarantined": 2,
        "partitions": 1,
        "partitions_done_before": 0,
        "output": "my out",
        "alarms": ("words drops a lot",),
    }
    return RunReport(**{**values, **changes})


def shown(made: RunReport, *, show_all: bool = False, record: str | None = None, width: int = 120) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, highlight=False, markup=False)
    print_report(made, as_json=False, quiet=False, show_all=show_all, record=record, console=console)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_table_and_totals() -> None:
    lines = shown(report())
    assert lines[0].split() == ["stage", "rows", "in", "kept", "dropped", "share", "why"]
    assert lines[1].split(maxsplit=5) == ["read", "12", "10", "–", "–", "quarantined: not_json 2"]
    assert lines[2].split(maxsplit=6) == ["[red]words", "10", "6", "4", "40.0", "%", "too_many 3, too_few 1"]
    assert lines[3:] == [
        "1 more stage dropped nothing (--all shows them)",
        "",
        "12 documents in, 6 kept, 1.50 s",
        "Note: words drops a lot",
        "2 records could not be processed; see: gristmill quarantine 'my out'",
        "Files: my out",
    ]


def test_what_a_reader_found_besides_documents() -> None:
    reader = StageReport("read", rows_out=10, created=11, quarantined={"cut": 1}, skipped={"warcinfo": 1, "request": 9})
    assert reasons(reader) == "quarantined: cut 1; not documents: request 9, warcinfo 1"
    lines = shown(report(stages=(StageReport("read", rows_out=6, created=6, skipped={"request": 9}),)))
    assert lines[1].split(maxsplit=5) == ["read", "6", "6", "–", "–", "not documents: request 9"]


def test_stages_that_dropped_nothing_are_one_line() -> None:
    idle = [StageReport(f"idle{number}", rows_in=6, rows_out=6) for number in range(20)]
    # One that only creates rows, by splitting documents, has done something; the reader has not.
    splitter = StageReport("split", rows_in=6, rows_out=9, created=3)
    _, words, writer = report(quarantined=0).stages
    made = report(stages=(StageReport("read", rows_out=10, created=10), words, *idle, splitter, writer), quarantined=0)
    lines = shown(made)
    assert [line.split()[0] for line in lines[1:3]] == ["[red]words", "split"]
    assert lines[3] == "22 more stages dropped nothing (--all shows them)"
    assert len([line for line in shown(made, show_all=True) if line.startswith("idle")]) == 20
    assert not any("--all" in line for line in shown(made, show_all=True))
    nothing = shown(report(stages=(StageReport("read", rows_out=9, created=9), writer), quarantined=0))
    assert nothing[0] == "2 stages dropped nothing (--all shows them)"


def test_commands_and_paths_are_never_cut_into_lines() -> None:
    output = "/a/long path/" + "x" * 90
    lines = shown(report(output=output), width=50)
    assert f"2 records could not be processed; see: gristmill quarantine '{output}'" in lines
    assert f"Files: {output}" in lines
    assert shown(report(), record="my record")[-2].endswith("see: gristmill quarantine 'my out' --record 'my record'")


def test_a_narrow_terminal_has_names_and_reasons() -> None:
    lines = shown(report(), width=80)
    assert lines[0].split() == ["stage", "dropped", "share", "why"]
    assert lines[2].split(maxsplit=4) == ["[red]words", "4", "40.0", "%", "too_many 3, too_few 1"]


def test_nothing_special() -> None:
    lines = shown(report(quarantined=0, alarms=(), output=None))
    assert lines[-1] == "12 documents in, 6 kept, 1.50 s"


def test_changes_are_counted() -> None:
    assert reasons(StageReport("m", rows_in=5, rows_out=5, changed=1200)) == "changed 1,200"


@pytest.mark.parametrize(
    ("changes", "code"), [({}, 3), ({"quarantined": 0}, 0), ({"status": "failed"}, 1), ({"status": "interrupted"}, 1)]
)
def test_exit_codes(changes: dict[str, Any], code: int) -> None:
    assert exit_code(report(**changes)) == code
