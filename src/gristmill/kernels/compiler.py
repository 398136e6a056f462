"""The one decorator every compiled kernel uses.

Kernels release the GIL and are cached on disk, so that a second process starts at once. The cache lies beside the
source file or, where that folder is read-only, in the user's cache folder; numba keys it by processor and version.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core.runtime import rtsys

F = TypeVar("F", bound=Callable[..., object])

compile_listeners: list[Callable[[str], None]] = []
"""Called with the name of a kernel that is not in the cache, just before it is compiled."""


def kernel(function: F) -> F:
    """Compile `function` on its first call, without the GIL, and keep the result on disk."""
    return _cached(function)


def float_kernel(function: F) -> F:
    """Compile `function` as `kernel` does, for arithmetic whose additions may be done in any order.

    The result is then a few last bits away from that of the written order, and the same on every run. Infinities and
    values that are not numbers keep their meaning.
    """
    return _cached(function, fastmath={"reassoc", "contract", "nsz", "arcp"})


def finite_leaf(function: F) -> F:
    """Compile `function` as `leaf` does, for finite numbers only.

    What it gives for others means nothing, and the kernel around it may take what it hands over for finite as well: a
    check by `isfinite` there is left out by the compiler. Have the caller of the kernel check.
    """
    return cast(F, numba.njit(function, forceinline=True, nogil=True, error_model="numpy", fastmath=True, _nrt=False))


def inlined(function: F) -> F:
    """Compile `function` as a part of the kernels that call it."""
    return cast(F, numba.njit(function, inline="never", nogil=True, error_model="numpy"))


def leaf(function: F) -> F:
    """Compile `function` into the kernels that call it, without counting references to the arrays it is given.

    Counting costs more than a short helper does: four atomic operations per array and call. A leaf must not allocate.
    """
    return cast(F, numba.njit(function, forceinline=True, nogil=True, error_model="numpy", _nrt=False))


def routine(function: F) -> F:
    """Compile `function` once and call it from kernels, without counting references; the longer kind of leaf."""
    return cast(F, numba.njit(function, inline="never", nogil=True, error_model="numpy", _nrt=False))


def _cached(function: F, **options: Any) -> F:
    dispatcher = numba.njit(function, cache=True, nogil=True, error_model="numpy", **options)
    _watch_helpers(dispatcher, function)
    _load_lightly(dispatcher)
    return cast(F, dispatcher)


def _load_lightly(dispatcher: Any) -> None:
    """Have a compiled kernel loaded from the cache without the library that only compiling needs.

    Before it looks into its cache numba imports everything it could ever compile, which takes longer than a small job.
    Machine code needs none of it, only the runtime that counts references. When nothing is found in the cache, the
    compiler imports the rest itself.
    """
    cache: Any = getattr(dispatcher, "_cache", None)
    if not hasattr(cache, "_load_overload") or not hasattr(cache, "_guard_against_spurious_io_errors"):
        return  # another version of numba: it loads in its own way

    def load_overload(signature: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        found = None
        with cache._guard_against_spurious_io_errors():
            found = cache._load_overload(signature, target_context)
        if found is None:
            for listener in compile_listeners:
                listener(dispatcher.py_func.__name__)
        return found

    cache.load_overload = load_overload


def _watch_helpers(dispatcher: Any, function: Callable[..., object]) -> None:
    """Make the kernel's cache stale when a file changes that its helpers come from; numba watches only its own file."""
    files = _helper_files(function, set()) - {function.__code__.co_filename}
    cache_file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    if not files or cache_file is None:
        return
    stamps = [(os.path.basename(file), os.stat(file).st_mtime, os.stat(file).st_size) for file in sorted(files)]
    cache_file._source_stamp = (cache_file._source_stamp, tuple(stamps))


def _helper_files(function: Callable[..., object], seen: set[int]) -> set[str]:
    """The source files of all compiled helpers that a function reaches through its global names."""
    files: set[str] = set()
    for name in function.__code__.co_names:
        helper: Any = function.__globals__.get(name)
        module = sys.modules.get(getattr(helper, "__module__", None) or "")
        plain = getattr(helper, "py_func", None)
        if (plain is None and type(helper).__name__ != "_Intrinsic") or id(helper) in seen:
            continue
        seen.add(id(helper))
        file = getattr(module, "__file__", None)
        if file is not None and os.path.exists(file):
            files.add(file)
        if plain is not None:
            files |= _helper_files(plain, seen)
    return files
