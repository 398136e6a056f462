"""Load or compile every kernel before work starts, and tell which of the two it was.

Each module of this package with compiled functions offers `warm()`, which runs them once on next to nothing.
"""

from __future__ import annotations

import pkgutil
import sys
import time
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import gristmill.kernels as package


class WarmUp(NamedTuple):
    """What warming up took.

    Attributes:
        compiled: Whether any kernel had to be compiled; False when all came from the cache on disk.
        seconds: The time it took.
    """

    compiled: bool
    seconds: float


def kernel_modules() -> list[ModuleType]:
    """The modules of this package that offer `warm()`, by name."""
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__) if found.name != "warm")
    modules = [import_module(f"{package.__name__}.{name}") for name in names]
    return [module for module in modules if hasattr(module, "warm")]


def is_cold() -> bool:
    """Whether some kernel is neither in memory nor in the cache on disk, so that warming up will take a while."""
    return any(_uncached(value) for module in kernel_modules() for value in vars(module).values())


def _uncached(value: Any) -> bool:
    cache = getattr(getattr(value, "_cache", None), "_cache_file", None)
    if cache is None or getattr(value, "signatures", None):
        return False
    return not cache._load_index()


def _compilations(module: ModuleType) -> int:
    """How many kernels of a module were compiled rather than loaded in this process."""
    dispatchers = (value for value in vars(module).values() if hasattr(value, "stats") and hasattr(value, "py_func"))
    return sum(sum(dispatcher.stats.cache_misses.values()) for dispatcher in dispatchers)


def load_cached() -> int:
    """Load what the cache on disk has of the kernels that this process imported; returns how many were loaded.

    The tables of character classes that some of them look into are made too.
    """
    loaded = 0
    tables = sys.modules.get(f"{package.__name__}.unicode_classes")
    if tables is not None:
        tables.class_tables()
    for value in _imported():
        cache = getattr(getattr(value, "_cache", None), "_cache_file", None)
        if cache is None or value.signatures:
            continue
        for key in cache._load_index():
            value.compile(key[0])
            loaded += 1
    return loaded


def all_cached() -> bool:
    """Whether the cache on disk has something of every kernel that this process imported."""
    return not any(map(_uncached, _imported()))


def _imported() -> list[Any]:
    prefix = package.__name__ + "."
    modules = [module for name, module in sys.modules.items() if name.startswith(prefix)]
    return [value for module in modules for value in vars(module).values() if hasattr(value, "py_func")]


def warm_up(progress: Callable[[int, int, bool], None] | None = None) -> WarmUp:
    """Load every kernel from the cache on disk, compiling those that are not there.

    Args:
        progress: Called before each module with its number from 0, the number of modules, and whether kernels are being
            compiled; and once at the end, with the first two equal.
    """
    started = time.perf_counter()
    modules = kernel_modules()
    cold = progress is not None and is_cold()
    before = sum(map(_compilations, modules))
    for number, module in enumerate(modules):
        if progress is not None:
            progress(number, len(modules), cold)
        module.warm()
    compiled = sum(map(_compilations, modules)) > before
    if progress is not None:
        progress(len(modules), len(modules), compiled)
    return WarmUp(compiled, time.perf_counter() - started)
