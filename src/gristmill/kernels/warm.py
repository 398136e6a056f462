"""Loads the kernels that a process has imported from the cache on disk, before work starts."""

from __future__ import annotations

import sys
from typing import Any

from gristmill.kernels.compiler import all_kernels, stores
from gristmill.kernels.signatures import parsed


def load_cached() -> int:
    """Load the cached kernels that this process has imported; returns how many were loaded.

    Also builds the character tables that some of them use.
    """
    loaded = 0
    for name, tables in (("unicode_classes", "class_tables"), ("shingles", "word_tables")):
        module = sys.modules.get(f"gristmill.kernels.{name}")
        if module is not None:
            getattr(module, tables)()
    for kernel in _unloaded():
        for signature in stores[kernel].signatures():
            kernel.compile(parsed(signature))
            loaded += 1
    return loaded


def _unloaded() -> list[Any]:
    """The imported kernels that are not in memory yet."""
    return [kernel for kernel in all_kernels if not kernel.signatures]
