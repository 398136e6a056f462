"""Describes a plan as plain values, so that a later run can tell whether it is still the same one.

Stages are described by their class, their parameters and, for code outside this package, the code itself.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gristmill import __version__
from gristmill.stages.base import ProcessingStage

_NOT_PARAMETERS = frozenset(
    {
        "path",
        "file_paths",
        "storage_options",
        "hf_token",
        "cache_dir",
        "hints",
        "schema",
        "mode",
        "limit",
        "runtime_env",
    }
)
"""Where things lie and secrets: inputs are compared by their fingerprints, and a moved output stays the same run."""


_MAX_DEPTH = 6
"""How far descriptions follow values into each other; this also ends circles."""


def describe_plan(
    stages: Sequence[ProcessingStage[Any, Any]], *, variables: Mapping[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """The stages (composites expanded, nothing fused) and settings that decide what comes out.

    `variables` are those of the recipe: they decide nothing beyond the stages, but explain why these changed.
    """
    described = {
        "version": __version__,
        "stages": [describe_stage(stage) for stage in stages],
        "settings": dict(settings),
    }
    if variables:
        described["variables"] = _value(variables, 0)
    return described


def describe_stage(stage: ProcessingStage[Any, Any]) -> dict[str, Any]:
    """One stage: name, class, parameters, and its code where it is not ours."""
    cls = type(stage)
    described: dict[str, Any] = {
        "name": stage.name,
        "type": f"{cls.__module__}.{cls.__qualname__}",
        "parameters": _parameters(stage),
    }
    code = _class_code(cls)
    if code is not None:
        described["code"] = code
    return described


def _parameters(stage: Any) -> dict[str, Any]:
    found = {}
    for key, value in sorted(vars(stage).items()):
        if not key.startswith("_") and key not in _NOT_PARAMETERS and key not in ("name", "resources", "batch_size"):
            found[key] = _value(value, 0)
    return found


def _value(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return type(value).__qualname__
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return hashlib.sha256(value).hexdigest()[:16]
    if isinstance(value, np.ndarray):
        return [str(value.dtype), list(value.shape), hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()[:16]]
    if isinstance(value, Mapping):
        return {str(key): _value(item, depth + 1) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_value(item, depth + 1) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [_value(item, depth + 1) for item in value]
    if isinstance(value, functools.partial):
        return [_value(value.func, depth + 1), _value(value.args, depth + 1), _value(value.keywords, depth + 1)]
    if isinstance(value, type):
        return {"class": f"{value.__module__}.{value.__qualname__}", "code": _class_code(value, depth + 1)}
    if isinstance(value, types.MethodType):
        return [_value(value.__self__, depth + 1), value.__func__.__qualname__]
    if isinstance(value, types.FunctionType):
        return {"function": f"{value.__module__}.{value.__qualname__}", "code": _function_code(value, depth)}
    if dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        inner = {
            key: _value(item, depth + 1)
            for key, item in sorted(getattr(value, "__dict__", {}).items())
            if not key.startswith("_") and key not in _NOT_PARAMETERS
        }
        if isinstance(name := getattr(value, "_name", None), str):
            inner["name"] = name  # reasons and scores in the ledger are called by it
        return {
            "class": f"{type(value).__module__}.{type(value).__qualname__}",
            "code": _class_code(type(value), depth + 1),
            **inner,
        }
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _class_code(cls: type[Any], depth: int = 0) -> str | None:
    if cls.__module__.split(".")[0] in ("gristmill", "builtins"):
        return None
    parts = []
    for base in cls.__mro__:
        if base.__module__.split(".")[0] in ("gristmill", "builtins", "abc", "typing"):
            continue
        for name, member in sorted(vars(base).items()):
            function = getattr(member, "__func__", member)
            if isinstance(function, property):
                function = function.fget
            if isinstance(function, types.FunctionType):
                parts.append(f"{name}:{_function_code(function, depth + 1)}")
            elif isinstance(function, bool | int | float | str) and not name.startswith("__"):
                parts.append(f"{name}={function!r}")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _function_code(function: types.FunctionType, depth: int) -> str:
    """A digest of what the function does: its instructions and constants, and the values and functions it reaches."""
    code = function.__code__
    parts = [_code_digest(code)]
    if depth <= _MAX_DEPTH:
        parts += [f"{name}={_text(value, depth)}" for name, value in _reached(function)]
        parts.append(_text(function.__defaults__, depth))
        parts.append(_text(function.__kwdefaults__, depth))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _reached(function: types.FunctionType) -> list[tuple[str, Any]]:
    """What the function closes over, and the constants, functions and classes of its own package that it names."""
    found: list[tuple[str, Any]] = []
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            # The class that super() belongs to is what is being described already.
            found.append((name, None if name == "__class__" else cell.cell_contents))
        except ValueError:  # the cell is still empty
            found.append((name, "empty"))
    home = str(function.__module__).split(".")[0]
    for name in sorted(_global_names(function.__code__)):
        value = function.__globals__.get(name)
        ours = isinstance(value, type | types.FunctionType) and str(value.__module__).split(".")[0] == home
        if ours or (name.isupper() and isinstance(value, bool | int | float | str | bytes | tuple | list | set | dict)):
            found.append((name, value))
    return found


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if inspect.iscode(constant):
            names |= _global_names(constant)
    return names


def _text(value: Any, depth: int) -> str:
    return json.dumps(_value(value, depth + 1), sort_keys=True, default=repr)


def _code_digest(code: types.CodeType) -> str:
    constants = []
    for constant in code.co_consts:
        if inspect.iscode(constant):
            constants.append(_code_digest(constant))
        elif isinstance(constant, frozenset):
            constants.append(repr(sorted(constant, key=repr)))
        else:
            constants.append(repr(constant))
    text = repr((code.co_code, constants, code.co_names, code.co_varnames))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
