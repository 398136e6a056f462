"""`gristmill`: finds the command by its name and imports only that one, so that help and version come at once."""

from __future__ import annotations

import gc
import importlib

import click

from gristmill import __version__
from gristmill.cli.edge import ARGUMENTS, edge
from gristmill.errors import did_you_mean

COMMANDS = {
    "classifier": "classifier:command",
    "dedup": "dedup:command",
    "demo": "demo:command",
    "diff": "diff:command",
    "plan": "run:plan",
    "quarantine": "quarantine:command",
    "recipes": "catalog:recipes",
    "replay": "replay:command",
    "run": "run:command",
    "split": "split:command",
    "stages": "catalog:stages",
    "verify": "verify:command",
    "why": "why:command",
}
"""Name → module of this folder and the command in it."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, by name."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; a near miss gets a suggestion."""
        if cmd_name not in COMMANDS:
            ctx.fail(f"There is no command {cmd_name!r}.{did_you_mean(cmd_name, COMMANDS)}")
        module, attribute = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(f"gristmill.cli.{module}"), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the options of the group; those of the command come later."""
        ctx.meta[ARGUMENTS] = args[: args.index("--")] if "--" in args else list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and turn what goes wrong into a message and an exit code."""
        with edge(ctx):
            return super().invoke(ctx)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gristmill", message="%(prog)s %(version)s")
def cli() -> None:
    """Curate text for training language models.

    Exit codes: 0 done, 1 failed, 2 wrong use (command line or recipe), 3 done with quarantined records,
    130 interrupted.
    """


def main() -> None:
    """The entry point of the installed command."""
    # Imports make no garbage worth looking for, and looking takes a tenth of a small job.
    gc.disable()
    cli(prog_name="gristmill")


if __name__ == "__main__":
    main()
