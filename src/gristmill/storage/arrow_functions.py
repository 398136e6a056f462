"""Arrow's functions by name, without PyArrow's wrappers: creating all of those takes 30 ms."""

from __future__ import annotations

# The public name is that of `pyarrow.compute`, a module that makes the wrappers when it is imported.
from pyarrow._compute import call_function

__all__ = ["call_function"]
