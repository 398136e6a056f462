"""`gristmill quarantine`: lists the records of a run that could not be processed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gristmill.cli.main import common_options, echo, json_option, print_json, record_option
from gristmill.figures import printable

if TYPE_CHECKING:
    from gristmill.ledger.record.quarantine import QuarantineEntry

EXCERPT_CHARS = 100


@click.command("quarantine")
@click.argument("output")
@click.option("--cause", metavar="CAUSE", help="List the records with this cause.")
@click.option("--stage", metavar="STAGE", help="List the records of this stage.")
@record_option
@json_option
@common_options
def command(output: str, cause: str | None, stage: str | None, record_path: str | None, as_json: bool) -> None:
    """List the records that could not be processed.

    Groups them by cause and stage. With --cause or --stage, lists each record with its file, position and first
    characters.
    """
    from gristmill.ledger.record.quarantine import list_quarantine, read_quarantine

    if cause is not None or stage is not None:
        found = read_quarantine(output, cause=cause, stage=stage, record_path=record_path)
        _print_records(output, found, as_json=as_json)
        return
    groups = list_quarantine(output, record_path=record_path).to_dicts()
    if as_json:
        print_json({"output": output, "records": sum(group["records"] for group in groups), "causes": groups})
        return
    if not groups:
        echo("No quarantined records.")
        return
    _print_groups(groups)


def _print_groups(groups: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    from gristmill.cli.report_view import make_console

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("records", justify="right", no_wrap=True)
    for title in ("cause", "stage", "for example"):
        table.add_column(title, overflow="fold")
    for group in groups:
        place = _place(group["example_file"], group["example_offset"])
        detail = group["example_detail"].strip().rsplit("\n", 1)[-1]
        example = ": ".join(part for part in (place, detail) if part)
        table.add_row(
            f"{group['records']:,}", *(Text(printable(text)) for text in (group["cause"], group["stage"], example))
        )
    make_console().print(table)


def _print_records(output: str, entries: Iterator[QuarantineEntry], *, as_json: bool) -> None:
    found = map(_plain, entries)
    if as_json:
        print_json({"output": output, "records": list(found)})
        return
    number = 0
    for record in found:
        number += 1
        where = _place(record["file"], record["offset"]) or f"row {record['row']}"
        echo(f"{where}: {record['cause']} in {record['stage']}")
        if record["detail"]:
            echo("    " + record["detail"].rstrip().replace("\n", "\n    "))
        excerpt = record["raw"][:EXCERPT_CHARS]
        more = "…" if len(record["raw"]) > EXCERPT_CHARS else ""
        echo(f"    {json.dumps(excerpt, ensure_ascii=False)}{more}")
    if not number:
        echo("No matching records.")


def _place(file: str, offset: int) -> str:
    """The position of a record; stages after the reader know its file but not its byte offset."""
    return f"{file} at byte {offset}" if file and offset >= 0 else file


def _plain(entry: QuarantineEntry) -> dict[str, Any]:
    raw = entry.record.raw.decode("utf-8", "backslashreplace")
    return {"partition": entry.partition, "id": entry.id, **dataclasses.asdict(entry.record), "raw": raw}
