"""`gristmill why`: tells what became of one document."""

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
    help="Show what differs: a duplicate and its survivor (by default), or a changed document before and after.",
)
@click.option("--text-field", default="text", show_default=True, help="The field with the text, for --diff.")
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
    """Tell what became of a document.

    Kept or not, by which stage, its score against the threshold, and what was changed in it. For a duplicate also its
    text against that of its survivor, and with --diff that of a changed document against the output; both are looked
    up in the files of input and output. ID_OR_URL may also be PARTITION#ROW. Exits with 1 if no document of the input
    answers to it.

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
