"""The one decorator every compiled kernel uses.

Kernels release the GIL and are cached on disk, so that a second process starts at once. The cache lies beside the
source file or, where that folder is read-only, in the user's cache folder; numba keys it by processor and version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile `function` on its first call, without the GIL, and keep the result on disk."""
    return cast(F, numba.njit(function, cache=True, nogil=True, error_model="numpy"))


def inlined(function: F) -> F:
    """Compile `function` as a part of the kernels that call it (it must live in the same file as they do)."""
    return cast(F, numba.njit(function, inline="never", nogil=True, error_model="numpy"))
