"""Keeps a process from loading packages that it does not need, or not yet.

PyArrow imports pandas, if installed, when it converts the first value, which takes longer than a small job; numba
imports SciPy to check its version, and other packages for unused settings. Only processes that run no user code defer
them: there, all frames pass through the pandas conversion, which imports pandas on first use. A worker that will run
user code imports pandas before it starts.

Some modules are imported by many others that rarely use them. Their code runs when one of their names is first
accessed.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_HIDDEN = ("pandas", "scipy", "yaml", "coverage")
"""Modules that PyArrow and numba try to import but do not need."""
_ON_USE = ("pyarrow.compute", "pyarrow.parquet")
"""Modules that are executed on first use."""
_lock = threading.RLock()
_running: list[ModuleType] = []


class _Finder:
    """Makes packages look as if they were not installed while it is `hiding`, and imports numba during that time.

    Setting them to None in `sys.modules` does not work: compiled modules such as PyArrow's mistake it for the package.
    """

    hiding = True

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Reject hidden packages, and leave everything else to the other finders."""
        if self.hiding and name in _HIDDEN:
            raise ModuleNotFoundError(f"{name} is loaded when it is needed", name=name)
        if self.hiding or name != "numba":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _HidingLoader(spec.loader, self)
        return spec


class _HidingLoader(Loader):
    """Executes a package while the finder is hiding others."""

    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader = loader
        self._finder: Any = finder

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._finder.hiding = True
        sys.meta_path.insert(0, self._finder)
        try:
            self._loader.exec_module(module)
        finally:
            sys.meta_path.remove(self._finder)


class _OnUse(ModuleType):
    """A module whose code runs when a missing name is first accessed.

    The standard library's `LazyLoader` does the same, but two concurrent threads can see a half-initialised module.
    """

    def __getattr__(self, name: str) -> Any:
        with _lock:
            if type(self) is _OnUse:
                if self in _running:  # accessed by its own code
                    raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
                assert self.__spec__ is not None
                assert self.__spec__.loader is not None
                _running.append(self)
                try:
                    self.__spec__.loader.exec_module(self)
                finally:
                    _running.remove(self)
                object.__setattr__(self, "__class__", ModuleType)
        return getattr(self, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by name, because modules are sent to workers with user code."""
        return importlib.import_module, (self.__name__,)


def defer_imports(*, kernels: bool = True) -> None:
    """Import PyArrow and numba without the packages that can wait.

    Args:
        kernels: If False, numba is imported with the first kernel.
    """
    if not sys.modules.keys().isdisjoint(("pandas", "scipy", "pyarrow", "numba")):
        return
    finder: Any = _Finder()
    sys.meta_path.insert(0, finder)
    import pyarrow as pa

    pa.scalar(1)
    if kernels:
        import numba  # noqa: F401

        sys.meta_path.remove(finder)
    finder.hiding = False
    for name in _ON_USE:
        spec = importlib.util.find_spec(name)
        if spec is None or name in sys.modules:
            continue
        module = importlib.util.module_from_spec(spec)
        module.__class__ = _OnUse
        sys.modules[name] = module
        setattr(pa, name.rpartition(".")[2], module)
