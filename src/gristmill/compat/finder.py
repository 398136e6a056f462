"""Finds `nemo_curator` and everything below it in Gristmill.

A module of the old name has its own spec and no code: it looks up its names where `names` says they are. Classes and
functions are those of Gristmill, so pickles and isinstance checks see one class under both names.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import gristmill
from gristmill.compat import names
from gristmill.errors import NotSupportedError, UsageError, did_you_mean

PACKAGE = "nemo_curator"
VARIABLE = "GRISTMILL_COMPAT"
_SOURCE = Path(gristmill.__path__[0])


class MissingName:
    """Stands for a name that Gristmill does not have; using it raises an error that names the closest equivalent.

    It can be imported and used in annotations, so that a script that needs it only in optional parts still runs.
    Attributes that scripts use to find files are readable.
    """

    def __init__(self, path: str, advice: str) -> None:
        self._path = path
        self._advice = advice
        self.__dict__.update(names.ATTRIBUTES.get(path.rpartition(".")[2], {}))

    def _refuse(self) -> NotSupportedError:
        return NotSupportedError(f"Gristmill has no {self._path}. {self._advice}", name=self._path)

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise self._refuse()

    __contains__ = __enter__ = __fspath__ = __instancecheck__ = __iter__ = __call__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refuse()

    def __mro_entries__(self, _: Any) -> Any:
        raise self._refuse()

    def __getitem__(self, _: Any) -> MissingName:
        return self

    def __or__(self, _: Any) -> MissingName:
        return self

    __ror__ = __or__

    def __reduce__(self) -> tuple[Any, ...]:
        return MissingName, (self._path, self._advice)

    def __repr__(self) -> str:
        return f"<{self._path}, which Gristmill does not have>"


class AliasModule(ModuleType):
    """A module of the old name."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return [public for public in dir(self) if not public.startswith("_")]
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = resolve(self.__name__, name)
        if isinstance(found, type):
            from gristmill.compat.constructors import adapt
            from gristmill.compat.dataclass_fields import add_fields

            adapt(found)
            add_fields(found)
        setattr(self, name, found)
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *names_of(self.__name__)})


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds and creates the modules below `nemo_curator`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != PACKAGE or not is_known(_below(fullname)):
            return None
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=f"gristmill for {fullname}", is_package=True)
        spec.submodule_search_locations = []
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return AliasModule(spec.name, f"`{spec.name}`, provided by Gristmill.")

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == PACKAGE:
            from gristmill.compat import contracts

            module.__dict__["__version__"] = names.VERSION
            contracts.apply()


def install(*, force: bool = False) -> None:
    """Make `import nemo_curator` resolve to Gristmill, in this process and in the workers of its pipelines.

    Args:
        force: Even if NeMo Curator itself is installed; this process can then no longer import it.

    Raises:
        UsageError: NeMo Curator is installed, or already imported.

    Example:
        >>> install()
        >>> from nemo_curator.stages.text.filters import ScoreFilter
    """
    if is_installed():
        return
    loaded = sys.modules.get(PACKAGE)
    if not force and (loaded is not None or importlib.util.find_spec(PACKAGE) is not None):
        raise UsageError(
            f"{PACKAGE} is installed in this environment, so it is not clear which one a script means. Use an "
            f"environment without it, or force it: gristmill.compat.install(force=True), python -m gristmill.compat "
            f"--force, or {VARIABLE}=force."
        )
    _forget_modules()
    sys.meta_path.insert(0, Finder())
    os.environ[VARIABLE] = "force" if force else "1"


def uninstall() -> None:
    """Undo `install`; what was imported under the old name stays usable."""
    if not is_installed():
        return
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Finder)]
    os.environ.pop(VARIABLE, None)
    if PACKAGE in sys.modules:
        from gristmill.compat import contracts

        contracts.undo()
    _forget_modules()


def is_installed() -> bool:
    """Whether `import nemo_curator` resolves to Gristmill in this process."""
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def load_ipython_extension(_: object) -> None:
    """`%load_ext gristmill.compat` in a notebook."""
    install()


def is_known(below: str) -> bool:
    """Whether there is a module of this name (relative to the package): in the table, in Gristmill, or absent."""
    if not below or _is_package(below) or names.absence(below) is not None:
        return True
    return _own_module(below) is not None


def _is_package(below: str) -> bool:
    """Whether the table has something of this name or below it."""
    prefix = f"{below}."
    return below in names.MODULES or any(
        known.startswith(prefix) for table in (names.MODULES, names.NAMES, names.ABSENT) for known in table
    )


def resolve(module: str, name: str) -> Any:
    """The object called `name` in a module of the old name.

    Raises:
        AttributeError: Neither system has it there; suggests the closest name.
    """
    below = _below(module)
    path = f"{below}.{name}" if below else name
    if path in names.NAMES:
        home, _, attribute = names.NAMES[path].partition(":")
        return getattr(importlib.import_module(f"gristmill.{home}"), attribute or name)
    for home in _homes(below):
        found = getattr(importlib.import_module(home), name, None)
        if found is not None and not isinstance(found, ModuleType):
            return found
    if _is_package(path) or _own_module(path) is not None:
        return importlib.import_module(f"{PACKAGE}.{path}")
    advice = names.absence(path)
    if advice is not None:
        return MissingName(f"{PACKAGE}.{path}", advice)
    raise AttributeError(
        f"module {module!r} has no attribute {name!r}.{did_you_mean(name, names_of(module))}", name=name, obj=None
    )


def names_of(module: str) -> list[str]:
    """The names that a module of the old name provides, without missing ones."""
    below = _below(module)
    found: set[str] = set()
    for path in names.NAMES:
        home, _, name = path.rpartition(".")
        if home == below:
            found.add(name)
    for home in _homes(below):
        target = importlib.import_module(home)
        public = getattr(target, "__all__", None)
        if public is None:
            public = [name for name, value in vars(target).items() if not isinstance(value, ModuleType)]
        found.update(public)
    return sorted(name for name in found if not name.startswith("_"))


def _homes(below: str) -> list[str]:
    """The modules of Gristmill to search for the names of an old module, closest first."""
    homes = [f"gristmill.{home}" for home in names.MODULES.get(below, ())]
    own = _own_module(below)
    return homes if own is None or own in homes else [*homes, own]


def _own_module(below: str) -> str | None:
    """The module of Gristmill at the same path."""
    if not below:
        return "gristmill"
    place = _SOURCE.joinpath(*below.split("."))
    if place.with_suffix(".py").is_file() or (place / "__init__.py").is_file():
        return f"gristmill.{below}"
    return None


def _below(module: str) -> str:
    return module.partition(".")[2]


def _forget_modules() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
