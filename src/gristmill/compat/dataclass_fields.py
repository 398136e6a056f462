"""Lets scripts derive `@dataclass` subclasses from stages that are dataclasses in NeMo Curator and classes here.

A stage gets the fields that `@dataclass` collects from its bases, made from the parameters of its constructor, and a
`__post_init__` that calls this constructor with what the fields hold.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

from gristmill.stages.base import ProcessingStage

_SET = ("__dataclass_fields__", "__dataclass_params__", "__post_init__")
_KEYWORDS = ("name", "file_extension")
"""Fields that every stage, or every writer, has there; None stands for what the class defines."""
_prepared: list[type] = []


def add_fields(cls: type) -> None:
    """Prepare a stage for `@dataclass` subclasses; does nothing for other classes and for dataclasses."""
    if not issubclass(cls, ProcessingStage) or dataclasses.is_dataclass(cls) or inspect.isabstract(cls):
        return
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
    parameters = {name: one for name, one in inspect.signature(cls).parameters.items() if one.kind not in fixed}
    extra = [name for name in _KEYWORDS if hasattr(cls, name) and name not in parameters]
    made = dataclasses.make_dataclass(
        cls.__name__,
        [(name, Any, _field(one)) for name, one in parameters.items()]
        + [(name, Any, dataclasses.field(default=None, kw_only=True)) for name in extra],
    )

    def call_constructor(self: Any) -> None:
        given = {name: getattr(self, name) for name in parameters}
        # Only the arguments passed: some constructors distinguish an option that was set from an omitted one.
        given = {name: value for name, value in given.items() if value is not parameters[name].default}
        also = {name: value for name in extra if (value := vars(self).pop(name, None)) is not None}
        if "file_extension" in also:
            given["file_extension"] = also.pop("file_extension")
        cls.__init__(self, **given)
        for name, value in also.items():
            setattr(self, name, value)

    values = (made.__dataclass_fields__, made.__dataclass_params__, call_constructor)  # type: ignore[attr-defined]
    for attribute, value in zip(_SET, values, strict=True):
        setattr(cls, attribute, value)
    _prepared.append(cls)


def remove_fields() -> None:
    """Undo `add_fields`."""
    for cls in _prepared:
        for attribute in _SET:
            delattr(cls, attribute)
    _prepared.clear()


def _field(parameter: inspect.Parameter) -> Any:
    default = parameter.default
    if default is parameter.empty:
        return dataclasses.field(kw_only=parameter.kind is parameter.KEYWORD_ONLY)
    # A factory, because `@dataclass` refuses lists and dictionaries as defaults.
    return dataclasses.field(default_factory=lambda: default, kw_only=parameter.kind is parameter.KEYWORD_ONLY)
