"""From the command line to variables, executor settings and budgets."""

from __future__ import annotations

import click
import pytest

from gristmill.cli.run import Assignments, error_budget_option, read_recipe, read_settings
from gristmill.errors import RecipeError


def test_values_are_yaml() -> None:
    found = read_settings(["a=3", "b='3'", "c=no", "d=[x, 1]", "e=", "f=x=y", "g=1e-3"])
    assert found.variables == {"a": 3, "b": "3", "c": "no", "d": ["x", 1], "e": None, "f": "x=y", "g": 0.001}
    assert found.executor == {}


def test_executor_settings_are_apart() -> None:
    found = read_settings(["executor.num_cpus=2", "x=1"])
    assert found == Assignments({"x": 1}, {"num_cpus": 2})


def test_positional_paths_are_text_as_given() -> None:
    assert read_settings([], ("007", "out")).variables == {"input_path": "007", "output_path": "out"}


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        (["a"], "expected KEY=VALUE"),
        (["=1"], "expected KEY=VALUE"),
        (["a=1", "a=2"], "'a' is set twice"),
        (["executor.x=1", "executor.x=2"], "'executor.x' is set twice"),
        (["input_path=y"], "'input_path' is set twice"),
    ],
)
def test_refused(settings: list[str], part: str) -> None:
    with pytest.raises(click.UsageError, match=part):
        read_settings(settings, ["in"])


def test_a_value_that_is_no_yaml() -> None:
    with pytest.raises(RecipeError, match=r"--set a, line 1.*not valid YAML"):
        read_settings(["a=[1"])


def read_error_budget(text: str) -> float | int | None:
    """What a command with `--error-budget` gets."""
    command = click.command("any")(error_budget_option(lambda error_budget: error_budget))
    found: float | int | None = command.main(["--error-budget", text], standalone_mode=False)
    return found


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("0.5", 0.5),
        ("1.0", 1.0),
        ("1", 1),
        ("0", 0),
        ("50", 50),
        ("50%", 0.5),
        ("2.5%", 0.025),
        ("1e-3", 0.001),
        ("none", None),
    ],
)
def test_error_budget(text: str, budget: float | int | None) -> None:
    found = read_error_budget(text)
    assert found == budget
    assert type(found) is type(budget)


@pytest.mark.parametrize("text", ["-1", "1.5", "150%", "5%%", "%", "nan", "inf", ""])
def test_error_budget_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        read_error_budget(text)


def test_a_shipped_recipe_by_name() -> None:
    recipe = read_recipe("web", Assignments({"input_path": "in", "output_path": "out"}))
    assert recipe.name == "web"
    assert recipe.stages[-1].parameters == {"path": "out"}
