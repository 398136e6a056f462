"""From a pipeline back to a recipe, where every stage is a registered one with plain parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gristmill.errors import RecipeError
from gristmill.recipes.building import OPTIONS, SETTINGS_KEY
from gristmill.recipes.loader import Recipe, StageEntry
from gristmill.recipes.registry import FILTER, MODIFIER, Registered, find_by_class
from gristmill.recipes.schema import parameters_of

if TYPE_CHECKING:
    from gristmill.pipeline import Pipeline

_PLAIN = (str, int, float, bool, type(None))
_ABSENT: Any = object()


def to_recipe(pipeline: Pipeline) -> Recipe:
    """The recipe that gives the same pipeline.

    Raises:
        RecipeError: A stage is not registered, holds a function or another object that a recipe cannot name, or does
            not keep a parameter under its name.
    """
    entries = tuple(_entry(stage) for stage in pipeline.stages)
    return Recipe(name=pipeline.name, description=pipeline.description, stages=entries)


def _entry(stage: Any) -> StageEntry:
    inner, options = _unwrapped(stage)
    entry = find_by_class(type(inner))
    if entry is None:
        raise _refusal(stage, f"{type(inner).__name__} is not among the names of recipes")
    parameters = _parameters(inner, type(inner), stage)
    parameters.update(options)
    settings = _settings(stage, entry)
    if settings:
        parameters[SETTINGS_KEY] = settings
    return StageEntry(entry.name, parameters)


def _unwrapped(stage: Any) -> tuple[Any, dict[str, Any]]:
    """The filter or modifier inside its wrapper, with the wrapper's options; any other stage as it is."""
    for wrapper, attribute, kind in (("ScoreFilter", "filter_obj", FILTER), ("Modify", "modifier_fn", MODIFIER)):
        if type(stage).__name__ != wrapper:
            continue
        inner = getattr(stage, attribute)
        if isinstance(inner, list | tuple) and len(inner) == 1:
            inner = inner[0]
        if isinstance(inner, list | tuple):
            raise _refusal(stage, f"one {wrapper} with several parts; add them as stages of their own")
        known = parameters_of(OPTIONS[kind])
        options = {}
        for name, parameter in known.items():
            value = getattr(stage, name, _ABSENT)
            if isinstance(value, list | tuple) and len(value) == 1:
                value = value[0]
            if value is not _ABSENT and value != parameter.default:
                options[name] = _plain(value, name, stage)
        return inner, options
    return stage, {}


def _parameters(made: Any, cls: type[Any], stage: Any) -> dict[str, Any]:
    found = {}
    for name, parameter in parameters_of(cls).items():
        value = getattr(made, name, getattr(made, f"_{name}", _ABSENT))
        if value is _ABSENT:
            raise _refusal(stage, f"{cls.__name__} does not keep its parameter {name!r} under that name")
        if parameter.required or (value is not parameter.default and value != parameter.default):
            found[name] = _plain(value, name, stage)
    return found


def _settings(stage: Any, entry: Registered) -> dict[str, Any]:
    """The settings of `with_` that differ from those of a fresh stage of this kind."""
    fresh = type(stage)
    settings: dict[str, Any] = {}
    if stage.resources != fresh.resources:
        settings["resources"] = stage.resources.to_dict()
    if stage.batch_size != fresh.batch_size:
        settings["batch_size"] = stage.batch_size
    if stage.time_limit_s != fresh.time_limit_s:
        settings["time_limit_s"] = stage.time_limit_s
    if stage.requested_workers() != stage.num_workers():
        settings["num_workers"] = stage.requested_workers()
    return settings


def _plain(value: Any, name: str, stage: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, name, stage) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item, name, stage) for item in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, name, stage) for key, item in value.items()}
    raise _refusal(stage, f"the parameter {name!r} is {type(value).__name__}, which a recipe cannot hold")


def _refusal(stage: Any, cause: str) -> RecipeError:
    message = f"The stage {stage.name!r} cannot be written as a recipe: {cause}."
    return RecipeError(message, problems=[message])
