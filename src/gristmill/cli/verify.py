"""`gristmill verify`: verifies a finished run from its files."""

from __future__ import annotations

import dataclasses

import click

from gristmill.cli.main import DONE, FAILED, common_options, echo, json_option, print_json, record_option


@click.command("verify")
@click.argument("output")
@record_option
@json_option
@common_options
@click.pass_context
def command(ctx: click.Context, output: str, record_path: str | None, as_json: bool) -> None:
    """Verify that an output is complete and unchanged.

    Uses only the files of OUTPUT and its record: hashes and row counts match, every input row is accounted for, and
    there are no stray files. Exits with 1 and lists the problems if there are any.
    """
    from gristmill.ledger.prove.verify import verify

    found = verify(output, record_path=record_path)
    if as_json:
        print_json({"ok": found.ok, **dataclasses.asdict(found)})
    else:
        echo(str(found))
    ctx.exit(DONE if found.ok else FAILED)
