"""The private parts of numba that kernels rely on, each with its reason; no other file touches one.

For numba 0.61 and later. `tests/unit/kernels/test_numba_internals.py` fails when one of them is gone, or when numba has
learned to do without.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Any

from numba.core.cgutils import raw_memcpy
from numba.core.extending import _Intrinsic as Intrinsic
from numba.core.runtime import rtsys

__all__ = ["INLINE", "UNCOUNTED", "Intrinsic", "cached_signatures", "load_lightly", "raw_memcpy", "stamp_files"]

# `raw_memcpy`: numba has no public way to copy bytes between plain addresses.
# `Intrinsic`: the class of what `numba.extending.intrinsic` makes, by which such helpers are known, has no public name.

UNCOUNTED = {"_nrt": False}
"""Options for a helper that does not count references to its arrays.

Counting costs more than a short helper does: four atomic operations per array and call. Such a helper cannot allocate.
"""

INLINE = {"forceinline": True}
"""Options for a helper that LLVM always inlines. The public `inline="always"` copies Python code into its caller, which
makes compiling much slower and the result no faster."""


def load_lightly(dispatcher: Any, on_miss: Callable[[str], None]) -> None:
    """Have a compiled kernel loaded from the cache without the library that only compiling needs.

    Before it looks into its cache numba imports everything it could ever compile, which takes longer than a small job.
    Machine code needs none of it, only the runtime that counts references. When nothing is found in the cache,
    `on_miss` is told the kernel's name and the compiler imports the rest itself.
    """
    cache = dispatcher._cache

    def load_overload(signature: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)
        found = None
        with cache._guard_against_spurious_io_errors():
            found = cache._load_overload(signature, target_context)
        if found is None:
            on_miss(dispatcher.py_func.__name__)
        return found

    cache.load_overload = load_overload


def stamp_files(dispatcher: Any, files: Collection[str]) -> None:
    """Make a kernel's cache stale when one of the files changes; numba watches only the one with the kernel."""
    cache_file = dispatcher._cache._cache_file
    stamps = [(os.path.basename(file), os.stat(file).st_mtime, os.stat(file).st_size) for file in sorted(files)]
    cache_file._source_stamp = (cache_file._source_stamp, tuple(stamps))


def cached_signatures(dispatcher: Any) -> list[Any] | None:
    """The signatures for which the cache on disk has machine code, None for a helper, which is not kept there.

    numba tells only by loading them.
    """
    cache_file = getattr(dispatcher._cache, "_cache_file", None)
    return None if cache_file is None else [key[0] for key in cache_file._load_index()]
