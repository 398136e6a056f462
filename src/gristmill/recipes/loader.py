"""Recipes: read from YAML, checked whole before anything runs, turned into pipelines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from gristmill.errors import RecipeError, UnknownNameError, did_you_mean
from gristmill.recipes.registry import registered
from gristmill.recipes.variables import is_variable_name, substitute, used_variables
from gristmill.recipes.yaml_source import Path, Source, dump_yaml, parse_yaml

if TYPE_CHECKING:
    from gristmill.pipeline import Pipeline

KEYS = ("name", "description", "variables", "stages", "executor")
EXECUTOR_KEYS = ("name", "config")


@dataclass(frozen=True, slots=True)
class StageEntry:
    """One item under `stages:`, its variables replaced."""

    name: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A pipeline as data.

    Attributes:
        name: What the pipeline is called.
        description: What it is for.
        stages: Its stages in order.
        executor: The executor it asks for, if it does.
        executor_config: Settings for that executor.
        variables: The value of each variable.
        source: The text it came from; only used in messages.
    """

    name: str
    stages: tuple[StageEntry, ...]
    description: str | None = None
    executor: str | None = None
    executor_config: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    source: Source = field(default_factory=lambda: Source(None, "recipe"), compare=False, repr=False)

    def pipeline(self) -> Pipeline:
        """The pipeline, ready to run.

        Raises:
            RecipeError: A name or a parameter is wrong; lists everything that is.
        """
        from gristmill.pipeline import Pipeline
        from gristmill.recipes.building import build_stage

        problems = _Problems(self.source)
        stages = []
        for place, entry in enumerate(self.stages):
            here = problems.at(("stages", place, entry.name), entry.name)
            try:
                known = registered(entry.name)
            except UnknownNameError as error:
                here((), error.message)
                continue
            stage = build_stage(known, entry.parameters, report=here)
            if stage is not None:
                stages.append(stage)
        problems.raise_if_any()
        return Pipeline(
            name=self.name, description=self.description, stages=stages, config={"variables": self.plain_variables()}
        )

    def plain_variables(self) -> dict[str, Any]:
        """The variables that may be written down: no secrets, and not where the input and the output are."""
        return {
            name: value
            for name, value in sorted(self.variables.items())
            if name not in ("input_path", "output_path") and "token" not in name.split("_")
        }

    def without_secrets(self) -> Recipe:
        """A copy that can be kept beside the output: values of parameters that hold a token are left out."""
        stages = tuple(
            replace(
                entry,
                parameters={
                    key: None if "token" in key.split("_") else value for key, value in entry.parameters.items()
                },
            )
            for entry in self.stages
        )
        return replace(self, stages=stages)

    def to_yaml(self) -> str:
        """The recipe as text that `parse_recipe` reads; values stand in the place of variables."""
        whole: dict[str, Any] = {"name": self.name}
        if self.description:
            whole["description"] = self.description
        whole["stages"] = [
            {entry.name: _escaped(dict(entry.parameters))} if entry.parameters else entry.name for entry in self.stages
        ]
        if self.executor:
            whole["executor"] = {"name": self.executor, "config": _escaped(dict(self.executor_config))}
        return dump_yaml(whole)


def load_recipe(path: str | FilePath, *, variables: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe in a file.

    Args:
        path: The YAML file.
        variables: Values that take precedence over the recipe's defaults.

    Raises:
        RecipeError: The file is missing or is not a recipe; lists everything that is wrong.
    """
    try:
        text = FilePath(path).read_text(encoding="utf-8-sig")
    except OSError as error:
        message = f"Cannot read the recipe {str(path)!r}: {error.strerror or error}."
        raise RecipeError(message, problems=[message]) from error
    except UnicodeDecodeError as error:
        message = f"The recipe {str(path)!r} is not UTF-8 text: {error.reason} at byte {error.start}."
        raise RecipeError(message, problems=[message]) from error
    return parse_recipe(text, origin=str(path), variables=variables)


def parse_recipe(text: str, *, origin: str = "recipe", variables: Mapping[str, Any] | None = None) -> Recipe:
    r"""The recipe in a text.

    Args:
        text: YAML with `name`, `stages` and, if wanted, `description`, `variables` and `executor`.
        origin: How error messages call the text.
        variables: Values that take precedence over the recipe's defaults.

    Raises:
        RecipeError: The text is not a recipe; lists everything that is wrong.

    Example:
        >>> recipe = parse_recipe(
        ...     "name: copy\nstages:\n- JsonlReader: {file_paths: '${input_path}'}", variables={"input_path": "docs/"}
        ... )
        >>> recipe.stages[0].parameters
        {'file_paths': 'docs/'}
    """
    source = parse_yaml(text, origin=origin)
    problems = _Problems(source)
    whole = source.value
    if not isinstance(whole, dict):
        problems.add((), "a recipe is a mapping with 'name:' and 'stages:'.")
        problems.raise_if_any()
    for key in whole:
        if key not in KEYS:
            problems.add((key,), f"unknown key {key!r}.{did_you_mean(key, KEYS)} A recipe has: {', '.join(KEYS)}.")
    known = _variables(whole, variables or {}, problems)
    spare = set(known) - used_variables(whole)
    plain = {
        key: substitute(whole[key], known, path=(key,), report=problems.add, spare=spare)
        for key in ("name", "description", "stages", "executor")
        if key in whole
    }
    name = _text(plain, "name", problems) or FilePath(origin).stem
    description = _text(plain, "description", problems)
    stages = _stages(plain.get("stages"), problems)
    executor, config = _executor(plain.get("executor"), problems)
    problems.raise_if_any()
    return Recipe(name, stages, description, executor, config, known, source)


class _Problems:
    """Collects what is wrong, so that a user sees all of it at once."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._found: list[tuple[int, str]] = []

    def add(self, path: Path, message: str) -> None:
        line = self._source.lines.get(path, 0)
        self._found.append((line, f"{self._source.where(path)}: {message}"))

    def at(self, start: Path, name: str) -> Any:
        """A reporter for problems inside the stage at `start`."""

        def add(path: Path, message: str) -> None:
            self.add((*start, *path), f"{name}: {message}")

        return add

    def raise_if_any(self) -> None:
        if not self._found:
            return
        messages = [message for _, message in self._found]
        head = f"{len(messages)} problems in the recipe:\n" if len(messages) > 1 else ""
        raise RecipeError(head + "\n".join(messages), problems=messages)


def _variables(whole: Mapping[str, Any], given: Mapping[str, Any], problems: _Problems) -> dict[str, Any]:
    defaults = whole.get("variables") or {}
    if not isinstance(defaults, dict):
        problems.add(("variables",), "'variables' must be a mapping of names to defaults.")
        defaults = {}
    for name in defaults:
        if not is_variable_name(name):
            problems.add(
                ("variables", name), f"{name!r} is no name for a variable: use letters, digits and underscores."
            )
    for name in used_variables(defaults):
        problems.add(("variables",), f"a default cannot use another variable (${{{name}}}).")
    used = used_variables({key: value for key, value in whole.items() if key != "variables"})
    choice = sorted(used | set(defaults))
    for name in given:
        if name not in choice:
            has = f"It has: {', '.join(choice)}." if choice else "It has no variables."
            problems.add((), f"there is no variable {name!r} in this recipe.{did_you_mean(name, choice)} {has}")
    return {**defaults, **given}


def _text(plain: Mapping[str, Any], key: str, problems: _Problems) -> str | None:
    value = plain.get(key)
    if value is None or isinstance(value, str):
        return value
    problems.add((key,), f"{key!r} must be text, found {value!r}.")
    return None


def _stages(items: Any, problems: _Problems) -> tuple[StageEntry, ...]:
    if not isinstance(items, list) or not items:
        problems.add(("stages",), "'stages' must be a list with at least one '- StageName: {parameters}'.")
        return ()
    entries = []
    for place, item in enumerate(items):
        path: Path = ("stages", place)
        if isinstance(item, str):
            entries.append(StageEntry(item))
            continue
        if not isinstance(item, dict) or len(item) != 1:
            problems.add(path, "a stage is '- StageName: {parameters}'; parameters go below it, further to the right.")
            continue
        ((name, parameters),) = item.items()
        if parameters is not None and not isinstance(parameters, dict):
            problems.add((*path, name), f"{name}: the parameters must be a mapping, 'name: value'.")
            continue
        entries.append(StageEntry(name, parameters or {}))
    return tuple(entries)


def _executor(value: Any, problems: _Problems) -> tuple[str | None, Mapping[str, Any]]:
    if value is None or isinstance(value, str):
        return value, {}
    if not isinstance(value, dict):
        problems.add(("executor",), "'executor' must be a name, or a mapping with 'name' and 'config'.")
        return None, {}
    for key in value:
        if key not in EXECUTOR_KEYS:
            problems.add(("executor", key), f"unknown key {key!r}.{did_you_mean(key, EXECUTOR_KEYS)}")
    name, config = value.get("name"), value.get("config")
    if name is not None and not isinstance(name, str):
        problems.add(("executor", "name"), f"the executor's name must be text, found {name!r}.")
        name = None
    if config is not None and not isinstance(config, dict):
        problems.add(("executor", "config"), "the executor's config must be a mapping.")
        config = None
    return name, config or {}


def _escaped(value: Any) -> Any:
    """`value` with every `${` written so that reading it gives the same text back."""
    if isinstance(value, str):
        return value.replace("${", "$${")
    if isinstance(value, Mapping):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(item) for item in value]
    return value
