"""Turns a plain function into a stage."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gristmill.errors import StageDefinitionError, UsageError
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.tasks.base import Task


class FunctionStage(ProcessingStage[Any, Any]):
    """A stage that calls one function."""

    def __init__(self, function: Callable[[Any], Any], name: str) -> None:
        self.function = function
        self.name = name
        self.__doc__ = function.__doc__

    def process(self, task: Any) -> Any:
        """The function's result for `task`; metadata and performance records are passed on."""
        given = self.function(task)
        if given is None or not isinstance(given, Task | list | tuple | Iterator):
            return given  # the runner reports what is wrong with it
        results = [given] if isinstance(given, Task) else list(given)
        for result in results:
            if isinstance(result, Task) and result is not task:
                result._metadata = {**task._metadata, **result._metadata}
                result._stage_perf = result._stage_perf or list(task._stage_perf)
        return given if isinstance(given, Task) else results

    def ray_stage_spec(self) -> dict[str, Any]:
        returns = str(inspect.signature(self.function).return_annotation)
        return {"is_fanout_stage": returns.startswith(("list", "typing.List", "List", "collections.abc.Iterator"))}

    def __call__(self, task: Any) -> Any:
        """Call the function itself, as if it were not decorated."""
        return self.function(task)


def processing_stage(
    given: object = None,
    /,
    *,
    name: str = "",
    resources: Resources | Mapping[str, float] | None = None,
    batch_size: int | None = None,
) -> Callable[[Callable[[Any], Any]], FunctionStage]:
    """Make a stage from a function that takes one task and returns a task, a list of tasks or None.

    `get_stage_class` finds its class by `name`; a later stage with the same name replaces it, as for classes.

    Args:
        given: Not used; holds the function if the decorator is used without parentheses, which is an error.
        name: Name of the stage; required.
        resources: Resources of one worker, as `Resources` or a dictionary of its fields.
        batch_size: Number of tasks per call.

    Example:
        >>> @processing_stage(name="shout", resources=Resources(cpus=1))
        ... def shout(batch):
        ...     frame = batch.to_pandas()
        ...     return DocumentBatch(data=frame.assign(text=frame["text"].str.upper()))
        >>> shout.name
        'shout'
    """
    if given is not None or not name:
        called = getattr(given, "__name__", "my_stage")
        raise StageDefinitionError(f"@processing_stage needs a name. Write: @processing_stage(name={called!r})")

    def decorate(function: Callable[[Any], Any]) -> FunctionStage:
        parameters = [
            p
            for p in inspect.signature(function).parameters.values()
            if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        ]
        if len(parameters) != 1 or len(inspect.signature(function).parameters) != 1:
            found = ", ".join(inspect.signature(function).parameters) or "none"
            raise UsageError(
                f"@processing_stage: {function.__name__} must take exactly one parameter, the task; it takes: {found}."
            )
        kind = _class_of(function, name)
        stage = kind()  # type: ignore[call-arg]
        if resources is not None:
            stage.resources = resources if isinstance(resources, Resources) else Resources(**resources)
        if batch_size is not None:
            stage = stage.with_(batch_size=batch_size)  # type: ignore[assignment]
        kind.resources, kind.batch_size = stage.resources, stage.batch_size
        return stage

    return decorate


def _class_of(function: Callable[[Any], Any], name: str) -> type[FunctionStage]:
    """A class for one function, which `get_stage_class` finds by the stage's name and which takes no arguments.

    Plans name all of them `FunctionStage`; functions are distinguished by their code.
    """

    def construct(self: FunctionStage) -> None:
        FunctionStage.__init__(self, function, name)

    known = {"__module__": FunctionStage.__module__, "__qualname__": FunctionStage.__qualname__}
    return type(name, (FunctionStage,), {**known, "__init__": construct, "__doc__": function.__doc__})
