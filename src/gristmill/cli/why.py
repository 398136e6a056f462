"""`gristmill why`: tells what became of one document."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from gristmill.cli.edge import common_options, json_option, print_json


@click.command("why")
@click.argument("output")
@click.argument("document", metavar="ID_OR_URL")
@json_option
@common_options
def command(output: str, document: str, as_json: bool) -> None:
    """Tell what became of a document.

    Kept or not, by which stage, its score against the threshold, and what was changed in it.

    \b
    gristmill why clean/ doc-17
    gristmill why clean/ https://example.org/page
    """
    answer = ask(output, document)
    if as_json:
        print_json(dataclasses.asdict(answer))
    else:
        click.echo(str(answer))


def ask(output: str, document: str) -> Any:
    """The answer of the ledger."""
    from gristmill.ledger.ledger import Ledger

    return Ledger(output).why(document)
