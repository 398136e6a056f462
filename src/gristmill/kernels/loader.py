"""Kernels in processes that only run what is compiled already: machine code is loaded and called without numba.

Importing numba takes most of the time until a worker can begin. A process that says so before it imports the first
kernel (`gristmill.kernels.without_numba`) gets `LoadedKernel`s, which find their code on disk, and descriptions of
helpers. The first kernel that is not found makes real ones of all: numba is imported and compiles as it does elsewhere.

What is private here is what machine code made by numba expects around it: three of its compiled modules, which are
loaded by themselves, and the names that it gives to their functions. `tests/unit/kernels/test_loader.py` fails when
one of them is gone.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import pickle
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import module_from_spec
from types import FunctionType
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from gristmill.kernels.processor import level_of

SUFFIX = ".kernel"
_FOLDER = os.path.dirname(os.path.abspath(__file__))
PLACES = (os.path.join(_FOLDER, "compiled"), os.path.join(_FOLDER, "__pycache__"))
"""Where code is looked for: what a wheel brought, and what was compiled in this checkout."""
_modules: dict[int, dict[str, Any]] = {}
"""The names of the modules that hold helpers and kernels, by which they call each other."""
_lock = threading.RLock()


class Later:
    """A helper of kernels that numba has not seen yet: the function, and what is to be made of it."""

    def __init__(self, function: FunctionType, make: Callable[[Any], Any], *, is_intrinsic: bool) -> None:
        self.function, self.make, self.is_intrinsic = function, make, is_intrinsic
        self.py_func = None if is_intrinsic else function
        _modules[id(function.__globals__)] = function.__globals__
        self.__module__, self.__name__ = function.__module__, function.__name__
        self._made: Any = None

    def __call__(self, *args: Any) -> Any:
        """Call it from Python, which kernels never do."""
        make_real()
        return self.real()(*args)

    def real(self) -> Any:
        """What numba makes of it."""
        if self._made is None:
            self._made = self.make(self.function)
        return self._made


class LoadedKernel:
    """A kernel whose machine code is called as it lies on disk; anything else is left to numba's dispatcher."""

    def __init__(self, function: FunctionType, sources: str, make: Callable[[], Any]) -> None:
        """The kernel `function`, made from sources with that digest; `make` has numba take it over."""
        self.py_func, self._sources, self._make = function, sources, make
        self.__module__, self.__name__, self.__doc__ = function.__module__, function.__name__, function.__doc__
        self.store_name = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"
        self._entries: dict[str, Any] = {}
        _modules[id(function.__globals__)] = function.__globals__
        self._real: Any = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the code for the types of the arguments."""
        if self._real is None and not named:
            kinds = " ".join(map(_kind, args))
            entry = self._entries.get(kinds) or self.load(kinds)
            if entry is not None:
                return entry(*args)
        return self.real()(*args, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _kernel_named, (self.__module__, self.__name__)

    @property
    def signatures(self) -> list[Any]:
        """What is loaded."""
        return list(self._entries) if self._real is None else list(self._real.signatures)

    def load(self, kinds: str | None = None) -> Any:
        """Load the code for these types, or without any all that there is; None where there is none."""
        with _lock:
            for path, header, code in _files_of(self.store_name, self._sources):
                signature = header["signature"]
                if signature is not None and signature not in self._entries and kinds in (None, signature):
                    self._entries[signature] = _callable(self, path, header, code)
        return self._entries.get(kinds or "")

    def real(self) -> Any:
        """Numba's dispatcher for it."""
        if self._real is None:
            make_real()
            self._real = self._make()
        return self._real


def make_real() -> None:
    """Import numba, and replace the helpers in all kernels' modules by what it makes of them."""
    import gristmill.kernels

    with _lock:
        if not gristmill.kernels.without_numba:
            return
        gristmill.kernels.without_numba = False
        for names in _modules.values():
            for key, value in list(names.items()):
                if isinstance(value, Later):
                    names[key] = value.real()


def _kernel_named(module: str, name: str) -> Any:
    __import__(module)
    return getattr(sys.modules[module], name)


def _kind(value: Any) -> str:
    """The type of an argument as in the list of signatures; `?` for what only numba can tell."""
    if isinstance(value, np.ndarray):
        flags, kind = value.flags, value.dtype
        if not (flags.c_contiguous and flags.aligned and kind.isnative):
            return "?"
        return f"{kind.name}[{value.ndim}]{'' if flags.writeable else '!'}"
    if isinstance(value, np.generic):
        return value.dtype.name
    return _PLAIN.get(type(value), "?")


_PLAIN = {bool: "bool", int: "int64", float: "float64"}


# --- files ---


@lru_cache(maxsize=1)
def versions() -> tuple[str, ...]:
    """As `store.VERSIONS`, without importing numba."""
    place = _numba_folder()
    loader = SourceFileLoader("numba._version", os.path.join(place, "_version.py"))
    module = module_from_spec(ModuleSpec(loader.name, loader, origin=loader.path))
    loader.exec_module(module)
    return (
        f"numba {module.get_versions()['version']}",
        f"llvmlite {llvmlite.__version__}",
        f"cp{sys.version_info.major}{sys.version_info.minor}{sys.abiflags}",
    )


@lru_cache(maxsize=1)
def target() -> tuple[str, str, str] | None:
    """What code must be compiled for; None for a processor that is of no level."""
    triple = llvm.get_process_triple()
    level = level_of(triple.partition("-")[0], llvm.get_host_cpu_features())
    return None if level is None else (triple, level, "")


@lru_cache(maxsize=1)
def _listing() -> tuple[tuple[str, list[str]], ...]:
    return tuple((folder, os.listdir(folder)) for folder in PLACES if os.path.isdir(folder))


def _files_of(name: str, sources: str) -> list[tuple[str, dict[str, Any], bytes]]:
    """The files of a kernel that may be used here: where each lies, its head, and its code."""
    found = []
    for folder, names in _listing():
        for file in names:
            if file.startswith(f"{name}-") and file.endswith(SUFFIX):
                path = os.path.join(folder, file)
                try:
                    with open(path, "rb") as opened:
                        digest, content = opened.readline(), opened.read()
                except OSError:
                    continue
                if digest.strip() != hashlib.sha256(content).hexdigest().encode():
                    continue
                head, _, code = content.partition(b"\n")
                header = json.loads(head)
                key = header["key"]
                if [key[0], *key[2:]] == [name, sources, *versions(), *(target() or ())]:
                    found.append((path, header, code))
    return found


# --- machine code ---


def _numba_folder() -> str:
    # The finders of this process may treat numba in a way of their own.
    spec = PathFinder.find_spec("numba")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("numba is not installed", name="numba")
    return os.path.dirname(spec.origin)


def _extension(name: str) -> Any:
    """A compiled module of numba by itself, without the package around it."""
    *folders, last = name.split(".")
    path = os.path.join(_numba_folder(), *folders, last + EXTENSION_SUFFIXES[0])
    loader = ExtensionFileLoader(f"numba.{name}", path)
    module = module_from_spec(ModuleSpec(loader.name, loader, origin=path))
    loader.exec_module(module)
    return module


@lru_cache(maxsize=1)
def _dynfunc() -> Any:
    return _extension("_dynfunc")


@lru_cache(maxsize=1)
def engine() -> Any:
    """LLVM's engine, with all that code by numba may call: its runtime, its helpers, mathematics, exceptions."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    helpers = _extension("_helperlib").c_helpers
    for name, address in _extension("core.runtime._nrt_python").c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", address)
    for name, address in (*helpers.items(), *_dynfunc().c_helpers.items()):
        llvm.add_symbol(f"numba_{name}", address)
    llvm.add_symbol("numba_unpickle", ctypes.cast(_unpickle, ctypes.c_void_p).value)
    for name in _MATHEMATICS & helpers.keys():
        llvm.add_symbol(name, helpers[name])
    llvm.add_symbol("_Py_NoneStruct", id(None))
    for value in vars(sys.modules["builtins"]).values():
        if isinstance(value, type) and issubclass(value, BaseException):
            llvm.add_symbol(f"PyExc_{value.__name__}", id(value))
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=3, jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
def _unpickle(data: int, size: int, hashed: int) -> Any:
    """An object that code holds as a pickle: the class of the arrays that it returns, else one for numba to make.

    numba's own function imports the package first.
    """
    pickled = ctypes.string_at(data, size)
    if pickled == _ARRAY:
        return np.ndarray
    from numba.core.serialize import _numba_unpickle

    return _numba_unpickle(data, pickled, ctypes.string_at(hashed, 20))


_ARRAY = pickle.dumps(np.ndarray, protocol=4)
_MATHEMATICS = {
    *("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("exp", "expm1", "log", "log10", "log1p", "log2", "exp2", "pow", "sqrt", "hypot", "fmod", "erf", "erfc"),
    *("gamma", "lgamma", "floor", "ceil", "copysign"),
}


def _callable(kernel: LoadedKernel, path: str, header: dict[str, Any], code: bytes) -> Any:
    """The function of Python that calls code."""
    made = engine()
    made.add_object_file(llvm.object_file.ObjectFileRef.from_data(code))
    made.finalize_object()
    environments = {}
    for name, (module, *constants) in header["constants"].items():
        environments[name] = _dynfunc().Environment(vars(sys.modules[module]))
        environments[name].consts[:] = map(np.dtype, constants)
        ctypes.c_void_p.from_address(made.get_global_value_address(name)).value = id(environments[name])
    own = environments[header["environment"]]
    address = made.get_function_address(header["wrapper"])
    module = sys.modules[kernel.__module__]
    return _dynfunc().make_function(module, kernel.__name__, "", address, own, (environments, made))
