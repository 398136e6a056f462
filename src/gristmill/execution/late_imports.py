"""Keeps a process from loading pandas and SciPy when nothing needs them.

PyArrow imports pandas, where it is installed, the moment the first value is converted, which takes longer than a small
job; numba imports SciPy to look at its version. Only processes that run no code of the user's own defer the two: there
frames come and go by the pandas door alone, which introduces pandas when it opens. A worker that is to run other code
gets pandas before it starts.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec

_LATER = ("pandas", "scipy")


class _NotYet:
    """A finder that has packages look as if they were not installed.

    None in `sys.modules` would not do: compiled modules such as PyArrow's take it for the package.
    """

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Refuse what can wait and leave everything else to the other finders."""
        if name in _LATER:
            raise ModuleNotFoundError(f"{name} is loaded when it is needed", name=name)
        return None


def defer_imports() -> None:
    """Let PyArrow and numba look for the packages now and not find them; both look again when they need them."""
    if not sys.modules.keys().isdisjoint((*_LATER, "pyarrow", "numba")):
        return
    finder = _NotYet()
    sys.meta_path.insert(0, finder)
    try:
        import numba  # noqa: F401
        import pyarrow as pa

        pa.scalar(1)
    finally:
        sys.meta_path.remove(finder)
