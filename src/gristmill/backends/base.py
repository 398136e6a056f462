"""The contract of an executor: its settings, and how it describes nodes and workers to stages."""

from __future__ import annotations

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from gristmill.errors import UnknownNameError, UsageError, did_you_mean

if TYPE_CHECKING:
    from gristmill.backends.plan import ExecutionPlan
    from gristmill.execution.driver import Work
    from gristmill.observe.profile.session import ProfileSession

C = TypeVar("C")

UNKNOWN_GPU_GB = 24.0
"""GPU memory to assume when no device can be queried, for example because the GPU count was set by hand."""


@dataclass
class NodeInfo:
    """The node on which `setup_on_node` runs."""

    node_id: str = ""


@dataclass
class WorkerMetadata:
    """The worker in which `setup` runs, and its allocation: `{"gpus": [0, 1]}`, with an empty list for no GPU."""

    worker_id: str = ""
    allocation: Any = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The maximum resources of an executor; used to reject impossible plans before anything runs.

    `largest_node_cpus` and `largest_node_gpus` bound a single worker.
    """

    cpus: float
    gpus: float
    largest_node_cpus: float
    largest_node_gpus: float
    gpu_memory_gb: float = UNKNOWN_GPU_GB


class BaseExecutor(ABC):
    """Runs an execution plan.

    An executor moves tasks between segments; what happens to a task inside a segment is done by
    `gristmill.execution.runner.SegmentRunner`, the same on every executor.

    Args:
        config: The executor's settings; an unknown key is an error.
        ignore_head_node: Keep work off the head node of a cluster.
    """

    name: ClassVar[str] = "base"
    one_stage_at_a_time = False
    """Whether stages must not share a worker, because each runs over all data before the next begins."""

    shares_environment = True
    """Whether workers have the same packages and files as this process, so that planning can check for them here."""

    can_profile = False
    """Whether it can profile its workers."""

    profile: ProfileSession | None = None
    """Where the current run writes its profile samples; set on a copy of the executor, for one run."""

    def __init__(self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False) -> None:
        self.config = dict(config or {})
        self.ignore_head_node = ignore_head_node

    @abstractmethod
    def capacity(self) -> Capacity:
        """The available resources, determined without starting anything expensive."""

    @abstractmethod
    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        """Push every task of `work` through the segments of `plan` and deliver the results.

        Returns when all results are delivered. Raises the first error that ends the run, after all workers have
        stopped.
        """


def parse_config(kind: type[C], config: Mapping[str, Any] | None, *, owner: str) -> C:
    """Build the dataclass `kind` from `config`.

    Args:
        kind: A dataclass whose fields are the keys, with types and defaults.
        config: The user's settings.
        owner: The executor, for messages.

    Raises:
        UnknownNameError: A key is unknown.
        UsageError: A value has the wrong type.
    """
    hints = get_type_hints(kind)
    for key, value in (config or {}).items():
        if key not in hints:
            raise UnknownNameError(
                f"{owner} has no setting {key!r}; it has {', '.join(sorted(hints))}.{did_you_mean(str(key), hints)}",
                name=key,
            )
        if not _fits(value, hints[key]):
            raise UsageError(f"{owner}: {key}={value!r} must be {_words(hints[key])}.", key=key, value=value)
    return kind(**dict(config or {}))


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is Literal:
        return value in get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(map(partial(_fits, value), get_args(kind)))
    origin = get_origin(kind)
    if origin is not None:
        return isinstance(value, origin)
    if kind is type(None) or kind is None:
        return value is None
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind))
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_words(part) for part in get_args(kind))
    return {int: "a whole number", float: "a number", str: "text", bool: "True or False", type(None): "None"}.get(
        kind, getattr(kind, "__name__", str(kind))
    )


def gpu_names(wanted: int | None = None) -> list[str]:
    """The names of this process's GPUs in `CUDA_VISIBLE_DEVICES`; exactly `wanted` of them, if set.

    As for CUDA itself, an empty variable hides all devices, and `-1` those listed after it.

    Example:
        >>> gpu_names(2)
        ['0', '1']
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    listed = map(str, range(len(glob.glob("/dev/nvidia[0-9]*")))) if visible is None else visible.split(",")
    names: list[str] = []
    for name in map(str.strip, listed):
        if not name or name.startswith("-") or name == "NoDevFiles":
            break
        names.append(name)
    if wanted is not None:
        names += map(str, range(len(names), wanted))
    return names[:wanted]
