"""`gristmill`: finds the command by its name and imports only that one, so that help and version come at once."""

from __future__ import annotations

import gc
import importlib

import click

from gristmill import __version__
from gristmill.cli.edge import edge, note_json

COMMANDS = {
    "classifier": "classifier",
    "dedup": "dedup",
    "demo": "demo",
    "diff": "diff",
    "plan": "plan",
    "quarantine": "quarantine",
    "recipes": "recipes",
    "replay": "replay",
    "run": "run",
    "split": "split",
    "stages": "stages",
    "verify": "verify",
    "why": "why",
}
"""Name → module of this folder, whose object `command` is the command."""

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, by name."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, or None if there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"gristmill.cli.{COMMANDS[cmd_name]}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the arguments name; a near miss gets a suggestion."""
        from gristmill.errors import did_you_mean

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"There is no command {args[0]!r}.{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Take the options of the group; those of the command come later."""
        note_json(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and turn what goes wrong into a message and an exit code."""
        with edge(ctx):
            return super().invoke(ctx)


@click.group(cls=LazyGroup, context_settings=CONTEXT)
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
