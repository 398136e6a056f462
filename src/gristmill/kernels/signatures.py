"""Types of arguments as text that people and all versions of numba can read: `int64`, `uint8[1]`, `float32[2]!`.

The number in brackets is that of dimensions; an exclamation mark means that the array is read-only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from numba import types

_TYPE = re.compile(r"(\w+)(?:\[(\d)\](!?))?")
_SCALARS = {str(one).replace("boolean", "bool"): one for one in (*types.number_domain, types.boolean)}


def described(signature: Iterable[Any]) -> str | None:
    """A signature as text, None if it contains anything other than numbers and contiguous arrays.

    Example:
        >>> described([types.int64, types.Array(types.uint8, 1, "C", readonly=True)])
        'int64 uint8[1]!'
    """
    names = []
    for one in signature:
        array = isinstance(one, types.Array)
        name = str(one.dtype if array else one).replace("boolean", "bool")
        if name not in _SCALARS or (array and (one.layout != "C" or not one.aligned)):
            return None
        names.append(f"{name}[{one.ndim}]{'' if one.mutable else '!'}" if array else name)
    return " ".join(names)


def parsed(text: str) -> tuple[Any, ...]:
    """The signature in a text written by `described`.

    Raises:
        ValueError: It is not such a text.

    Example:
        >>> described(parsed("bool float32[2]!"))
        'bool float32[2]!'
    """
    found = []
    for name in text.split():
        match = _TYPE.fullmatch(name)
        if match is None or match[1] not in _SCALARS:
            raise ValueError(f"{name!r} is not the type of a kernel's argument.")
        scalar = _SCALARS[match[1]]
        found.append(scalar if match[2] is None else types.Array(scalar, int(match[2]), "C", readonly=bool(match[3])))
    return tuple(found)
