"""Stages as bytes that a worker process can turn back into stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cloudpickle

from gristmill.backends.plan import RunSettings, Segment
from gristmill.errors import PlanningError

before_loading: list[Callable[[], None]] = []
"""Functions of the package that a worker calls before it loads the stages; sent along with them."""


class _Call:
    """A call that is made during unpickling."""

    def __init__(self, function: Callable[[], None]) -> None:
        self.function = function

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, ()


class _Prepared:
    """A value that is unpickled after some calls have been made."""

    def __init__(self, calls: Sequence[Callable[[], None]], value: Any) -> None:
        self.calls = tuple(map(_Call, calls))
        self.value = value

    def __reduce__(self) -> tuple[Any, ...]:
        return _value, (self.calls, self.value)


def _value(_: Any, value: Any) -> Any:
    return value


def pickled(segment: Segment, settings: RunSettings) -> bytes:
    """The segment for its workers; code of the main script, closures and lambdas are pickled by value.

    Raises:
        PlanningError: Something in a stage cannot be sent; the message names it.
    """
    try:
        return bytes(cloudpickle.dumps(_Prepared(before_loading, (segment, settings))))
    except Exception as error:
        raise _named(segment, error) from error


def _named(segment: Segment, error: Exception) -> PlanningError:
    for stage in segment.stages:
        culprit = _find(stage, f"stage {stage.name!r}")
        if culprit is not None:
            place, value, problem = culprit
            return PlanningError(
                f"{place[0].upper()}{place[1:]} cannot be sent to a worker process: it is a {type(value).__name__} "
                f"({type(problem).__name__}: {problem}). Create such objects in setup(), which runs in the worker, "
                "instead of in __init__.",
                stage=stage.name,
                place=place,
            )
    return PlanningError(f"The stages {segment.name} cannot be sent to a worker process: {error}")


def _find(value: Any, place: str, depth: int = 0) -> tuple[str, Any, Exception] | None:
    """The innermost attribute that cannot be pickled."""
    try:
        cloudpickle.dumps(value)
        return None
    except Exception as error:
        problem = error
    inner: list[tuple[str, Any]] = []
    if depth < 8:
        if isinstance(value, dict):
            inner = [(f"{place}[{key!r}]", item) for key, item in value.items()]
        elif isinstance(value, list | tuple | set):
            inner = [(f"{place}[{index}]", item) for index, item in enumerate(value)]
        elif hasattr(value, "__closure__") and value.__closure__:
            names = value.__code__.co_freevars
            inner = [
                (f"variable {name!r} used by {place}", cell.cell_contents)
                for name, cell in zip(names, value.__closure__, strict=True)
            ]
        elif hasattr(value, "__dict__"):
            inner = [(f"attribute {key!r} of {place}", item) for key, item in vars(value).items()]
    for name, item in inner:
        found = _find(item, name, depth + 1)
        if found is not None:
            return found
    return place, value, problem
