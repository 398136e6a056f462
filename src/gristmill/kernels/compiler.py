"""The decorators of compiled kernels and of their helpers.

Kernels release the GIL and their machine code is kept on disk (`store`), so that a second process starts at once. What
no wheel brought lies beside the source file or, where that folder is read-only, in the user's cache folder, or else in
a private folder of the temporary one. Where nothing can be written, every process compiles for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import gristmill.kernels
from gristmill.kernels.loader import Later, LoadedKernel

if TYPE_CHECKING:
    from gristmill.kernels.store import CodeStore

gristmill.kernels.in_use = True
F = TypeVar("F", bound=Callable[..., object])

all_kernels: list[Any] = []
"""Those that this process has imported."""
stores: dict[Any, CodeStore] = {}
"""Where the machine code of each is kept."""
compile_listeners: list[Callable[[str], None]] = []
"""Called with the name of a kernel that is not in the cache, just before it is compiled."""


def kernel(function: F, **options: Any) -> F:
    """Compile `function` on its first call, without the GIL, and keep the result on disk.

    It can be called from Python only; what kernels have in common is a helper.

    Raises:
        TypeError: It uses variables of a function around it, which nothing on disk could tell apart.
    """
    if function.__closure__:
        raise TypeError(f"The kernel {function.__qualname__} uses variables of a function around it: pass them to it.")
    sources = _digest_of(_helper_files(function, set()) | {function.__code__.co_filename})
    if not gristmill.kernels.without_numba:
        return cast(F, _dispatcher(function, sources, options))
    made = LoadedKernel(cast(FunctionType, function), sources, lambda: _taken_over(made, sources, options))
    all_kernels.append(made)
    return cast(F, made)


def _taken_over(kernel: LoadedKernel, sources: str, options: dict[str, Any]) -> Any:
    """Numba's dispatcher for a kernel that was loaded without it, which it replaces for everybody who asks later."""
    dispatcher = _dispatcher(kernel.py_func, sources, options)
    setattr(sys.modules[kernel.__module__], kernel.__name__, dispatcher)
    all_kernels.remove(kernel)
    return dispatcher


def _dispatcher(function: Callable[..., object], sources: str, options: dict[str, Any]) -> Any:
    from gristmill.kernels.numba_internals import use_store
    from gristmill.kernels.store import CodeStore

    numba = _numba()
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        dispatcher = numba.njit(function, cache=True, **options)
    except RuntimeError:  # no folder to cache in
        try:
            numba.config.CACHE_DIR = _private_folder()
            dispatcher = numba.njit(function, cache=True, **options)
        except (OSError, RuntimeError):
            dispatcher = numba.njit(function, **options)
    stores[dispatcher] = CodeStore(dispatcher, sources, _tell)
    use_store(dispatcher, stores[dispatcher].load)
    all_kernels.append(dispatcher)
    return dispatcher


def _private_folder() -> str:
    """A folder of the temporary one that nobody else can write to: what is cached in it is code.

    Raises:
        OSError: There can be none.
    """
    import tempfile

    folder = os.path.join(tempfile.gettempdir(), f"gristmill-kernels-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not ours alone")
    return folder


def float_kernel(function: F) -> F:
    """Compile `function` as `kernel` does, for arithmetic whose additions may be done in any order.

    The result is then a few last bits away from that of the written order, and the same on every run. Infinities and
    values that are not numbers keep their meaning.
    """
    return kernel(function, fastmath={"reassoc", "contract", "nsz", "arcp"})


def finite_leaf(function: F) -> F:
    """Compile `function` as `leaf` does, for finite numbers only.

    What it gives for others means nothing, and the kernel around it may take what it hands over for finite as well: a
    check by `isfinite` there is left out by the compiler. Have the caller of the kernel check.
    """
    return cast(F, _helper(function, _finite_leaf))


def inlined(function: F) -> F:
    """Compile `function` as a part of the kernels that call it."""
    return cast(F, _helper(function, _inlined))


def leaf(function: F) -> F:
    """Compile `function` into the kernels that call it, without counting references; it must not allocate."""
    return cast(F, _helper(function, _leaf))


def routine(function: F) -> F:
    """Compile `function` once and call it from kernels, without counting references; the longer kind of leaf."""
    return cast(F, _helper(function, _routine))


def intrinsic(function: Callable[..., Any]) -> Any:
    """Have kernels call what `function` tells LLVM to do; as `numba.extending.intrinsic`."""
    return _helper(function, _intrinsic, is_intrinsic=True)


class _Types:
    """`numba.types`, which is imported when the first of its names is asked for."""

    def __getattr__(self, name: str) -> Any:
        from numba import types

        return getattr(types, name)


types: Any = _Types()


def _helper(function: Any, make: Callable[[Any], Any], *, is_intrinsic: bool = False) -> Any:
    later = Later(function, make, is_intrinsic=is_intrinsic)
    return later if gristmill.kernels.without_numba else later.real()


def _numba() -> Any:
    """numba, which is told first what to compile for: it settles that with the first function that it sees."""
    import numba

    import gristmill.kernels.store  # noqa: F401 (tells it)

    return numba


def _finite_leaf(function: Any) -> Any:
    from gristmill.kernels.numba_internals import INLINE, UNCOUNTED

    return _numba().njit(function, nogil=True, error_model="numpy", fastmath=True, **INLINE, **UNCOUNTED)


def _inlined(function: Any) -> Any:
    return _numba().njit(function, inline="never", nogil=True, error_model="numpy")


def _leaf(function: Any) -> Any:
    from gristmill.kernels.numba_internals import INLINE, UNCOUNTED

    return _numba().njit(function, nogil=True, error_model="numpy", **INLINE, **UNCOUNTED)


def _routine(function: Any) -> Any:
    from gristmill.kernels.numba_internals import UNCOUNTED

    return _numba().njit(function, inline="never", nogil=True, error_model="numpy", **UNCOUNTED)


def _intrinsic(function: Any) -> Any:
    from numba.extending import intrinsic

    made = intrinsic(function)
    _intrinsics.append(made)
    return made


_intrinsics: list[Any] = []


def _tell(name: str) -> None:
    for listener in compile_listeners:
        listener(name)


def _digest_of(files: set[str]) -> str:
    """One for all that a kernel is compiled from: numba watches only the file with the kernel itself."""
    digest = hashlib.sha256()
    for file in sorted(files, key=os.path.basename):
        digest.update(_digest_of_file(file))
    return digest.hexdigest()


@functools.cache
def _digest_of_file(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return hashlib.sha256(opened.read()).digest()
    except OSError:  # in an archive: nothing on disk is known to be made from it
        return os.urandom(32)


def _helper_files(function: Callable[..., object], seen: set[int]) -> set[str]:
    """The source files of all compiled helpers that a function reaches through its global names."""
    files: set[str] = set()
    for name in function.__code__.co_names:
        helper: Any = function.__globals__.get(name)
        module = sys.modules.get(getattr(helper, "__module__", None) or "")
        plain = getattr(helper, "py_func", None)
        is_intrinsic = helper.is_intrinsic if isinstance(helper, Later) else any(helper is one for one in _intrinsics)
        if (plain is None and not is_intrinsic) or id(helper) in seen:
            continue
        seen.add(id(helper))
        file = getattr(module, "__file__", None)
        if file is not None and os.path.exists(file):
            files.add(file)
        if plain is not None:
            files |= _helper_files(plain, seen)
    return files
