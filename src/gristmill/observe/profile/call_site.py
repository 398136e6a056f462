"""Finds what an innermost frame is calling: compiled code and waits have no frame of their own."""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import sys
import time
from collections.abc import Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gristmill.observe.profile.kinds import KERNELS, PACKAGE, WAIT

_WAITS = frozenset({"acquire", "get", "join", "poll", "recv", "recv_bytes", "select", "wait"})
"""Methods that wait, if our own code calls them; user objects may have methods of the same name."""


def called_frame(code: CodeType, at: int, names: Mapping[str, Any]) -> tuple[str, str, int] | None:
    """File, name and line of a frame that represents a kernel call or a wait; None for every other instruction.

    Args:
        code: The code of the innermost frame.
        at: The instruction that it is at (`f_lasti`).
        names: Its global names.
    """
    path = _called_path(code, at)
    if path is None:
        return None
    found: Any = names.get(path[0])
    for name in path[1:]:
        found = getattr(found, name, None) if isinstance(found, ModuleType) else None
    shown = ".".join(path)
    if found is time.sleep or (found is None and path[-1] in _WAITS and code.co_filename.startswith(PACKAGE)):
        return WAIT, shown, 0
    if found is None or isinstance(found, FunctionType | type):  # a function has a frame once it runs
        return None
    file = getattr(sys.modules.get(getattr(found, "__module__", None) or ""), "__file__", None) or ""
    return (file, str(getattr(found, "__name__", shown)), 0) if file.startswith(KERNELS) else None


def _called_path(code: CodeType, at: int) -> list[str] | None:
    """The dotted name that is called at an instruction, taken from the source."""
    if at < 0 or "CALL" not in dis.opname[code.co_code[at]]:
        return None
    first, last, begin, end = next(itertools.islice(code.co_positions(), at // 2, None), (None,) * 4)
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [line.encode() for line in linecache.getlines(code.co_filename)[first - 1 : last]]
    if len(lines) != last - first + 1:
        return None
    lines[-1] = lines[-1][:end]
    lines[0] = lines[0][begin:]
    try:
        call = ast.parse(b"(" + b"".join(lines) + b")", mode="eval").body
    except (SyntaxError, ValueError):  # the file has changed since it was imported
        return None
    path: list[str] = []
    node = call.func if isinstance(call, ast.Call) else None
    while isinstance(node, ast.Attribute):
        path.insert(0, node.attr)
        node = node.value
    return [node.id, *path] if isinstance(node, ast.Name) else None
