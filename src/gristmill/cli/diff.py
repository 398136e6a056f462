"""`gristmill diff`: shows which documents two runs treated differently."""

from __future__ import annotations

from typing import Any

import click

from gristmill.cli.main import DONE, FAILED, common_options, echo, json_option, print_json


@click.command("diff")
@click.argument("before", metavar="RUN_A")
@click.argument("after", metavar="RUN_B")
@click.option(
    "--limit", type=click.IntRange(min=0), default=20, show_default=True, help="Maximum number of documents to show."
)
@click.option("--record-a", metavar="FOLDER", help="Folder with the record of RUN_A [default: RUN_A.gristmill].")
@click.option("--record-b", metavar="FOLDER", help="Folder with the record of RUN_B [default: RUN_B.gristmill].")
@json_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    before: str,
    after: str,
    limit: int,
    record_a: str | None,
    record_b: str | None,
    as_json: bool,
) -> None:
    """Compare two runs document by document.

    Compares the ledgers of two outputs: which documents were added, removed, or dropped for another reason. Exits with
    1 if anything differs.

    \b
    gristmill diff clean-may/ clean-june/
    """
    from gristmill.ledger.ask.ledger import Ledger

    found = Ledger(before, record_path=record_a).diff(Ledger(after, record_path=record_b))
    rows = found.frame.head(limit).to_dicts()
    if as_json:
        counts = {"same": found.same, "changes": found.counts(), "untracked": found.untracked}
        print_json({"before": before, "after": after, "matched_by": found.matched_by, **counts, "documents": rows})
    else:
        echo(str(found))
        for row in rows:
            echo(f"  {line(row)}")
        if len(found.frame) > limit:
            echo(f"  … and {len(found.frame) - limit:,} more (--limit)")
        if found.untracked:
            echo(f"Not compared: {found.untracked:,} decisions about rows of unknown origin.")
    ctx.exit(FAILED if len(found.frame) else DONE)


def line(row: dict[str, Any]) -> str:
    """One document on one line."""
    from gristmill.ledger.ask.diff import SHOWN

    name, change = row["id"] or f"{row['partition']}#{row['row']}", row["change"]
    return f"{SHOWN.get(change, change)}: {name}: {_told(row, 'before')} → {_told(row, 'after')}"


def _told(row: dict[str, Any], when: str) -> str:
    status = row[f"status_{when}"]
    if status is None:
        return "not in the input"
    if row[f"stage_{when}"] is None:
        return str(status)
    score = row[f"score_{when}"]
    told = "" if score is None else f" (score {score:.6g})"
    return f"{status} by {row[f'stage_{when}']}: {row[f'reason_{when}']}{told}"
