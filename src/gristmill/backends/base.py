"""The contract of an executor, and what it tells the stages about where they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from gristmill.backends.plan import ExecutionPlan
    from gristmill.execution.driver import Work


@dataclass
class NodeInfo:
    """The node on which `setup_on_node` runs."""

    node_id: str = ""


@dataclass
class WorkerMetadata:
    """The worker in which `setup` runs, and what it was given (GPU indices, for instance)."""

    worker_id: str = ""
    allocation: Any = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """What an executor can give at the most; used to refuse impossible plans before anything runs.

    `largest_node_cpus` and `largest_node_gpus` bound a single worker.
    """

    cpus: float
    gpus: float
    largest_node_cpus: float
    largest_node_gpus: float
    gpu_memory_gb: float = 24.0


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

    def __init__(self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False) -> None:
        self.config = dict(config or {})
        self.ignore_head_node = ignore_head_node

    @abstractmethod
    def capacity(self) -> Capacity:
        """What there is to run on, found without starting anything expensive."""

    @abstractmethod
    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        """Push every task of `work` through the segments of `plan` and deliver what comes out.

        Returns when all is delivered. Raises the first error that ends the run; workers are gone when it does.
        """
