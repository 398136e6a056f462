"""Explains what to write instead when something that is not a stage is added to a pipeline."""

from __future__ import annotations

import ast
import inspect
import linecache
from itertools import islice
from types import FrameType
from typing import Any

from gristmill.errors import StageDefinitionError
from gristmill.pipeline.workflow import WorkflowBase


def not_a_stage(given: Any, caller: FrameType | None) -> StageDefinitionError:
    """The error for `add_stage(given)`; quotes the argument from the caller's source if it can be read."""
    cls = given if isinstance(given, type) else type(given)
    wrapper = getattr(cls, "wrapper", None)  # filters and modifiers name the stage that applies them
    if isinstance(given, type):
        written = f"{cls.__name__}(…)"
        is_what = f"the class {cls.__name__}, not an instance of it"
    elif wrapper is not None:
        written = (_argument(caller) if caller is not None else None) or f"{cls.__name__}(…)"
        is_what = f"the {'filter' if wrapper == 'ScoreFilter' else 'modifier'} {cls.__name__}"
    elif isinstance(given, WorkflowBase):
        return StageDefinitionError(
            f"add_stage() takes a stage, but got the workflow {cls.__name__}, which runs its own pipelines. Call its "
            "run() before or after this pipeline."
        )
    elif inspect.isroutine(given):
        return StageDefinitionError(_of_function(given))
    else:
        return StageDefinitionError(
            f"add_stage() takes a stage (a ProcessingStage object), not {cls.__name__}: {given!r:.100}."
        )
    line = f"add_stage({wrapper}({written}))" if wrapper else f"add_stage({written})"
    home = f" (from gristmill import {wrapper})" if wrapper else ""
    return StageDefinitionError(f"add_stage() takes a stage, but got {is_what}. Write: {line}{home}", line=line)


def _of_function(function: Any) -> str:
    name = function.__name__
    if name == "<lambda>":
        return (
            "add_stage() takes a stage, but got a lambda. Define a function with "
            "@processing_stage(name=…) above it (from gristmill import processing_stage), and add that."
        )
    return (
        f"add_stage() takes a stage, but got the function {name}. Write @processing_stage(name={name!r}) above its "
        "definition (from gristmill import processing_stage)."
    )


def _argument(frame: FrameType) -> str | None:
    """The source of the only argument of the call that `frame` is in; None if unknown."""
    place = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    first, last, start, end = place
    if first is None or last is None or start is None or end is None:
        return None  # Python was started without code positions
    linecache.checkcache(frame.f_code.co_filename)
    lines = [line.encode() for line in linecache.getlines(frame.f_code.co_filename, frame.f_globals)[first - 1 : last]]
    if not lines:
        return None
    lines[-1] = lines[-1][:end]  # positions count bytes; the end comes first, as it may be the same line
    lines[0] = lines[0][start:]
    try:
        call = ast.parse(b"".join(lines).decode(), mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", None) != "add_stage":
        return None
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return ast.unparse(given[0]) if len(given) == 1 else None
