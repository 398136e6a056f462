"""What `run`, `plan` and `demo` share: from the command line to a recipe, its variables and its executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gristmill.backends.registry import executor_names
from gristmill.cli.edge import before_the_run
from gristmill.errors import RecipeError

if TYPE_CHECKING:
    from gristmill.backends.base import BaseExecutor
    from gristmill.recipes import Recipe

F = TypeVar("F", bound=Callable[..., Any])

EXECUTOR_PREFIX = "executor."


@dataclass(frozen=True, slots=True)
class Assignments:
    """The values of `--set`: some for variables of the recipe, some for the executor."""

    variables: dict[str, Any]
    executor: dict[str, Any]


def recipe_arguments(command: F) -> F:
    """`RECIPE [INPUT] [OUTPUT]` and `--set`."""
    for decorate in (
        click.option(
            "--set",
            "settings",
            multiple=True,
            metavar="KEY=VALUE",
            help="Set a variable of the recipe, or with executor.KEY=VALUE a setting of the executor. "
            "The value is read as YAML: 3 is a number, '3' is text. May be repeated.",
        ),
        click.argument("output_path", metavar="[OUTPUT]", required=False),
        click.argument("input_path", metavar="[INPUT]", required=False),
        click.argument("recipe", metavar="RECIPE"),
    ):
        command = decorate(command)
    return command


def executor_options(command: F) -> F:
    """`--executor`, `--workers` and `--memory-budget`."""
    for decorate in (
        click.option("--memory-budget", metavar="SIZE", help="Memory of the local executor, such as 4GB."),
        click.option(
            "--workers",
            type=click.IntRange(min=0),
            metavar="N",
            help="Processors that the local executor may use; 0 runs everything in the calling process.",
        ),
        click.option(
            "--executor",
            metavar="NAME",
            help=f"Where to run: {', '.join(sorted(executor_names()))} [default: local].",
        ),
    ):
        command = decorate(command)
    return command


def ledger_options(command: F) -> F:
    """`--id-field`, `--url-field` and `--scores`: what the ledger of an output holds."""
    for decorate in (
        click.option(
            "--scores",
            type=click.Choice(["decisive", "all"]),
            default="decisive",
            show_default=True,
            help="Keep the score that decided, or every score of every document.",
        ),
        click.option("--url-field", default="url", show_default=True, help="The column with their addresses."),
        click.option("--id-field", default="id", show_default=True, help="The column with the documents' ids."),
    ):
        command = decorate(command)
    return command


def read_settings(settings: Sequence[str], input_path: str | None, output_path: str | None) -> Assignments:
    """The assignments of `--set`, and the two positional ones.

    Raises:
        click.UsageError: One has no `=`, or a variable is set twice.
        RecipeError: A value is not YAML.
    """
    from gristmill.recipes.yaml_source import parse_scalar_text

    found = Assignments({}, {})
    for name, value in (("input_path", input_path), ("output_path", output_path)):
        if value is not None:
            found.variables[name] = value
    for setting in settings:
        key, sign, text = setting.partition("=")
        key = key.strip()
        if not sign or not key:
            raise click.UsageError(f"--set {setting!r}: write KEY=VALUE, such as --set text_field=content.")
        value = parse_scalar_text(text, origin=f"--set {key}")
        if key.startswith(EXECUTOR_PREFIX):
            target, name = found.executor, key.removeprefix(EXECUTOR_PREFIX)
        else:
            target, name = found.variables, key
        if name in target:
            raise click.UsageError(f"{key!r} is set twice.")
        target[name] = value
    return found


def read_recipe(recipe: str, assignments: Assignments) -> Recipe:
    """The recipe that is meant by a path or a shipped name, with its variables set."""
    from gristmill.recipes import load_recipe
    from gristmill.recipes.shipped_recipes import find_recipe

    path = find_recipe(recipe)
    try:
        return load_recipe(path, variables=assignments.variables)
    except RecipeError as error:
        if any(f"variable {name!r} has no value" in error.message for name in ("input_path", "output_path")):
            context = click.get_current_context(silent=True)
            name = "run" if context is None else context.info_name
            error.add_note(f"Give input and output after the recipe: gristmill {name} {recipe} INPUT OUTPUT")
        raise


def choose_executor(
    recipe: Recipe,
    assignments: Assignments,
    *,
    executor: str | None,
    workers: int | None,
    memory_budget: str | None,
) -> BaseExecutor:
    """The executor that the command line asks for, else the recipe's, else the local one."""
    from gristmill.backends.registry import get_executor

    name = executor or recipe.executor or "local"
    # Settings of another executor in the recipe would be unknown ones here.
    config = dict(recipe.executor_config) if name == (recipe.executor or "local") else {}
    config.update(assignments.executor)
    for option, key, value in (
        ("--workers", "num_cpus", workers),
        ("--memory-budget", "memory_budget", memory_budget),
    ):
        if value is None:
            continue
        if name != "local":
            raise click.UsageError(f"{option} is for the local executor; use --set executor.KEY=VALUE for {name!r}.")
        config[key] = value
    with before_the_run():
        chosen: BaseExecutor = get_executor(name, config)
    return chosen


def error_budget_option(command: F) -> F:
    """`--error-budget`: a share, a count or `none`."""
    return click.option(
        "--error-budget",
        default="0.01",
        show_default=True,
        metavar="SHARE|COUNT",
        callback=lambda ctx, param, value: read_error_budget(value),
        help="Records that may be quarantined before the run fails: a share such as 0.01, a count such as 50, "
        "or 'none' for no limit.",
    )(command)


def read_error_budget(text: str) -> float | int | None:
    """The budget as `Pipeline.run` takes it: a float is a share, an int a count."""
    if text.lower() == "none":
        return None
    try:
        number: float | int = int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither a share such as 0.01 nor a count such as 50.") from None
    if not 0 <= number < float("inf") or (isinstance(number, float) and number > 1):
        raise click.BadParameter(f"{text} is out of range: a share lies between 0.0 and 1.0, a count is 0 or more.")
    return number
