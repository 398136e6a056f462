"""The edge of the command line: what every command shares, and how errors become messages and exit codes."""

from __future__ import annotations

import errno
import json
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from gristmill.errors import (
    GristmillError,
    MissingColumnError,
    PlanningError,
    RecipeError,
    UnknownNameError,
    UsageError,
)

DONE = 0
FAILED = 1
USAGE = 2
QUARANTINED = 3
INTERRUPTED = 130

_RESUMES = "gristmill.resumes"
ARGUMENTS = "gristmill.arguments"
"""Where a context keeps the whole command line: the options that decide how errors are shown count in any case, also
where other arguments are wrong."""

common_options = click.option(
    "--traceback", is_flag=True, expose_value=False, help="On an error, show the whole traceback."
)
"""Options that every command has."""

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object on stdout and nothing else there."
)
"""`--json` for commands that can answer in JSON."""


def print_json(value: Any) -> None:
    """Write `value` to stdout as one line of JSON."""
    click.echo(json.dumps(value, ensure_ascii=False, default=str))


def marks_resumable() -> None:
    """From here on an interrupted command can be taken up by running it again."""
    click.get_current_context().meta[_RESUMES] = True


@contextmanager
def before_the_run() -> Iterator[None]:
    """Wrong values that are found in here are wrong use: exit code 2."""
    try:
        yield
    except (UsageError, UnknownNameError) as error:
        raise RecipeError(error.message, problems=[error.message]) from error


@contextmanager
def edge(ctx: click.Context) -> Iterator[None]:
    """Turns every error that leaves a command into one block on stderr and an exit code."""
    try:
        yield
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
    except GristmillError as error:
        _show(ctx, error, error_block(error))
        ctx.exit(USAGE if _is_wrong_use(error) else FAILED)
    except OSError as error:
        if error.errno == errno.EPIPE:  # the reader of our output has left: click ends quietly
            raise
        _show(ctx, error, f"Error: {error}")
        ctx.exit(FAILED)
    except Exception as error:  # the outermost edge: nobody above could explain it
        _show(ctx, error, unexpected_block(error))
        ctx.exit(FAILED)


def _is_wrong_use(error: GristmillError) -> bool:
    """Whether the command or the recipe could not have worked on any input."""
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


def unexpected_block(error: Exception) -> str:
    """An error that nobody meant to raise: what it is, where, and how to see more."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return (
        f"Unexpected error: {type(error).__name__}: {error}{where}\n"
        "This is a fault in Gristmill or in a stage of yours. Run again with --traceback to see where it comes from."
    )


def _show(ctx: click.Context, error: BaseException, block: str) -> None:
    if "--traceback" in ctx.meta.get(ARGUMENTS, ()):
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    else:
        click.echo(block, err=True)
    _answer(ctx, "failed", error)


def _answer(ctx: click.Context, status: str, error: BaseException | None) -> None:
    """With --json there is an answer on stdout in any case."""
    if "--json" in ctx.meta.get(ARGUMENTS, ()):
        message = error.format_message() if isinstance(error, click.ClickException) else str(error)
        found = {"type": type(error).__name__, "message": message} if error is not None else None
        print_json({"status": status, "error": found})
        sys.stdout.flush()
