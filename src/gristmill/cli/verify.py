"""`gristmill verify`: proves a finished run from its files."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from gristmill.cli.edge import DONE, FAILED, common_options, json_option, print_json

if TYPE_CHECKING:
    from gristmill.ledger.prove.verify import VerifyReport


@click.command("verify")
@click.argument("output")
@json_option
@common_options
@click.pass_context
def command(ctx: click.Context, output: str, as_json: bool) -> None:
    """Prove that an output is complete.

    From the files in OUTPUT alone: hashes and row counts agree, every input row is accounted for, and nothing else
    lies there. Exits with 1 and says what is wrong if anything is.
    """
    found = check(output)
    if as_json:
        print_json({"ok": found.ok, **dataclasses.asdict(found)})
    else:
        click.echo(str(found))
    ctx.exit(DONE if found.ok else FAILED)


def check(output: str) -> VerifyReport:
    """The findings of `gristmill.ledger.prove.verify`."""
    from gristmill.ledger.prove.verify import verify

    return verify(output)
