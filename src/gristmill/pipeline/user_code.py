"""Describes the values in a plan and the user code behind them, so that a later run can detect changes.

Code is compared by its source: a function by its syntax tree, without comments, docstrings and annotations, so that
neither formatting nor another Python version counts as a change. This includes what it uses: functions, classes and
values of user modules, closures, and the local modules that it imports at run time. Code without source (created by
`exec`) is compared by its bytecode. Installed packages are named, not read.
"""

from __future__ import annotations

import ast
import dataclasses
import dis
import enum
import functools
import hashlib
import importlib.util
import inspect
import itertools
import json
import linecache
import os
import re
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.ledger.record.secrets import SECRET
from gristmill.storage.files import without_passwords

_PLACES = frozenset(
    {"path", "file_paths", "storage_options", "cache_dir", "hints", "schema", "mode", "limit", "runtime_env"}
    | {"salvage", "checks_first", "selection", "surveyed"}
)
"""Path attributes in classes of this package: inputs are compared by their fingerprints, outputs may move."""
_MAX_DEPTH = 6
"""Maximum nesting depth of descriptions; this also ends cycles."""
_MAX_ITEMS = 1000
"""Longer collections are described by a digest."""
_PYTHON = sys.stdlib_module_names | {"builtins"}
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PLAIN = (bool, int, float, complex, str, bytes, tuple, list, set, frozenset, dict, re.Pattern, enum.Enum)
_EMPTY_FIELD = re.compile(r"(, )?\b\w+=(\[\]|Load\(\))")
"""Fields of syntax trees in which Python versions differ."""


# --- values ---


def describe_value(value: Any, depth: int = 0, walk: _Walk | None = None) -> Any:
    """`value` as plain values that are equal in another process as long as it would behave the same.

    Args:
        value: The value.
        depth: Nesting depth of the value.
        walk: Collects the code in the value; without it, the description contains the code.
    """
    if value is None or (isinstance(value, bool | int | float | str) and not isinstance(value, enum.Enum)):
        if isinstance(value, float) and value - value != 0:
            return repr(value)  # JSON has no infinity
        return without_passwords(value) if isinstance(value, str) and "://" in value else value
    if depth > _MAX_DEPTH:
        return type(value).__qualname__
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        items: Any
        if isinstance(value, Mapping):
            items = {
                str(key): describe_value(item, depth + 1, walk)
                for key, item in value.items()
                if not SECRET.search(str(key))
            }
        else:
            items = [describe_value(item, depth + 1, walk) for item in value]
        if isinstance(value, set | frozenset):
            items.sort(key=repr)
        if len(items) <= _MAX_ITEMS:
            return items
        return {"items": len(items), "digest": _digest(json.dumps(items, sort_keys=True, default=repr).encode())}
    if isinstance(value, enum.Enum):
        return f"{type(value).__qualname__}.{value.name}"
    if isinstance(value, bytes):
        return _digest(value)
    if isinstance(value, re.Pattern):
        return {"pattern": describe_value(value.pattern, depth, walk), "flags": value.flags}
    if isinstance(value, np.generic):
        return describe_value(value.item(), depth, walk)
    if isinstance(value, np.ndarray):
        inside = _text(value.tolist(), walk).encode() if value.dtype.hasobject else np.ascontiguousarray(value).data
        return [str(value.dtype), list(value.shape), _digest(inside)]
    if isinstance(value, functools.partial):
        return [describe_value(part, depth + 1, walk) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, types.MethodType):
        return [describe_value(value.__self__, depth + 1, walk), value.__func__.__qualname__]
    value = _unwrapped(value)
    if isinstance(value, type | types.FunctionType):
        return {"class" if isinstance(value, type) else "function": _name(value), **code_of(value, walk)}
    if hasattr(value, "__arrow_c_stream__"):
        return {"class": _name(type(value)), "digest": _table_digest(value)}
    cls = type(value)
    own = is_user_module(cls.__module__)
    if not own and not hasattr(value, "__dict__") and not dataclasses.is_dataclass(cls):
        told = repr(value)
        return _name(cls) if " at 0x" in told else f"{_name(cls)}: {told}"
    # An object of user code may keep anything under any name; in built-in classes some names only hold paths.
    inner = {key: describe_value(item, depth + 1, walk) for key, item in attributes(value, places=own).items()}
    if isinstance(name := getattr(value, "_name", None), str):
        inner["name"] = name  # reasons and scores in the ledger are named after it
    return {"class": _name(cls), **code_of(cls, walk), **inner}


def attributes(thing: Any, *, private: bool = True, places: bool = False) -> dict[str, Any]:
    """Constructor arguments and other attributes that may affect an object's behaviour, by name; never secrets.

    Args:
        thing: The object.
        private: Include attributes that begin with an underscore, except those that are only set while processing.
        places: Include attributes whose names say that they hold paths.
    """
    held = object.__getstate__(thing)  # a dictionary, None, or a pair of these for a class with slots
    state: dict[str, Any] = {}
    for part in held if isinstance(held, tuple) else (held,):
        state.update(part or {})
    hidden = {name for name in state if name.startswith("_")}
    if private and hidden:
        made_later = {name for name in hidden if name.startswith("__") or _is_made_later(state[name])}
        if not _is_ours(type(thing).__module__):  # what built-in stages set while processing is None before
            made_later |= _set_at_work(type(thing))
        hidden &= made_later | {"_name"}
    skipped = hidden if places else hidden | _PLACES
    return {name: state[name] for name in sorted(state) if name not in skipped and not SECRET.search(name)}


def is_user_module(name: str | None) -> bool:
    """Whether a module is user code: neither built in, nor part of Python, nor installed."""
    package = str(name or "").partition(".")[0]
    if not package or package in _PYTHON:
        return False
    file = _file_of(str(name))
    return not file.startswith(_PACKAGE) and not _is_installed(file)


def _file_of(name: str) -> str:
    module = sys.modules.get(name) or sys.modules.get(name.partition(".")[0])
    return getattr(module, "__file__", None) or ""


def _is_ours(module: str) -> bool:
    return _file_of(module).startswith(_PACKAGE)


def _is_installed(file: str) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(re.split(r"[/\\]", file))


def _is_made_later(value: Any) -> bool:
    """Whether a private attribute holds run-time state: None so far, or a model of an installed package."""
    if value is None or (isinstance(value, list | set | dict) and not value):
        return True
    module = type(value).__module__
    known = is_user_module(module) or _is_ours(module) or module.partition(".")[0] in _PYTHON
    return not known and not isinstance(value, np.ndarray | np.generic) and not hasattr(value, "__arrow_c_stream__")


def _set_at_work(cls: type[Any]) -> set[str]:
    """The attributes set by methods that are called after construction."""
    found: set[str] = set()
    for base in cls.__mro__:
        makers = ("__", "with_", "set_") if is_user_module(base.__module__) else ("__",)
        for name, member in vars(base).items():
            if not name.startswith(makers):
                for function in _functions_of(member):
                    found |= _names_in(function.__code__, "STORE_ATTR")
    return found


def _text(value: Any, walk: _Walk | None) -> str:
    return json.dumps(describe_value(value, 1, walk), sort_keys=True, default=repr)


def _table_digest(value: Any) -> str:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    table = pa.table(value)
    with pa.ipc.new_stream(sink, table.schema.remove_metadata()) as stream:
        stream.write_table(table.replace_schema_metadata(None).combine_chunks())
    return _digest(sink.getvalue())


def _digest(data: Any) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _name(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


# --- code ---


def code_of(thing: type[Any] | types.FunctionType, walk: _Walk | None = None) -> dict[str, Any]:
    """Under `code`, digests of a function or class and all it uses, by name; None for built-in and Python code.

    With a `walk`, which collects them, returns nothing.
    """
    if walk is not None:
        walk.add(thing)
        return {}
    home = thing.__module__.partition(".")[0]
    if home in _PYTHON or _is_ours(thing.__module__):
        return {"code": None}
    walk = _Walk(home)
    walk.add(thing)
    return {"code": walk.found}


class _Walk:
    """Follows user code, and the package that it begins in, through the names that it uses."""

    def __init__(self, home: str) -> None:
        self.found: dict[str, str] = {}
        self._home = home
        self._seen: set[int] = set()

    def add(self, thing: type[Any] | types.FunctionType) -> None:
        if id(thing) in self._seen or not self._follows(thing.__module__):
            return
        self._seen.add(id(thing))
        if isinstance(thing, types.FunctionType):
            self._add_function(thing, _name(thing))
            return
        self._put(_name(thing), repr([_name(base) for base in thing.__bases__]))
        for base in thing.__mro__:
            if base is thing or (id(base) not in self._seen and self._follows(base.__module__)):
                self._seen.add(id(base))
                for name, member in sorted(vars(base).items()):
                    self._add_member(f"{_name(base)}.{name}", member)

    def _follows(self, module: str | None) -> bool:
        return str(module).partition(".")[0] == self._home or is_user_module(module)

    def _add_member(self, label: str, member: Any) -> None:
        for function in _functions_of(member):
            self._add_function(function, label)
        if isinstance(member, type):
            self.add(member)
        elif isinstance(member, _PLAIN) and not label.rpartition(".")[2].startswith("__"):
            self._put(label, _text(member, self))

    def _add_function(self, function: types.FunctionType, label: str) -> None:
        code = function.__code__
        node = _node_of(code)
        told = _bytecode(code, function.__doc__) if node is None else _meaning(node)
        self._put(label, told + _text([function.__defaults__, function.__kwdefaults__], self))
        for name, value in _closed_over(function):
            self._add_used(f"{label}: {name}", value)
        for name, value in _globals_of(function):
            if name not in self.found:
                self._add_used(name, value)
        if node is not None:
            self._add_imports(node, str(function.__globals__.get("__package__") or ""))

    def _add_used(self, label: str, value: Any) -> None:
        value = _unwrapped(value)
        if isinstance(value, type | types.FunctionType):
            self.add(value)
        elif isinstance(value, _PLAIN) or is_user_module(type(value).__module__):
            self.found[label] = ""  # the value may refer to itself
            self.found[label] = _digest(_text(value, self).encode("utf-8", "surrogatepass"))

    def _add_imports(self, node: ast.AST, package: str) -> None:
        """Add the local modules that code imports: from their files, because they may not be loaded yet."""
        for name in _imported_names(node, package):
            label = f"module {name}"
            if label in self.found or name.partition(".")[0] in _PYTHON:
                continue
            file = _source_file(name)
            if file is not None and str(file.absolute()).startswith(_PACKAGE):
                continue
            tree = None if file is None else _parsed(file.read_text(encoding="utf-8", errors="replace"))
            if file is not None and tree is not None:
                self._put(label, _meaning(tree))
                self._add_imports(tree, name if file.name == "__init__.py" else name.rpartition(".")[0])

    def _put(self, label: str, text: str) -> None:
        # Two lambdas of one function have the same name.
        names = itertools.chain([label], (f"{label} ({number})" for number in itertools.count(2)))
        self.found[next(name for name in names if name not in self.found)] = _digest(
            text.encode("utf-8", "surrogatepass")
        )


def _closed_over(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        # The class that super() belongs to is what is being described already; a cell may still be empty.
        if name != "__class__":
            try:
                yield name, cell.cell_contents
            except ValueError:
                continue


def _globals_of(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The globals that a function reads but does not set, and its imports from user modules, by their full names."""
    code = function.__code__
    words = sorted(_names_in(code))
    for name in sorted(_names_in(code, "LOAD_GLOBAL", "LOAD_NAME") - _names_in(code, "STORE_GLOBAL", "DELETE_GLOBAL")):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            if is_user_module(value.__name__):
                yield from ((f"{value.__name__}.{word}", vars(value)[word]) for word in words if word in vars(value))
        elif not (name.startswith("_") and isinstance(value, list | set | dict)):  # these are filled at run time
            yield f"{function.__module__}.{name}", value


@functools.lru_cache(4096)
def _names_in(code: types.CodeType, *instructions: str) -> set[str]:
    """The names on which some code, including nested functions, uses one of these instructions; none means any."""
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
    unwrapped = [_unwrapped(getattr(part, "__func__", part)) for part in parts]
    return [part for part in unwrapped if isinstance(part, types.FunctionType)]


def _unwrapped(value: Any) -> Any:
    """The function inside a compiled or cached one."""
    inner = getattr(value, "py_func", None) or getattr(value, "__wrapped__", None)
    return inner if isinstance(inner, types.FunctionType) and not isinstance(value, types.FunctionType) else value


# --- source ---


def _node_of(code: types.CodeType) -> ast.AST | None:
    """The syntax tree of a function without its decorators; None if the source is missing or has changed."""
    tree = _parsed("".join(linecache.getlines(code.co_filename)))
    found = [] if tree is None else _functions_in(tree).get((code.co_firstlineno, code.co_name), [])
    if len(found) > 1:  # several lambdas on one line: each begins at its own column
        places = {(start, column) for start, _, column, _ in code.co_positions()}
        found = [node for node in found if (node.body.lineno, node.body.col_offset) in places]
    return found[0] if len(found) == 1 else None


@functools.lru_cache(64)
def _parsed(text: str) -> ast.Module | None:
    """The syntax tree without docstrings and annotations; None for text that cannot be imported."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.JoinedStr):  # early releases of 3.12 add an empty text to format specifications
            node.values = [part for part in node.values if not (isinstance(part, ast.Constant) and part.value == "")]
        body = getattr(node, "body", None)
        if (
            isinstance(body, list)
            and body
            and isinstance(body[0], ast.Expr)
            and isinstance(body[0].value, ast.Constant)
        ):
            del body[0]
    return tree


@functools.lru_cache(64)
def _functions_in(tree: ast.Module) -> dict[tuple[int, str], list[Any]]:
    """The functions and lambdas of a module, by the first line and the name of their code."""
    found: dict[tuple[int, str], list[Any]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Lambda):
            found.setdefault((node.lineno, "<lambda>"), []).append(node)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault((first, node.name), []).append(node)
    return found


def _meaning(node: Any) -> str:
    """What a function or module does, as text that is the same in every Python version.

    The decorators of a function are left out: their result is compared instead.
    """
    parts = [node.args] if hasattr(node, "args") else []
    parts += node.body if isinstance(node.body, list) else [node.body]
    return _EMPTY_FIELD.sub("", "\n".join(map(ast.dump, parts))).replace("(, ", "(")


def _bytecode(code: types.CodeType, doc: str | None = None) -> str:
    constants = []
    for place, constant in enumerate(code.co_consts):
        if inspect.iscode(constant):
            constants.append(_bytecode(constant))
        elif isinstance(constant, frozenset):
            constants.append(repr(sorted(constant, key=repr)))
        elif place or constant != doc:  # a docstring
            constants.append(repr(constant))
    return repr((code.co_code, constants, code.co_names, code.co_varnames))


def _imported_names(node: ast.AST, package: str) -> Iterator[str]:
    """The full names that code imports: modules, their packages, and imported names (which may be modules too)."""
    for part in ast.walk(node):
        names: list[str] = []
        if isinstance(part, ast.Import):
            names = [alias.name for alias in part.names]
        elif isinstance(part, ast.ImportFrom):
            try:
                module = importlib.util.resolve_name("." * part.level + (part.module or ""), package)
            except ImportError:
                continue
            names = [f"{module}.{alias.name}" for alias in part.names]
        for name in names:
            yield from (name[: dot.start()] for dot in re.finditer(r"\.", name))
            yield name


def _source_file(module: str) -> Path | None:
    """The source of a module that is not installed, found as Python does, but without importing its packages."""
    folders = [Path(folder) for folder in sys.path if not _is_installed(folder)]
    file = None
    for name in module.split("."):
        places = [place for folder in folders for place in (folder / name / "__init__.py", folder / f"{name}.py")]
        file = next((place for place in places if place.is_file()), None)
        if file is None:
            folders = [folder / name for folder in folders if (folder / name).is_dir()]
        else:
            folders = [file.parent] if file.name == "__init__.py" else []
    return file
