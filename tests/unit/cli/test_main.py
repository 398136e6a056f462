"""The command line as a whole: names, help, errors and exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable

import click
import pytest
from click.testing import CliRunner, Result

from gristmill.cli.main import COMMANDS, LazyGroup, cli, common_options, error_block, json_option, marks_resumable
from gristmill.errors import InputNotFoundError, MissingColumnError, PlanningError, RecipeError, StageFailedError


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_version() -> None:
    assert run("--version").output.startswith("gristmill ")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_every_command(flag: str) -> None:
    shown = run(flag).output
    assert all(f"\n  {name} " in shown for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"gristmill {name}" in result.output.replace("cli ", "gristmill ")


def test_a_misspelt_command_gets_a_suggestion() -> None:
    result = run("verfy")
    assert result.exit_code == 2
    assert "Unknown command 'verfy'. Did you mean 'verify'?" in result.stderr
    assert result.stdout == ""


def failing(error: Callable[[], BaseException], *arguments: str, begun: bool = True) -> Result:
    """The result of a command that raises `error`, by default after it has begun to work."""

    @click.command("fail")
    @json_option
    @common_options
    def fail(as_json: bool) -> None:
        if begun:
            marks_resumable()
        raise error()

    class Group(LazyGroup):
        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            return fail

    return CliRunner().invoke(Group(name="test"), ["run", *arguments])


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (lambda: InputNotFoundError("No such file."), 1, "Error: No such file.\n"),
        (lambda: RecipeError("Wrong recipe."), 2, "Error: Wrong recipe.\n"),
        (lambda: PlanningError("No reader."), 2, "Error: No reader.\n"),
        (lambda: MissingColumnError("No column 'text'."), 1, "Error: No column 'text'.\n"),
        (lambda: OSError(13, "Permission denied", "x"), 1, "Error: [Errno 13] Permission denied: 'x'\n"),
        (KeyboardInterrupt, 130, "Interrupted. Run the same command again to resume.\n"),
    ],
)
def test_errors_are_one_block(error: Callable[[], BaseException], code: int, shown: str) -> None:
    result = failing(error)
    assert result.exit_code == code
    assert result.stderr == shown
    assert result.stdout == ""


def test_an_unexpected_error_says_where_and_how_to_see_more() -> None:
    result = failing(lambda: ZeroDivisionError("division by zero"))
    assert result.exit_code == 1
    assert "Unexpected error: ZeroDivisionError: division by zero" in result.stderr
    assert "--traceback" in result.stderr
    assert "Traceback (most recent" not in result.stderr


@pytest.mark.parametrize("error", [lambda: InputNotFoundError("No such file."), lambda: ZeroDivisionError("x")])
def test_traceback_on_request(error: Callable[[], BaseException]) -> None:
    result = failing(error, "--traceback")
    assert result.exit_code == 1
    assert "Traceback (most recent call last)" in result.stderr
    assert "raise error()" in result.stderr


def test_json_answers_in_any_case() -> None:
    result = failing(lambda: InputNotFoundError("No such file."), "--json")
    assert json.loads(result.stdout) == {
        "status": "failed",
        "error": {"type": "InputNotFoundError", "message": "No such file."},
    }
    assert json.loads(failing(KeyboardInterrupt, "--json").stdout) == {"status": "interrupted", "error": None}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "--json"], "RECIPE"),
        (["verify", "out", "--color", "--json"], "--color"),
        (["vrify", "--json"], "verify"),
    ],
)
def test_json_answers_wrong_use_too(arguments: list[str], words: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["status"] == "failed"
    assert words in answer["error"]["message"]


def test_an_interrupt_before_the_run_promises_nothing() -> None:
    result = failing(KeyboardInterrupt, begun=False)
    assert (result.exit_code, result.stderr) == (130, "Interrupted.\n")


def test_errors_of_click_keep_their_own_form() -> None:
    result = failing(lambda: click.UsageError("two at once"))
    assert result.exit_code == 2
    assert "Error: two at once" in result.stderr


def test_a_users_traceback_comes_first_and_once() -> None:
    trace = 'Traceback (most recent call last):\n  File "mine.py", line 3\nValueError: odd'
    apart = error_block(StageFailedError("Stage 'x' failed.", traceback=trace))
    assert apart == f"{trace}\nError: Stage 'x' failed."
    inside = error_block(StageFailedError(f"Stage 'x' failed.\n\n{trace}", traceback=trace))
    assert inside.count("ValueError: odd") == 1


def test_notes_are_shown() -> None:
    error = InputNotFoundError("No such file.")
    error.add_note("It was there yesterday.")
    assert error_block(error) == "Error: No such file.\nIt was there yesterday."
