"""Sees the local modules that code imports inside its functions, without importing them.

Such a module may not be loaded yet when a plan is described, and may be loaded when it is described again; so it is
always read from its file, whole, together with the local modules that it imports in turn.
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path

_INSTALLED = frozenset({"site-packages", "dist-packages"})


def is_installed(file: str) -> bool:
    """Whether a file lies where packages are installed."""
    return not _INSTALLED.isdisjoint(re.split(r"[/\\]", file))


def imported_modules(code: types.CodeType, *, package: str, skip: frozenset[str]) -> dict[str, types.CodeType]:
    """The local modules that `code` imports, also by way of each other, by name.

    Args:
        code: The code of a function.
        package: The package that its relative imports start from.
        skip: Packages that are not looked for.
    """
    found: dict[str, types.CodeType] = {}
    waiting = [(code, package)]
    while waiting:
        for name in _imported_names(*waiting.pop()):
            if name in found or name.split(".")[0] in skip:
                continue
            file = _source_file(name)
            inner = None if file is None else _compiled(file)
            if file is not None and inner is not None:
                found[name] = inner
                waiting.append((inner, name if file.name == "__init__.py" else name.rpartition(".")[0]))
    return found


@functools.lru_cache(4096)
def _imported_names(code: types.CodeType, package: str) -> tuple[str, ...]:
    """The full names that are imported: of modules, their packages, and what is taken from them (maybe modules too)."""
    return tuple(dict.fromkeys(_each_name(code, package)))


def _each_name(code: types.CodeType, package: str) -> Iterator[str]:
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for place, step in enumerate(steps):
        if step.opname != "IMPORT_NAME":
            continue
        level, taken = steps[place - 2].argval, steps[place - 1].argval
        parts = [*package.split(".")[: 1 - level or None], *str(step.argval).split(".")] if level else [step.argval]
        module = ".".join(part for part in parts if part)
        yield from (module[: dot.start()] for dot in re.finditer(r"\.", module))
        yield from (module, *(f"{module}.{name}" for name in taken or ()))
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _each_name(constant, package)


def _source_file(module: str) -> Path | None:
    """The source of a module that is not installed, found as Python does, but without running its packages."""
    folders = [Path(folder) for folder in sys.path if not is_installed(folder)]
    file = None
    for name in module.split("."):
        file = next(
            (
                file
                for folder in folders
                for file in (folder / name / "__init__.py", folder / f"{name}.py")
                if file.is_file()
            ),
            None,
        )
        if file is None:
            folders = [folder / name for folder in folders if (folder / name).is_dir()]
        else:
            folders = [file.parent] if file.name == "__init__.py" else []
    return file


def _compiled(file: Path) -> types.CodeType | None:
    """The code of a source file; None where it has errors, which its import will tell."""
    try:
        return compile(file.read_bytes(), file.name, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
