"""Converts a pipeline back to a recipe, if every stage is registered and has plain parameters.

Parameters are read from the attributes of the same name, otherwise searched for among the values of the object. Either
way they are verified: a stage built from the entry must be in the same state as the original, or the conversion fails.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from gristmill.errors import RecipeError
from gristmill.recipes.loader import Recipe, StageEntry
from gristmill.recipes.names import FILTER, MODIFIER
from gristmill.recipes.registry import (
    OPTIONS,
    SETTINGS_KEY,
    Mismatch,
    Parameter,
    build_stage,
    find_by_class,
    fit,
    parameters_of,
)
from gristmill.recipes.yaml_source import recipe_error
from gristmill.stages.base import CompositeStage
from gristmill.stages.resources import Resources

if TYPE_CHECKING:
    from gristmill.pipeline import Pipeline

_PLAIN = (str, int, float, bool, type(None))
_ABSENT: Any = object()
MOST_TRIALS = 2000
"""A filter has a handful of numbers and at most three parameters that could be any of them."""
_WRAPPERS = {"ScoreFilter": ("filter_obj", FILTER), "Modify": ("modifier_fn", MODIFIER)}


def to_recipe(pipeline: Pipeline) -> Recipe:
    """The recipe that yields the same pipeline.

    Raises:
        RecipeError: A stage is not registered, or has a state that no recipe parameters produce (such as a function).

    Example:
        >>> recipe = to_recipe(pipeline)
        >>> Path("clean.yaml").write_text(recipe.to_yaml())
    """
    entries = tuple(_entry(stage) for stage in pipeline.stages)
    return Recipe(name=pipeline.name, description=pipeline.description, stages=entries)


def _entry(stage: Any) -> StageEntry:
    inner, options = _unwrapped(stage)
    entry = find_by_class(type(inner))
    if entry is None:
        raise _refusal(stage, f"{type(inner).__name__} is not registered for recipes")
    parameters = {**_parameters(inner, stage), **options}
    settings = _settings(stage)
    problems: list[str] = []
    for name in ({}, {"name": stage.name}):  # only set if a stage would not get it by default
        settings |= name
        whole = {**parameters, **({SETTINGS_KEY: settings} if settings else {})}
        again = build_stage(entry, whole, report=lambda _, message: problems.append(message))
        if again is None:
            raise _refusal(stage, problems[0].removesuffix("."))
        if again.name == stage.name:
            break
    if not _same(again, stage, set()):
        raise _refusal(stage, "its parameters cannot be derived from its attributes")
    return StageEntry(entry.name, whole)


def _unwrapped(stage: Any) -> tuple[Any, dict[str, Any]]:
    """The filter or modifier inside its wrapper, with the wrapper's options; any other stage unchanged."""
    if type(stage).__name__ not in _WRAPPERS:
        return stage, {}
    attribute, kind = _WRAPPERS[type(stage).__name__]
    inner = _only(getattr(stage, attribute))
    if isinstance(inner, list | tuple):
        raise _refusal(stage, "it has several parts; add them as separate stages")
    options = {}
    for name, parameter in parameters_of(OPTIONS[kind]).items():
        value = _only(getattr(stage, name, parameter.default))
        if value != parameter.default:
            options[name] = _plain(value, name, stage)
    return inner, options


def _only(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) and len(value) == 1 else value


def _parameters(made: Any, stage: Any) -> dict[str, Any]:
    """The parameters that differ from their defaults."""
    known = parameters_of(cast("Any", type(made)))
    kept = {name: _kept(made, name) for name in known}
    found = {
        name: _plain(value, name, stage)
        for name, value in kept.items()
        if value is not _ABSENT and (known[name].required or not _equal(value, known[name].default))
    }
    lost = [known[name] for name, value in kept.items() if value is _ABSENT]
    return {**found, **_search(made, found, lost)} if lost else found


def _search(made: Any, found: Mapping[str, Any], lost: Sequence[Parameter]) -> dict[str, Any]:
    """Values for parameters that are stored under other names (`min_words` as `lower`), found by trying."""
    held: list[Any] = []
    for value in vars(made).values():
        if dataclasses.is_dataclass(type(value)):
            held.extend(getattr(value, item.name, None) for item in dataclasses.fields(value))
        else:
            held.extend(value if isinstance(value, list | tuple) else [value])
    there = {(type(value), value): value for value in held if isinstance(value, _PLAIN)}.values()  # 1, 1.0 and True
    choices = [[_ABSENT, *(value for value in there if _may_be(value, parameter))] for parameter in lost]
    for values in itertools.islice(itertools.product(*choices), MOST_TRIALS):
        trial = {parameter.name: value for parameter, value in zip(lost, values, strict=True) if value is not _ABSENT}
        try:
            again = type(made)(**found, **trial)
        except (ValueError, TypeError):
            continue
        if _same(again, made, set()):
            return trial
    return {}


def _may_be(value: Any, parameter: Parameter) -> bool:
    try:
        fit(value, parameter.annotation)
    except Mismatch:
        return False
    return not _equal(value, parameter.default)


def _kept(made: Any, name: str) -> Any:
    """The value of a parameter as the object stores it; properties are not read, since they may compute."""
    state = vars(made)
    for holder in (state, *(value for value in state.values() if isinstance(value, dict))):
        for key in (name, f"_{name}"):
            if key in holder:
                return holder[key]
    fixed = inspect.getattr_static(type(made), name, _ABSENT)
    return fixed if isinstance(fixed, _PLAIN) else _ABSENT


def _equal(value: Any, default: Any) -> bool:
    # Constructors turn None into an empty collection; rebuilding the stage verifies that this is the case here.
    if default is None and isinstance(value, list | tuple | dict) and not value:
        return True
    return type(value) is type(default) and bool(value == default)


def _settings(stage: Any) -> dict[str, Any]:
    """The settings changed by `with_`."""
    if isinstance(stage, CompositeStage):
        changed = dict(stage._keywords)
    else:
        changed = {key: vars(stage)[key] for key in ("resources", "batch_size", "time_limit_s") if key in vars(stage)}
        if stage.requested_workers() != stage.num_workers():
            changed["num_workers"] = stage.requested_workers()
    return {key: value.to_dict() if isinstance(value, Resources) else value for key, value in changed.items()}


def _plain(value: Any, name: str, stage: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item, name, stage) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(_plain(item, name, stage) for item in value)
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, name, stage) for key, item in value.items()}
    raise _refusal(stage, f"the parameter {name!r} is a {type(value).__name__}, which a recipe cannot hold")


def _same(one: Any, other: Any, seen: set[int]) -> bool:
    """Whether two objects are in the same state, attribute by attribute."""
    if one is other or id(one) in seen:
        return True
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key], seen) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(_same(*pair, seen) for pair in zip(one, other, strict=True))
    if hasattr(one, "tobytes"):
        return bool(one.tobytes() == other.tobytes())
    compares = any("__eq__" in vars(cls) for cls in type(one).__mro__[:-1])
    if not compares and hasattr(one, "__dict__"):
        return _same(vars(one), vars(other), {*seen, id(one)})
    return bool(one == other)


def _refusal(stage: Any, cause: str) -> RecipeError:
    return recipe_error(f"The stage {stage.name!r} cannot be written as a recipe: {cause}.")
