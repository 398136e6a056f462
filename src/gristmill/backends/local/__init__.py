"""The local engine: worker processes on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.backends.local.executor import LocalExecutor

__all__ = ["LocalExecutor"]

SMALL_INPUT = 4 << 20
"""Up to this many bytes, built-in stages finish before worker processes would have started."""

__getattr__, __dir__ = lazy_names(__name__, {"executor": __all__})
