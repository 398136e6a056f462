"""Turns an entry of a recipe into a stage.

Values are checked against the signature and type hints of the class before anything is built.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from gristmill.errors import GristmillError, UnknownNameError, did_you_mean
from gristmill.recipes.names import FILTER, KINDS, MODIFIER, NAMES, WORKFLOWS, Registered
from gristmill.recipes.yaml_source import Path
from gristmill.stages.resources import Resources

if TYPE_CHECKING:
    from gristmill.pipeline.workflow import WorkflowBase
    from gristmill.stages.base import ProcessingStage

REQUIRED: Any = inspect.Parameter.empty
"""The default of a parameter that has none."""

_UNIONS = (Union, types.UnionType)
_LISTS = (list, collections.abc.Sequence, collections.abc.Iterable, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number", type(None): "null"}


_WRAPPERS = {
    **dict.fromkeys(
        ("ScoreFilter", "Score", "Filter"),
        "a filter stands by itself: '- WordCountFilter: {min_words: 50, score_field: words}'. "
        "text_field, score_field and invert are given beside the filter's own parameters.",
    ),
    "Modify": "a modifier stands by itself: '- UrlRemover: {input_fields: text}'. "
    "input_fields and output_fields are given beside the modifier's own parameters.",
}
"""What wraps filters and modifiers in Python, and the equivalent in a recipe."""


def registered(name: str, *, allow_code: Collection[str] = ()) -> Registered:
    """The entry of `name`.

    Args:
        name: One of the table, one that an installed package declares, or an import path.
        allow_code: The modules that import paths may lead into.

    Raises:
        UnknownNameError: There is no such name, or its code is not allowed.
    """
    if name in _WRAPPERS:
        raise UnknownNameError(f"There is no {name!r} in recipes; {_WRAPPERS[name]}", name=name)
    if name not in NAMES:
        from gristmill.recipes.user_stages import user_stage  # it searches the metadata of packages: slow to import

        found = user_stage(name, allow_code)
        if found is not None:
            return found
        from gristmill.ledger.record.earlier_names import earlier_name

        now = next((one for one in NAMES if earlier_name(one) == name), None)  # as in reports of earlier versions
        near = f" Did you mean {now!r}?" if now else did_you_mean(name, NAMES)
        raise UnknownNameError(
            f"There is no stage, filter or modifier named {name!r}.{near} 'gristmill stages' lists all of them.",
            name=name,
        )
    return NAMES[name]


def all_registered() -> Iterable[Registered]:
    """Every entry, by kind and name."""
    return sorted(NAMES.values(), key=lambda entry: (KINDS.index(entry.kind), entry.name))


def find_by_class(cls: type[Any]) -> Registered | None:
    """The entry that leads to exactly this class, or None; imports nothing else."""
    entry = NAMES.get(cls.__name__)
    return entry if entry is not None and entry.load() is cls else None


# --- from an entry of a recipe to a stage ---

SETTINGS_KEY = "with"
"""The key for settings that every stage has; no parameter can have this name, since Python reserves it."""


def filter_options(*, text_field: str = "text", score_field: str | None = None, invert: bool = False) -> None:
    """The options of a filter in a recipe, in addition to its own parameters."""


def modifier_options(*, input_fields: str = "text", output_fields: str | None = None) -> None:
    """The options of a modifier in a recipe, in addition to its own parameters."""


def stage_settings(
    *,
    name: str | None = None,
    resources: Resources | None = None,
    batch_size: int | None = None,
    num_workers: int | None = None,
    time_limit_s: float | None = None,
) -> None:
    """The options of every stage under `with:`."""


OPTIONS: Mapping[str, Callable[..., None]] = {FILTER: filter_options, MODIFIER: modifier_options}


def recipe_parameters(entry: Registered) -> dict[str, Parameter]:
    """All parameters of `entry` in a recipe: its own, then those of its wrapper."""
    made = entry.load() if entry.attribute else resolve_name(f"{entry.module}:{entry.name}")
    own = parameters_of(made) if isinstance(made, type) else {}
    options = parameters_of(OPTIONS[entry.kind]) if entry.kind in OPTIONS else {}
    return {**own, **options, **own}  # its own come first, and take precedence over options of the same name


def build_stage(
    entry: Registered, given: Mapping[str, Any], *, report: Callable[[Path, str], None]
) -> ProcessingStage[Any, Any] | None:
    """The stage for one entry, or None after its problems were reported."""
    problems: list[tuple[Path, str]] = []
    given = dict(given)
    settings = given.pop(SETTINGS_KEY, None) or {}
    accepted = check_parameters(given, recipe_parameters(entry), problems)
    of_settings: list[tuple[Path, str]] = []
    if isinstance(settings, Mapping):
        settings = check_parameters(settings, parameters_of(stage_settings), of_settings)
    else:
        of_settings.append(((), "expected a mapping of settings."))
    for path, message in problems:
        report(path, message)
    for path, message in of_settings:
        report((SETTINGS_KEY, *path), f"with: {message}")
    if problems or of_settings:
        return None
    cls = entry.load() if entry.attribute else resolve_name(f"{entry.module}:{entry.name}")
    own = parameters_of(cls) if isinstance(cls, type) else {}
    parameters: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in accepted.items():
        (parameters if name in own else options)[name] = value
    try:
        made = cls(**parameters) if isinstance(cls, type) else cls
        if entry.kind == FILTER:
            from gristmill.stages.text.filters.score_filter import ScoreFilter

            made = ScoreFilter(made, **options)
        elif entry.kind == MODIFIER:
            from gristmill.stages.text.modifiers.modifier import Modify

            made = Modify(made, **options)
        stage: ProcessingStage[Any, Any] = made.with_(**settings) if settings else made
    except (GristmillError, ValueError, TypeError) as error:
        report((), str(error))
        return None
    return stage


def build_workflow(name: str, given: Mapping[str, Any], *, report: Callable[[Path, str], None]) -> WorkflowBase | None:
    """The workflow `name` of `WORKFLOWS`, or None after its problems were reported."""
    cls = resolve_name(f"{WORKFLOWS[name]}:{name}")
    known = parameters_of(cls)
    if any(one.kind is one.VAR_KEYWORD for one in inspect.signature(cls).parameters.values()):
        # The constructor determines which others are allowed.
        known = {**known, **{key: Parameter(key, Any, None) for key in given if key not in known}}
    problems: list[tuple[Path, str]] = []
    accepted = check_parameters(given, known, problems)
    for path, message in problems:
        report(path, message)
    if problems:
        return None
    try:
        workflow: WorkflowBase = cls(**accepted)
    except (GristmillError, ValueError, TypeError) as error:
        report((), str(error))
        return None
    return workflow


# --- values against signatures and type hints ---


class Mismatch(ValueError):  # noqa: N818 (a finding that is always caught here, not an error of the user)
    """A value does not fit; `path` is the path of the offending part."""

    def __init__(self, message: str, path: Path = ()) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a stage or filter in a recipe."""

    name: str
    annotation: Any
    default: Any

    @property
    def required(self) -> bool:
        """Whether it is required."""
        return self.default is REQUIRED

    @property
    def type_text(self) -> str:
        """Its type in words, as the documentation and the error messages show it."""
        return describe_type(self.annotation)


@cache
def parameters_of(made: Any) -> dict[str, Parameter]:
    """The public parameters of a class or function, in order, with their resolved types.

    Example:
        >>> def cut(text: str, *, length: int = 3): ...
        >>> parameters_of(cut)["length"].type_text
        'a whole number'
    """
    called = made.__init__ if isinstance(made, type) else made  # type: ignore[misc]
    try:
        hints = get_type_hints(called)
    except (NameError, TypeError, AttributeError):
        hints = _resolvable_hints(called, getattr(made, "__mro__", ()))
    # The signature of a dataclass does not show default factories.
    fields = dataclasses.fields(made) if isinstance(made, type) and dataclasses.is_dataclass(made) else ()
    made_anew: dict[str, Any] = {}
    for one in fields:
        if one.default_factory is not dataclasses.MISSING:
            made_anew[one.name] = one.default_factory()
    found: dict[str, Parameter] = {}
    for name, parameter in inspect.signature(made).parameters.items():
        if not name.startswith("_") and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            found[name] = Parameter(name, hints.get(name, Any), made_anew.get(name, parameter.default))
        elif parameter.kind is parameter.VAR_KEYWORD and name == "options" and isinstance(made, type):
            base = next(base for base in made.__mro__[1:] if "__init__" in vars(base))
            found = {**found, **parameters_of(base), **found}  # passed on to the constructor of the base class
    return found


def _resolvable_hints(called: Any, bases: Sequence[type]) -> dict[str, Any]:
    """The hints without those that cannot be resolved (an import that is for type checkers only).

    The constructor of a dataclass also has the fields of its `bases`, whose types are known where those are defined.
    """
    names: dict[str, Any] = {}
    for place in (*reversed(bases), called):
        names.update(vars(sys.modules.get(getattr(place, "__module__", ""), types.SimpleNamespace())))
    found: dict[str, Any] = {}
    for name, annotation in getattr(called, "__annotations__", {}).items():
        alone = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            found.update(get_type_hints(alone, globalns=names))
        except (NameError, TypeError, AttributeError):
            continue
    return found


def check_parameters(
    given: Mapping[str, Any], known: Mapping[str, Parameter], problems: list[tuple[Path, str]]
) -> dict[str, Any]:
    """The values of `given` that fit; those that do not, and those that are missing, are added to `problems`."""
    accepted: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            takes = f"It takes: {', '.join(known)}." if known else "It takes no parameters."
            problems.append(((name,), f"unknown parameter {name!r}.{did_you_mean(name, known)} {takes}"))
            continue
        try:
            accepted[name] = fit(value, known[name].annotation)
        except Mismatch as mismatch:
            place = "".join(f"[{step!r}]" for step in mismatch.path)
            problems.append(((name, *mismatch.path), f"{name}{place}: {mismatch}"))
    for name, parameter in known.items():
        if parameter.default is REQUIRED and name not in given:
            problems.append(((), f"the parameter {name!r} is missing; it is {parameter.type_text}."))
    return accepted


def fit(value: Any, annotation: Any) -> Any:
    """`value` converted to the annotated type: a list becomes a tuple if one is expected.

    Raises:
        Mismatch: The value does not fit; the message says what is expected.
    """
    kind: Any = type(None) if annotation is None else annotation
    if kind is Any or kind is object:
        return value
    if get_origin(kind) in _UNIONS:
        return _fit_union(value, kind)
    origin: Any = get_origin(kind) or kind
    if origin is Literal:
        for choice in get_args(kind):
            if value == choice and type(value) is type(choice):
                return value
        hint = did_you_mean(value, [c for c in get_args(kind) if isinstance(c, str)]) if isinstance(value, str) else ""
        raise Mismatch(f"expected {describe_type(kind)}, found {_shown(value)}.{hint}")
    if origin in _WORDS:
        wanted = int | float if origin is float else origin
        # No parameter takes nan, and every comparison with it is false.
        if isinstance(value, wanted) and (origin is bool or not isinstance(value, bool)) and value == value:
            return value
        hint = ""
        if origin is str and isinstance(value, int | float):
            hint = " Quote it to make it text."
        elif origin is int and isinstance(value, float) and value.is_integer():
            hint = f" Write {int(value)}."
        raise Mismatch(f"expected {_WORDS[origin]}, found {_shown(value)}.{hint}")
    if origin in _MAPPINGS:
        return _fit_mapping(value, kind)
    if origin is tuple or origin in _LISTS:
        return _fit_list(value, kind, origin)
    if not _is_dataclass(origin):
        raise Mismatch(f"expected {describe_type(kind)}, which a recipe cannot express; omit it, or use Python.")
    if not isinstance(value, Mapping):
        raise Mismatch(f"expected {describe_type(kind)}, found {_shown(value)}.")
    problems: list[tuple[Path, str]] = []
    accepted = check_parameters(value, parameters_of(origin), problems)
    if problems:
        raise Mismatch(problems[0][1], problems[0][0])
    return origin(**accepted)


def describe_type(annotation: Any) -> str:
    """The type in words.

    Example:
        >>> describe_type(int | None), describe_type(list[str])
        ('a whole number or null', 'a list of texts')
    """
    kind: Any = type(None) if annotation is None else annotation
    if kind is Any or kind is object:
        return "any value"
    if get_origin(kind) in _UNIONS:
        parts = [describe_type(part) for part in sorted(get_args(kind), key=lambda part: part is type(None))]
        useful = list(dict.fromkeys(part for part in parts if not part.startswith("a Python object")))
        return " or ".join(useful or parts)
    origin: Any = get_origin(kind) or kind
    if origin is Literal:
        return "one of " + ", ".join(_shown(choice) for choice in get_args(kind))
    if origin in _WORDS:
        return _WORDS[origin]
    if origin in _MAPPINGS:
        return "a mapping"
    if origin is tuple or origin in _LISTS:
        inner = [part for part in get_args(kind) if part is not Ellipsis]
        if origin is tuple and inner and Ellipsis not in get_args(kind):
            return "a list of " + ", then ".join(describe_type(part) for part in inner)
        if not inner or inner[0] is Any:
            return "a list"
        words = describe_type(inner[0])
        plural = {"text": "texts", "a whole number": "whole numbers", "a number": "numbers"}.get(words, f"({words})")
        return f"a list of {plural}"
    if _is_dataclass(origin):
        return "a mapping of " + ", ".join(parameters_of(origin))
    return f"a Python object ({getattr(kind, '__name__', kind)})"


def _fit_union(value: Any, kind: Any) -> Any:
    deepest: Mismatch | None = None
    for part in get_args(kind):
        try:
            return fit(value, part)
        except Mismatch as mismatch:
            if mismatch.path and (deepest is None or len(mismatch.path) > len(deepest.path)):
                deepest = mismatch
    # A list that fails in one of its items is better explained by that item than by the whole union.
    raise deepest or Mismatch(f"expected {describe_type(kind)}, found {_shown(value)}.")


def _fit_mapping(value: Any, kind: Any) -> Any:
    if not isinstance(value, Mapping):
        raise Mismatch(f"expected a mapping, found {_shown(value)}.")
    inner = get_args(kind)
    if not inner:
        return dict(value)
    return {_inside(key, inner[0], f"key {key}"): _inside(item, inner[1], key) for key, item in value.items()}


def _fit_list(value: Any, kind: Any, origin: Any) -> Any:
    if not isinstance(value, list | tuple):
        raise Mismatch(f"expected {describe_type(kind)}, found {_shown(value)}.")
    inner = get_args(kind)
    if origin is tuple and inner and Ellipsis not in inner:
        if len(inner) != len(value):
            raise Mismatch(f"expected {describe_type(kind)}, found {len(value)} values.")
        return tuple(_inside(item, part, place) for place, (item, part) in enumerate(zip(value, inner, strict=True)))
    items = [_inside(item, inner[0] if inner else Any, place) for place, item in enumerate(value)]
    return tuple(items) if origin is tuple else items


def _inside(value: Any, annotation: Any, place: str | int) -> Any:
    try:
        return fit(value, annotation)
    except Mismatch as mismatch:
        raise Mismatch(str(mismatch), (place, *mismatch.path)) from None


def _is_dataclass(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _shown(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…" + text[-1]
