"""`gristmill why`: tells what became of one document."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from gristmill.cli.edge import DONE, FAILED, common_options, json_option, print_json

if TYPE_CHECKING:
    from gristmill.ledger.why import Why


@click.command("why")
@click.argument("output")
@click.argument("document", metavar="ID_OR_URL")
@json_option
@common_options
@click.pass_context
def command(ctx: click.Context, output: str, document: str, as_json: bool) -> None:
    """Tell what became of a document.

    Kept or not, by which stage, its score against the threshold, and what was changed in it.
    ID_OR_URL may also be PARTITION#ROW. Exits with 1 if no document of the input answers to it.

    \b
    gristmill why clean/ doc-17
    gristmill why clean/ https://example.org/page
    """
    answer = ask(output, document)
    if as_json:
        print_json({"status": answer.status, **dataclasses.asdict(answer)})
    else:
        click.echo(str(answer))
    ctx.exit(DONE if answer.seen else FAILED)


def ask(output: str, document: str) -> Why:
    """The answer of the ledger."""
    from gristmill.ledger.ledger import Ledger

    return Ledger(output).why(document)
