"""Runs scripts written for NeMo Curator unchanged: `import nemo_curator…` resolves to Gristmill.

Three ways to switch it on: `python -m gristmill.compat script.py`, `gristmill.compat.install()`, or the variable
`GRISTMILL_COMPAT=1`, which `import gristmill` checks. Otherwise nothing of this package is loaded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.lazy import lazy_names

if TYPE_CHECKING:
    from gristmill.compat.finder import install, is_installed, load_ipython_extension, uninstall

__all__ = ["install", "is_installed", "load_ipython_extension", "uninstall"]

__getattr__, __dir__ = lazy_names(
    __name__, {"finder": ["install", "is_installed", "load_ipython_extension", "uninstall"]}
)
