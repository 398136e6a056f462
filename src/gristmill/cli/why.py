"""`gristmill why`: tells what became of one document."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from gristmill.cli.edge import DONE, FAILED, common_options, json_option, print_json

DUPLICATE = "duplicate"

if TYPE_CHECKING:
    from gristmill.ledger.ask.text_diff import TextDiff
    from gristmill.ledger.ask.why import Why


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
@json_option
@common_options
@click.pass_context
def command(
    ctx: click.Context, output: str, document: str, with_diff: bool | None, text_field: str, as_json: bool
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
    answer = ask(output, document)
    diffs = differences(output, answer, text_field, changed=bool(with_diff)) if with_diff is not False else []
    if as_json:
        found = {"diffs": [None if diff is None else dataclasses.asdict(diff) for diff in diffs]} if any(diffs) else {}
        print_json({"status": answer.status, **dataclasses.asdict(answer), **found})
    else:
        click.echo(str(answer))
        for diff in diffs:
            if diff is not None:
                click.echo(f"\n{diff}")
    ctx.exit(DONE if answer.seen else FAILED)


def ask(output: str, document: str) -> Why:
    """The answer of the ledger."""
    from gristmill.ledger.ask.ledger import Ledger

    return Ledger(output).why(document)


def differences(output: str, answer: Why, text_field: str, *, changed: bool) -> list[TextDiff | None]:
    """For each document of the answer, its text against that of its survivor or, with `changed`, against the output."""
    wanted = [changed or history.status == DUPLICATE for history in answer.documents]
    if not any(wanted):
        return []
    from gristmill.ledger.ask.ledger import Ledger

    ledger = Ledger(output)
    pairs = zip(answer.documents, wanted, strict=True)
    return [ledger.text_diff(history, text_field=text_field) if asked else None for history, asked in pairs]
