"""`gristmill why`: shows what happened to one document."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from gristmill.cli.main import DONE, FAILED, common_options, echo, json_option, print_json, record_option

DUPLICATE = "duplicate"

if TYPE_CHECKING:
    from gristmill.ledger.ask.text_diff import TextDiff


@click.command("why")
@click.argument("output")
@click.argument("document", metavar="ID_OR_URL")
@click.option(
    "--diff/--no-diff",
    "with_diff",
    default=None,
    help="Show a text diff: a duplicate against its survivor (the default), or a changed document before and after.",
)
@click.option("--text-field", default="text", show_default=True, help="Column that holds the text, for --diff.")
@record_option
@json_option
@common_options
@click.pass_context
def command(
    ctx: click.Context,
    output: str,
    document: str,
    with_diff: bool | None,
    text_field: str,
    record_path: str | None,
    as_json: bool,
) -> None:
    """Show what happened to a document.

    Whether it was kept, which stage dropped it, its score and the threshold, and what was changed. For a duplicate,
    also shows a diff against its survivor, and with --diff the changes made to a kept document; the texts are read from
    the input and output files. ID_OR_URL can also be PARTITION#ROW. Exits with 1 if the input has no such document.

    \b
    gristmill why clean/ doc-17
    gristmill why clean/ https://example.org/page
    """
    from gristmill.ledger.ask.ledger import Ledger

    ledger = Ledger(output, record_path=record_path)
    answer = ledger.why(document)
    diffs: list[TextDiff | None] = []
    if with_diff is not False:
        for history in answer.documents:
            wanted = with_diff or history.status == DUPLICATE
            diffs.append(ledger.text_diff(history, text_field=text_field) if wanted else None)
    if as_json:
        found = {"diffs": [None if diff is None else dataclasses.asdict(diff) for diff in diffs]} if any(diffs) else {}
        print_json({"status": answer.status, **dataclasses.asdict(answer), **found})
    else:
        echo(str(answer))
        for diff in diffs:
            if diff is not None:
                echo(f"\n{diff}")
    ctx.exit(DONE if answer.seen else FAILED)
