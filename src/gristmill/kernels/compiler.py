"""The decorators of compiled kernels and of their helpers.

Kernels release the GIL and their machine code is cached on disk (`store`), so that a second process starts immediately.
Code that did not come with a wheel is stored beside the source file or, if that folder is read-only, in the user's
cache folder, or else in a private temporary folder. If nothing is writable, every process compiles for itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from gristmill.kernels.numba_internals import INLINE, UNCOUNTED, Intrinsic, use_store
from gristmill.kernels.store import CodeStore

F = TypeVar("F", bound=Callable[..., object])

all_kernels: list[Any] = []
"""The kernels that this process has imported."""
stores: dict[Any, CodeStore] = {}
"""The cache of each kernel's machine code."""
compile_listeners: list[Callable[[str], None]] = []
"""Called with the name of a kernel that is not in the cache, just before it is compiled."""


def kernel(function: F, **options: Any) -> F:
    """Compile `function` on its first call, without the GIL, and keep the result on disk.

    It can only be called from Python; code shared by kernels is a helper.

    Raises:
        TypeError: It uses variables of an enclosing function, which the cache could not distinguish.
    """
    if function.__closure__:
        raise TypeError(
            f"The kernel {function.__qualname__} uses variables of an outer function: pass them as arguments."
        )
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        dispatcher = numba.njit(function, cache=True, **options)
    except RuntimeError:  # no folder to cache in
        try:
            numba.config.CACHE_DIR = _private_folder()
            dispatcher = numba.njit(function, cache=True, **options)
        except (OSError, RuntimeError):
            dispatcher = numba.njit(function, **options)
    sources = _digest_of(_helper_files(function, set()) | {function.__code__.co_filename})
    stores[dispatcher] = CodeStore(dispatcher, sources, _tell)
    use_store(dispatcher, stores[dispatcher].load)
    all_kernels.append(dispatcher)
    return cast(F, dispatcher)


def _private_folder() -> str:
    """A temporary folder that no other user can write to, because it caches code.

    Raises:
        OSError: There is no such folder.
    """
    import tempfile

    folder = os.path.join(tempfile.gettempdir(), f"gristmill-kernels-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is accessible to other users")
    return folder


def float_kernel(function: F) -> F:
    """Compile `function` like `kernel`, for arithmetic whose additions may be reordered.

    The result may differ from the written order in the last few bits, but is the same in every run. Infinities and NaN
    keep their meaning.
    """
    return kernel(function, fastmath={"reassoc", "contract", "nsz", "arcp"})


def finite_leaf(function: F) -> F:
    """Compile `function` like `leaf`, for finite numbers only.

    Its result for others is meaningless, and the compiler may assume that the calling kernel's values are finite too
    and remove an `isfinite` check there. Check in the caller of the kernel.
    """
    return cast(F, numba.njit(function, nogil=True, error_model="numpy", fastmath=True, **INLINE, **UNCOUNTED))


def inlined(function: F) -> F:
    """Compile `function` as a part of the kernels that call it."""
    return cast(F, numba.njit(function, inline="never", nogil=True, error_model="numpy"))


def leaf(function: F) -> F:
    """Compile `function` into the kernels that call it, without counting references; it must not allocate."""
    return cast(F, numba.njit(function, nogil=True, error_model="numpy", **INLINE, **UNCOUNTED))


def routine(function: F) -> F:
    """Compile `function` once and call it from kernels, without counting references; for longer leaves."""
    return cast(F, numba.njit(function, inline="never", nogil=True, error_model="numpy", **UNCOUNTED))


def _tell(name: str) -> None:
    for listener in compile_listeners:
        listener(name)


def _digest_of(files: set[str]) -> str:
    """A digest of everything that a kernel is compiled from: numba only watches the file with the kernel itself."""
    digest = hashlib.sha256()
    for file in sorted(files, key=os.path.basename):
        digest.update(_digest_of_file(file))
    return digest.hexdigest()


@functools.cache
def _digest_of_file(file: str) -> bytes:
    try:
        with open(file, "rb") as opened:
            return hashlib.sha256(opened.read()).digest()
    except OSError:  # in an archive: no cache entry can be matched with it
        return os.urandom(32)


def _helper_files(function: Callable[..., object], seen: set[int]) -> set[str]:
    """The source files of all compiled helpers that a function reaches through its global names."""
    files: set[str] = set()
    for name in function.__code__.co_names:
        helper: Any = function.__globals__.get(name)
        module = sys.modules.get(getattr(helper, "__module__", None) or "")
        plain = getattr(helper, "py_func", None)
        if (plain is None and not isinstance(helper, Intrinsic)) or id(helper) in seen:
            continue
        seen.add(id(helper))
        file = getattr(module, "__file__", None)
        if file is not None and os.path.exists(file):
            files.add(file)
        if plain is not None:
            files |= _helper_files(plain, seen)
    return files
