"""`gristmill verify`: proves a finished run from its files."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from gristmill.cli.edge import DONE, FAILED, common_options, json_option, print_json


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
        print_json(dataclasses.asdict(found))
    elif found.ok:
        click.echo(f"{output} is complete: every file and every row is accounted for.")
    else:
        for problem in found.problems:
            click.echo(f"- {problem}")
        click.echo(
            f"{len(found.problems)} problems in {output}." if len(found.problems) > 1 else f"1 problem in {output}."
        )
    ctx.exit(DONE if found.ok else FAILED)


def check(output: str) -> Any:
    """The findings of `gristmill.ledger.verify`."""
    from gristmill.ledger.verify import verify

    return verify(output)
