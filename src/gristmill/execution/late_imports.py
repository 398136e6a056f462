"""Keeps a process from loading pandas and SciPy when nothing needs them.

PyArrow imports pandas, where it is installed, the moment the first value is converted, which takes longer than a small
job; numba imports SciPy to look at its version. Only processes that run no code of the user's own defer the two: there
frames come and go by the pandas door alone, which introduces pandas when it opens. A worker that is to run other code
gets pandas before it starts.
"""

from __future__ import annotations

import sys
from typing import Any

_LATER = ("pandas", "scipy")


def defer_imports() -> None:
    """Let PyArrow and numba look for the packages now and not find them; both look again when they need them."""
    if not sys.modules.keys().isdisjoint((*_LATER, "pyarrow", "numba")):
        return
    later: dict[str, Any] = dict.fromkeys(_LATER)  # None stands for a module that cannot be imported
    sys.modules.update(later)
    try:
        import numba  # noqa: F401
        import pyarrow as pa

        pa.scalar(1)
    finally:
        for name in _LATER:
            sys.modules.pop(name, None)
