"""`gristmill`: what all commands share, and how errors become messages and exit codes.

Only the module of the requested command is imported, so that `--help` and `--version` respond quickly.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import shlex
import shutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from gristmill import __version__
from gristmill.errors import (
    GristmillError,
    MissingColumnError,
    PlanningError,
    RecipeError,
    UnknownNameError,
    UsageError,
    did_you_mean,
    explained_import,
)
from gristmill.figures import printable

COMMANDS = {
    "card": "card:command",
    "classifier": "classifier:command",
    "contamination": "decontaminate:contamination",
    "crawl": "crawl:command",
    "decontaminate": "decontaminate:command",
    "dedup": "dedup:command",
    "demo": "demo:command",
    "diff": "diff:command",
    "doctor": "doctor:command",
    "mix": "mix:command",
    "index": "index:command",
    "monitor": "monitor:command",
    "plan": "plan:command",
    "quarantine": "quarantine:command",
    "recipes": "catalog:recipes",
    "replay": "replay:command",
    "report": "report:command",
    "rethreshold": "rethreshold:command",
    "run": "run:command",
    "show": "show:command",
    "shuffle": "shuffle:command",
    "split": "split:command",
    "stages": "catalog:stages",
    "stats": "stats:command",
    "tokens": "tokens:command",
    "verify": "verify:command",
    "view": "view:command",
    "why": "why:command",
}
"""Name → module of this folder and the command in it."""

DONE = 0
FAILED = 1
USAGE = 2
QUARANTINED = 3
INTERRUPTED = 130

_RESUMES = "gristmill.resumes"
_ARGUMENTS = "gristmill.arguments"
"""Where a context keeps the whole command line: the options that decide how errors are shown apply even if other
arguments are invalid."""

common_options = click.option(
    "--traceback", is_flag=True, expose_value=False, help="Show the full traceback on errors."
)
"""Options that every command has."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print a single JSON object to stdout.")
"""`--json` for commands that support JSON output."""


record_option = click.option(
    "--record", "record_path", metavar="FOLDER", help="Folder with the run's record [default: OUTPUT.gristmill]."
)
"""`--record` for commands that take the output of a run."""


def echo(text: str = "", *, err: bool = False, nl: bool = True) -> None:
    """Print `text` without terminal control sequences."""
    click.echo(printable(text), err=err, nl=nl)


def print_json(value: Any) -> None:
    """Write `value` to stdout as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=sys.stdout.isatty(), default=str))


def program() -> str:
    """How to invoke this command from the current folder: as it was invoked, if it is not on the PATH."""
    called = sys.argv[0]
    if called.endswith(os.path.join("gristmill", "__main__.py")):
        return f"{shlex.quote(sys.executable)} -m gristmill"
    found = shutil.which("gristmill")
    if os.path.basename(called) != "gristmill" or (found and os.path.realpath(found) == os.path.realpath(called)):
        return "gristmill"
    return shlex.quote(called)


def marks_resumable() -> None:
    """From here on, running an interrupted command again resumes it."""
    click.get_current_context().meta[_RESUMES] = True


@contextmanager
def before_the_run() -> Iterator[None]:
    """Report invalid values found in this block as usage errors (exit code 2)."""
    try:
        yield
    except (UsageError, UnknownNameError) as error:
        raise RecipeError(error.message, problems=[error.message]) from error


class LazyGroup(click.Group):
    """A group whose commands are imported on demand."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, by name."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command; a misspelt name gets a suggestion."""
        if cmd_name not in COMMANDS:
            ctx.fail(f"Unknown command {cmd_name!r}.{did_you_mean(cmd_name, COMMANDS)}")
        module, attribute = COMMANDS[cmd_name].split(":")
        command: click.Command = getattr(importlib.import_module(f"gristmill.cli.{module}"), attribute)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options of the group; those of the command come later."""
        ctx.meta[_ARGUMENTS] = args[: args.index("--")] if "--" in args else list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> object:
        """Run the command and turn errors into a message and an exit code."""
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            _answer(ctx, "failed", error)
            raise
        except (click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            resume = " Run the same command again to resume." if ctx.meta.get(_RESUMES) else ""
            click.echo(f"Interrupted.{resume}", err=True)
            _answer(ctx, "interrupted", None)
            ctx.exit(INTERRUPTED)
        except (GristmillError, ModuleNotFoundError) as raised:
            told = explained_import(raised)
            _show(ctx, told, error_block(told) if isinstance(told, GristmillError) else unexpected_block(told))
            ctx.exit(USAGE if _is_wrong_use(told) else FAILED)
        except OSError as error:
            if error.errno == errno.EPIPE:  # the reader of the output has gone: click exits quietly
                raise
            _show(ctx, error, f"Error: {_limit(error) or error}")
            ctx.exit(FAILED)
        except Exception as error:  # the outermost handler: no caller could explain it
            limit = _limit(error)
            _show(ctx, error, unexpected_block(error) if limit is None else f"Error: {limit}")
            ctx.exit(FAILED)


def _limit(error: BaseException) -> str | None:
    from gristmill.cli.limits import limit_sentence

    return limit_sentence(error)


def _is_wrong_use(error: BaseException) -> bool:
    """Whether the command or recipe is invalid for any input."""
    return isinstance(error, RecipeError | PlanningError) and not isinstance(error, MissingColumnError)


def error_block(error: GristmillError) -> str:
    """The message, after the traceback of the user's own code if the error carries one."""
    own = getattr(error, "user_traceback", None) or getattr(error, "traceback", None)
    lines = []
    if isinstance(own, str) and own.strip() and own.strip() not in error.message:
        lines.append(own.rstrip())
    lines.append(f"Error: {error.message}")
    notes = getattr(error, "__notes__", [])
    return "\n".join([*lines, *notes])


def unexpected_block(error: BaseException) -> str:
    """An unexpected error: what it is, where it happened, and how to see more."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return (
        f"Unexpected error: {type(error).__name__}: {error}{where}\n"
        "This is a bug in Gristmill or in one of your stages. Run again with --traceback to see where it comes from."
    )


def _show(ctx: click.Context, error: BaseException, block: str) -> None:
    if "--traceback" in ctx.meta.get(_ARGUMENTS, ()):
        echo("".join(traceback.format_exception(error)), err=True, nl=False)
    else:
        echo(block, err=True)
    _answer(ctx, "failed", error)


def _answer(ctx: click.Context, status: str, error: BaseException | None) -> None:
    """With --json, always write an answer to stdout."""
    if "--json" in ctx.meta.get(_ARGUMENTS, ()):
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        found = {"type": type(error).__name__, "message": message} if error is not None else None
        print_json({"status": status, "error": found})
        sys.stdout.flush()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="gristmill", message="%(prog)s %(version)s")
def cli() -> None:
    """Curate text for training language models.

    Exit codes: 0 success, 1 failure, 2 usage error (command line or recipe), 3 success with quarantined records,
    130 interrupted.
    """


def main() -> None:
    """Run the command line in a prepared process (see `entry`)."""
    cli(prog_name="gristmill")


if __name__ == "__main__":
    main()
