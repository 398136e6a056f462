"""Turns an executor's configuration dictionary into typed values; a key that nobody reads is an error."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gristmill.errors import UnknownNameError, UsageError, did_you_mean

C = TypeVar("C")


def parse_config(kind: type[C], config: Mapping[str, Any] | None, *, owner: str) -> C:
    """An object of the dataclass `kind` with the values of `config`.

    Args:
        kind: A dataclass whose fields are the keys, with types and defaults.
        config: What the user gave.
        owner: The executor, for messages.

    Raises:
        UnknownNameError: A key is not known.
        UsageError: A value has the wrong type.
    """
    hints = get_type_hints(kind)
    for key, value in (config or {}).items():
        if key not in hints:
            raise UnknownNameError(
                f"{owner} has no setting {key!r}; it has {', '.join(sorted(hints))}.{did_you_mean(str(key), hints)}",
                name=key,
            )
        if not _fits(value, hints[key]):
            raise UsageError(f"{owner}: {key}={value!r} must be {_words(hints[key])}.", key=key, value=value)
    return kind(**dict(config or {}))


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(kind))
    origin = get_origin(kind)
    if origin is not None:
        return isinstance(value, origin)
    if kind is type(None) or kind is None:
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_words(part) for part in get_args(kind))
    return {int: "a whole number", float: "a number", str: "text", bool: "True or False", type(None): "None"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )
