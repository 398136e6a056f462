"""Sees what the code and the values in a plan would do, so that a later run can tell when they do something else.

Code is followed from where the plan names it to what it uses: helpers, also of other modules, values it closes over,
globals it reads, and local modules that it imports when it runs. It stops at installed packages, whose changes no run
can be expected to survive unseen: their classes are named, not read.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import itertools
import json
import re
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gristmill.pipeline.body_imports import imported_modules, is_installed

_PLACES = frozenset(
    {"path", "file_paths", "storage_options", "cache_dir", "hints", "schema", "mode", "limit", "runtime_env"}
)
"""Where things lie, in classes of this package: inputs are compared by their fingerprints, outputs may move."""
_SECRET = re.compile(r"(^|_)(hf_token|auth_token|access_token|api_?key|access_key|secret|password|credentials?)$")
_MAX_DEPTH = 6
"""How far descriptions follow values into each other; this also ends circles."""
_MAX_ITEMS = 1000
"""Longer collections are described by a digest."""
_PYTHON = sys.stdlib_module_names | {"builtins"}
_NOT_LOOKED_FOR = frozenset(_PYTHON | {"gristmill"})
_PLAIN = (bool, int, float, complex, str, bytes, tuple, list, set, frozenset, dict, re.Pattern, enum.Enum)


def describe_value(value: Any) -> Any:
    """`value` as plain values that are equal in another process as long as it would do the same."""
    return _described(value, 0, None)


def _described(value: Any, depth: int, walk: _Walk | None) -> Any:
    """`value` as plain values; code in it is left to `walk`, if there is one."""
    if depth > _MAX_DEPTH:
        return type(value).__qualname__
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return _digest(value)
    if isinstance(value, np.generic):
        return _described(value.item(), depth, walk)
    if isinstance(value, np.ndarray):
        inside = _text(value.tolist(), walk).encode() if value.dtype.hasobject else np.ascontiguousarray(value).data
        return [str(value.dtype), list(value.shape), _digest(inside)]
    if isinstance(value, re.Pattern):
        return {"pattern": _described(value.pattern, depth, walk), "flags": value.flags}
    if isinstance(value, Mapping):
        return _short({str(key): _described(item, depth + 1, walk) for key, item in value.items()})
    if isinstance(value, set | frozenset):
        return _short(sorted((_described(item, depth + 1, walk) for item in value), key=repr))
    if isinstance(value, list | tuple):
        return _short([_described(item, depth + 1, walk) for item in value])
    if isinstance(value, functools.partial):
        return [_described(part, depth + 1, walk) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, type):
        return {"class": _name(value), **_code(value, walk)}
    if isinstance(value, types.MethodType):
        return [_described(value.__self__, depth + 1, walk), value.__func__.__qualname__]
    if isinstance(value, types.FunctionType):
        return {"function": _name(value), **_code(value, walk)}
    if isinstance(inner := _wrapped(value), types.FunctionType):
        return _described(inner, depth, walk)
    if hasattr(value, "__arrow_c_stream__"):
        return {"class": _name(type(value)), "digest": _table_digest(value)}
    return _described_object(value, depth, walk)


def attributes(thing: Any, *, private: bool = True, places: bool = False) -> dict[str, Any]:
    """What an object was made with and what may decide what it does, by name; never secrets.

    Args:
        thing: The object.
        private: Also attributes that begin with an underscore, but for those that are only set at work.
        places: Also attributes whose name says that they tell where things lie.
    """
    found = {}
    for key, value in sorted(_state(thing).items()):
        if key.startswith("_") and not (private and _is_parameter(thing, key, value)):
            continue
        if not _SECRET.search(key) and (places or key not in _PLACES):
            found[key] = value
    return found


def _is_parameter(thing: Any, key: str, value: Any) -> bool:
    """Whether a private attribute holds what the object was made with."""
    if key == "_name" or key.startswith("__") or _is_made_later(value):
        return False
    return key not in _set_at_work(type(thing))


def code_of(thing: type[Any] | types.FunctionType) -> dict[str, str] | None:
    """Digests of a function or class and of all it uses, by name; None for what belongs to this package or Python."""
    home = _package(thing.__module__)
    if home == "gristmill" or home in _PYTHON:
        return None
    walk = _Walk(home)
    walk.add(thing)
    return walk.found


class _Walk:
    """Follows code through names that it uses, each once."""

    def __init__(self, home: str) -> None:
        self.found: dict[str, str] = {}
        self._home = home
        self._seen: set[int] = set()
        self._texts: dict[int, str] = {}

    def add(self, thing: type[Any] | types.FunctionType) -> None:
        if id(thing) in self._seen or not self._follows(thing.__module__):
            return
        self._seen.add(id(thing))
        if isinstance(thing, type):
            self._add_class(thing)
        else:
            self._add_function(thing, _name(thing))

    def _follows(self, module: str | None) -> bool:
        return _package(module) == self._home or is_user_module(module)

    def _add_class(self, cls: type[Any]) -> None:
        self._put(_name(cls), repr([_name(base) for base in cls.__bases__]))
        for base in cls.__mro__:
            if not self._follows(base.__module__) or (base is not cls and id(base) in self._seen):
                continue
            self._seen.add(id(base))
            for name, member in sorted(vars(base).items()):
                label = f"{_name(base)}.{name}"
                for function in _functions_of(member):
                    self._add_function(function, label)
                if isinstance(member, type):
                    self.add(member)
                elif isinstance(member, _PLAIN) and not name.startswith("__"):
                    self._put(label, _text(member, self))

    def _add_function(self, function: types.FunctionType, label: str) -> None:
        defaults = [function.__defaults__, function.__kwdefaults__]
        self._put(label, _code_digest(function.__code__, function.__doc__) + _text(defaults, self))
        for name, value in _used(function):
            self._add_used(label, name, value)
        package = str(function.__globals__.get("__package__") or "")
        for name, code in imported_modules(function.__code__, package=package, skip=_NOT_LOOKED_FOR).items():
            self.found[f"module {name}"] = _code_digest(code)

    def _add_used(self, label: str, name: str, value: Any) -> None:
        value = _wrapped(value)
        if isinstance(value, type | types.FunctionType):
            self.add(value)
        elif isinstance(value, _PLAIN):
            self._put(f"{label}: {name}", _text(value, self))
        elif _is_user_class(type(value)):
            # Many functions may use one large object.
            if id(value) not in self._texts:
                self._texts[id(value)] = ""
                self._texts[id(value)] = _text(value, self)
            self._put(f"{label}: {name}", self._texts[id(value)])

    def _put(self, label: str, text: str) -> None:
        # Two lambdas of one function have the same name.
        free = next(name for name in itertools.chain([label], _numbered(label)) if name not in self.found)
        self.found[free] = _digest(text.encode("utf-8", "surrogatepass"))


def is_user_module(name: str | None) -> bool:
    """Whether a module is neither ours, nor Python's, nor installed."""
    package = _package(name)
    if not package or package == "gristmill" or package in _PYTHON:
        return False
    file = getattr(sys.modules.get(str(name)) or sys.modules.get(package), "__file__", None) or ""
    return not is_installed(file)


def _is_user_class(cls: type[Any]) -> bool:
    return is_user_module(cls.__module__)


def _is_made_later(value: Any) -> bool:
    """Whether a private attribute holds what is made at work: nothing yet, or a model of an installed package."""
    if value is None or (isinstance(value, list | set | dict) and not value):
        return True
    module = type(value).__module__
    ours = is_user_module(module) or _package(module) in _PYTHON | {"gristmill"}
    return not ours and not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__arrow_c_stream__")


def _set_at_work(cls: type[Any]) -> set[str]:
    """The attributes that methods set which are called after an object was put together."""
    found: set[str] = set()
    for base in cls.__mro__:
        makers = ("__", "with_", "set_") if _is_user_class(base) else ("__",)
        for name, member in vars(base).items():
            if not name.startswith(makers):
                for function in _functions_of(member):
                    found |= _names_in(function.__code__, "STORE_ATTR")
    return found


def _used(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function closes over, and the globals that it reads and does not set, by name."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # The class that super() belongs to is what is being described already; a cell may still be empty.
        if name != "__class__":
            try:
                yield name, cell.cell_contents
            except ValueError:
                continue
    code = function.__code__
    words = sorted(_names_in(code))
    for name in sorted(_names_in(code, "LOAD_GLOBAL", "LOAD_NAME") - _names_in(code, "STORE_GLOBAL", "DELETE_GLOBAL")):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            if is_user_module(value.__name__):
                yield from ((f"{name}.{word}", vars(value)[word]) for word in words if word in vars(value))
        elif not (name.startswith("_") and isinstance(value, list | set | dict)):  # such ones are filled at work
            yield name, value


@functools.lru_cache(4096)
def _names_in(code: types.CodeType, *instructions: str) -> set[str]:
    """The names on which some code, also inside its functions, uses one of these instructions; none means any."""
    if not instructions:
        found = set(code.co_names)
    else:
        found = {str(one.argval) for one in dis.get_instructions(code) if one.opname in instructions}
    inner = (_names_in(constant, *instructions) for constant in code.co_consts if inspect.iscode(constant))
    return found.union(*inner)


def _functions_of(member: Any) -> list[types.FunctionType]:
    """The functions behind a member of a class: a method of any kind, or the parts of a property."""
    parts = [member.fget, member.fset] if isinstance(member, property) else [member]
    if isinstance(member, functools.cached_property):
        parts = [member.func]
    unwrapped = [_wrapped(getattr(part, "__func__", part)) for part in parts]
    return [part for part in unwrapped if isinstance(part, types.FunctionType)]


def _wrapped(value: Any) -> Any:
    """The function in a compiled or cached one."""
    inner = getattr(value, "py_func", None) or getattr(value, "__wrapped__", None)
    return inner if isinstance(inner, types.FunctionType) and not isinstance(value, types.FunctionType) else value


def _state(thing: Any) -> dict[str, Any]:
    slots = [name for cls in type(thing).__mro__ for name in _slots(cls)]
    return {name: getattr(thing, name) for name in slots if hasattr(thing, name)} | dict(getattr(thing, "__dict__", {}))


def _slots(cls: type[Any]) -> list[str]:
    names = vars(cls).get("__slots__", ())
    found = [names] if isinstance(names, str) else list(names)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _described_object(value: Any, depth: int, walk: _Walk | None) -> Any:
    cls = type(value)
    own = _is_user_class(cls)
    if not own and not hasattr(value, "__dict__") and not dataclasses.is_dataclass(cls):
        told = repr(value)
        return _name(cls) if " at 0x" in told else f"{_name(cls)}: {told}"
    # An object of user code may keep what it likes under any name; in ours some names only tell places.
    inner = {key: _described(item, depth + 1, walk) for key, item in attributes(value, places=own).items()}
    if isinstance(name := getattr(value, "_name", None), str):
        inner["name"] = name  # reasons and scores in the ledger are called by it
    return {"class": _name(cls), **_code(cls, walk), **inner}


def _code(thing: type[Any] | types.FunctionType, walk: _Walk | None) -> dict[str, Any]:
    if walk is None:
        return {"code": code_of(thing)}
    walk.add(thing)
    return {}


def _short(items: Any) -> Any:
    if len(items) <= _MAX_ITEMS:
        return items
    return {"items": len(items), "digest": _digest(json.dumps(items, sort_keys=True, default=repr).encode())}


def _table_digest(value: Any) -> str:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    table = pa.table(value)
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as stream:
        stream.write_table(table.replace_schema_metadata(None).combine_chunks())
    return _digest(sink.getvalue())


def _package(module: str | None) -> str:
    return str(module or "").split(".")[0]


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _numbered(label: str) -> Iterator[str]:
    return (f"{label} ({number})" for number in itertools.count(2))


def _text(value: Any, walk: _Walk | None) -> str:
    return json.dumps(_described(value, 1, walk), sort_keys=True, default=repr)


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _code_digest(code: types.CodeType, doc: str | None = None) -> str:
    constants = []
    for place, constant in enumerate(code.co_consts):
        if inspect.iscode(constant):
            constants.append(_code_digest(constant))
        elif isinstance(constant, frozenset):
            constants.append(repr(sorted(constant, key=repr)))
        elif place or constant != doc:  # what is said about a function does nothing
            constants.append(repr(constant))
    return _digest(repr((code.co_code, constants, code.co_names, code.co_varnames)).encode("utf-8", "surrogatepass"))
