"""From an entry of a recipe to a stage: parameters checked, filters and modifiers wrapped, settings applied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gristmill.errors import GristmillError
from gristmill.recipes.registry import FILTER, MODIFIER, Registered
from gristmill.recipes.schema import Parameter, check_parameters, parameters_of
from gristmill.recipes.yaml_source import Path
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources

Stage = ProcessingStage[Any, Any]
Report = Callable[[Path, str], None]

SETTINGS_KEY = "with"
"""The key for settings that every stage has; no parameter can have this name, since Python reserves it."""


def filter_options(*, text_field: str = "text", score_field: str | None = None, invert: bool = False) -> None:
    """What a filter takes in a recipe beside its own parameters."""


def modifier_options(*, input_fields: str = "text", output_fields: str | None = None) -> None:
    """What a modifier takes in a recipe beside its own parameters."""


def stage_settings(
    *,
    name: str | None = None,
    resources: Resources | None = None,
    batch_size: int | None = None,
    num_workers: int | None = None,
    time_limit_s: float | None = None,
) -> None:
    """What every stage takes under `with:`."""


OPTIONS: Mapping[str, Callable[..., None]] = {FILTER: filter_options, MODIFIER: modifier_options}


def recipe_parameters(entry: Registered) -> dict[str, Parameter]:
    """Everything that `entry` takes in a recipe: its own parameters, then those of what wraps it."""
    own = parameters_of(entry.load())
    extra = parameters_of(OPTIONS[entry.kind]) if entry.kind in OPTIONS else {}
    return {**own, **{name: parameter for name, parameter in extra.items() if name not in own}}


def build_stage(entry: Registered, given: Mapping[str, Any], *, report: Report) -> Stage | None:
    """The stage for one entry, or None after its problems were reported."""
    problems = 0

    def count(path: Path, message: str) -> None:
        nonlocal problems
        problems += 1
        report(path, message)

    given = dict(given)
    settings = given.pop(SETTINGS_KEY, None) or {}
    accepted = check_parameters(given, recipe_parameters(entry), report=count)
    if isinstance(settings, Mapping):
        settings = check_parameters(
            settings,
            parameters_of(stage_settings),
            report=lambda path, message: count((SETTINGS_KEY, *path), f"with: {message}"),
        )
    else:
        count((SETTINGS_KEY,), "with: expected a mapping of settings.")
    if problems:
        return None
    try:
        stage = _wrapped(entry, accepted)
        return stage.with_(**settings) if settings else stage
    except (GristmillError, ValueError, TypeError) as error:
        report((), str(error))
        return None


def _wrapped(entry: Registered, accepted: Mapping[str, Any]) -> Stage:
    cls = entry.load()
    own = parameters_of(cls)
    made = cls(**{name: value for name, value in accepted.items() if name in own})
    options = {name: value for name, value in accepted.items() if name not in own}
    stage: Stage
    if entry.kind == FILTER:
        from gristmill.stages.text.filters import ScoreFilter

        stage = ScoreFilter(made, **options)
    elif entry.kind == MODIFIER:
        from gristmill.stages.text.modifiers import Modify

        stage = Modify(made, **options)
    else:
        stage = made
    return stage
