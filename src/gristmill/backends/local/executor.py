"""The default executor: worker processes on this machine, no daemon, no cluster."""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from gristmill.backends.base import UNKNOWN_GPU_GB, BaseExecutor, Capacity, gpu_names, parse_config
from gristmill.backends.local import SMALL_INPUT
from gristmill.backends.local.config import LocalConfig
from gristmill.backends.plan import ExecutionPlan, Segment
from gristmill.errors import PlanningError
from gristmill.execution.driver import Work
from gristmill.execution.in_process import run_in_process
from gristmill.figures import format_size
from gristmill.observe.memory import available_memory, cpu_count, gpu_memory_gb, measure_tree
from gristmill.pipeline.user_code import is_user_module
from gristmill.stages.base import FusedStage, ProcessingStage

if TYPE_CHECKING:
    from gristmill.backends.local.state import State

_SERVER_BYTES = 110 << 20
_WORKER_BYTES = 70 << 20
"""Measured minimum memory of the fork server and of a worker; with the driver, the idle footprint of a run."""
_MOST_QUEUED = 128 << 20


class LocalExecutor(BaseExecutor):
    """Runs pipelines on this machine.

    Args:
        config: The settings of `LocalConfig`; an unknown key is an error.
        ignore_head_node: Only for clusters; must be False.

    Example:
        >>> executor = LocalExecutor(config={"num_cpus": 4, "memory_budget": "8GB"})
        >>> pipeline.run(executor=executor)
    """

    name: ClassVar[str] = "local"
    can_profile = True

    def __init__(self, config: Mapping[str, Any] | None = None, ignore_head_node: bool = False) -> None:
        super().__init__(config, ignore_head_node)
        self.settings = parse_config(LocalConfig, config, owner="LocalExecutor")
        self.one_stage_at_a_time = self.settings.execution_mode == "batch" and self.settings.num_cpus != 0

    def capacity(self) -> Capacity:
        cpus = self._cpus()
        gpus = len(gpu_names(self.settings.num_gpus))
        return Capacity(
            cpus=cpus,
            gpus=gpus,
            largest_node_cpus=max(1.0, float(cpu_count()) if self.settings.num_cpus is None else cpus),
            largest_node_gpus=gpus,
            gpu_memory_gb=self.settings.gpu_memory_gb or (gpus and gpu_memory_gb()) or UNKNOWN_GPU_GB,
        )

    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        if self._runs_here(plan, work):
            if self.profile is None:
                run_in_process(plan, work, time_limit_s=self.settings.time_limit_s)
                return
            from gristmill.backends.local.sampled_worker import stage_names

            with self.profile.in_process([stage_names(plan, one, self.profile) for one in plan.segments]) as steps:
                run_in_process(plan, work, time_limit_s=self.settings.time_limit_s, step_logs=steps)
            return
        from gristmill.backends.local.driver_support import compile_missing_kernels
        from gristmill.backends.local.engine import Engine
        from gristmill.backends.local.fork_server import start_server
        from gristmill.backends.local.limits import WorkerLimits
        from gristmill.backends.local.shared_files import SharedFolder, sweep

        sweep()
        modules, packages = _modules_of(plan)
        start_server(modules, packages=packages)
        if "numba" in sys.modules:  # otherwise a worker reports whether there are kernels, and the engine compiles them
            compile_missing_kernels(plan)
        # Without a budget, a worker is stopped only if it alone uses all available memory, not most of it.
        memory = available_memory() if self.settings.budget_bytes is None else self.settings.budget_bytes
        limits = WorkerLimits(self.settings.time_limit_s, memory, self.settings.on_memory)
        state = self._state(plan)
        base = None
        if state.batch_mode:
            base = _spill_base(plan)
            sweep(bases=[base])
        with SharedFolder.create(uuid.uuid4().hex[:12], base=base) as folder:
            gpus = gpu_names(self.settings.num_gpus)
            engine = Engine(plan, work, state, folder, gpus, [*modules, *packages], limits=limits)
            if self.profile is None:
                engine.run()
                return
            from gristmill.backends.local.sampled_worker import collect, sampled

            engine.sampled = partial(sampled, plan, self.profile, folder)
            try:
                engine.run()
            finally:
                collect(folder, self.profile)

    def _runs_here(self, plan: ExecutionPlan, work: Work) -> bool:
        """Whether worker processes would not help."""
        if self.settings.num_cpus == 0:
            for segment in plan.segments:
                for stage in segment.stages:
                    if stage.time_limit_s is not None:
                        raise PlanningError(
                            f"Stage {stage.name!r} has a time limit (time_limit_s), which needs a killable worker "
                            "process. Use num_cpus of at least 1."
                        )
            return True
        if self.settings.num_cpus is not None or len(plan.segments) > 1 or self.settings.memory_budget is not None:
            return False
        plain = all(segment.workers is None and segment.time_limit_s is None for segment in plan.segments)
        small = 0 < work.input_bytes <= SMALL_INPUT
        return small and plain and all(map(_is_fork_safe, _members(plan)))

    def _cpus(self) -> float:
        if self.settings.num_cpus is not None:
            return float(self.settings.num_cpus) or 1.0
        return max(1.0, float(int(cpu_count() * self.settings.cpu_allocation_percentage + 0.5)))

    def _state(self, plan: ExecutionPlan) -> State:
        from gristmill.backends.local.state import SegmentState, State

        settings = self.settings
        budget = self._budget(plan)
        cpus = self._cpus()
        gpus = len(gpu_names(settings.num_gpus))
        batch_mode = settings.execution_mode == "batch"
        queue_limit = min(_MOST_QUEUED, max(1 << 20, budget // (8 * max(1, len(plan.segments) - 1))))
        segments = [
            SegmentState(
                index=segment.index,
                cpus=segment.resources.cpus,
                gpus=segment.resources.gpus,
                batch_size=segment.batch_size,
                fixed_workers=segment.workers,
                max_workers=self._most_workers(segment, cpus, gpus),
                queue_limit=queue_limit,
                prefetch=1,
                overlaps=segment.stages[0].overlaps_calls,
                warm=segment.index > 0,
                max_lifetime_s=60 * (self._minutes(segment, "worker_max_lifetime_m") or 0) or None,
                restart_interval_s=60 * (self._minutes(segment, "worker_restart_interval_m") or 0),
            )
            for segment in plan.segments
        ]
        return State(
            segments=segments,
            cpus=cpus,
            overlap=cpus if cpus >= 0.9 * cpu_count() else 0.0,
            free_gpus=[1.0] * gpus,
            batch_mode=batch_mode,
            budget=budget,
            autoscale_interval_s=settings.autoscale_interval_s,
            now=time.monotonic(),
            moved_at=time.monotonic(),
        )

    def _minutes(self, segment: Segment, key: str) -> float | None:
        """The smallest value of a setting among the segment's stages, or the executor's if no stage sets it."""
        own = [spec[key] for spec in (s.merged_xenna_stage_spec() for s in segment.stages) if spec.get(key) is not None]
        found = min(own) if own else getattr(self.settings, key)
        return None if found is None else float(found)

    def _most_workers(self, segment: Segment, cpus: float, gpus: int) -> int:
        if segment.workers is not None:
            return segment.workers
        most = max(1, int(cpus / segment.resources.cpus + 1e-9)) if segment.resources.cpus else max(1, int(cpus))
        if segment.resources.gpus:
            per_device = int(1 / segment.resources.gpus + 1e-9) if segment.resources.gpus < 1 else 0
            fitting = per_device * gpus if per_device else int(gpus / segment.resources.gpus)
            most = max(1, fitting)
        if self.settings.max_workers_per_stage is not None:
            most = min(most, self.settings.max_workers_per_stage)
        return most

    def _budget(self, plan: ExecutionPlan) -> int:
        asked = self.settings.budget_bytes
        if asked is None:
            return int(0.8 * available_memory())
        floor = measure_tree([os.getpid()]).pss_bytes + _SERVER_BYTES + _WORKER_BYTES * max(1, len(plan.segments))
        if asked < floor:
            raise PlanningError(
                f"memory_budget={self.settings.memory_budget!r} is below the idle footprint of this run (about "
                f"{format_size(floor)}). Use at least {format_size(int(floor * 1.3))}, or run in the "
                "calling process with --workers 0 (num_cpus=0).",
                floor=floor,
            )
        return asked


def _members(plan: ExecutionPlan) -> list[ProcessingStage[Any, Any]]:
    """The stages of a plan, with fused stages listed individually."""
    stages = [stage for segment in plan.segments for stage in segment.stages]
    return [member for stage in stages for member in (stage.members if isinstance(stage, FusedStage) else (stage,))]


def _is_fork_safe(stage: ProcessingStage[Any, Any]) -> bool:
    """Whether a stage is built in, including its filters and functions."""
    if not stage.fork_safe:
        return False
    for value in vars(stage).values():
        for item in value if isinstance(value, list | tuple) else (value,):
            held = item.func if isinstance(item, partial) else item
            if is_user_module(getattr(held, "__module__", None) if callable(held) else type(held).__module__):
                return False
    return True


def _modules_of(plan: ExecutionPlan) -> tuple[list[str], list[str]]:
    """Modules to import once in the fork server instead of in every worker: those of the stages and their packages.

    User code mostly works on data frames, of pandas or of other packages that the driver has imported.
    """
    members = _members(plan)
    modules = sorted({type(member).__module__ for member in members if member.fork_safe})
    if all(map(_is_fork_safe, members)):
        return modules, []
    return modules, ["pandas", "polars"] if "polars" in sys.modules else ["pandas"]


def _spill_base(plan: ExecutionPlan) -> Any:
    """Where batch mode keeps intermediate data: on disk, because it may be as large as the input."""
    import tempfile
    from pathlib import Path

    record = plan.settings.record
    if record is not None and "://" not in record:
        spill = Path(record, "staging")
        spill.mkdir(parents=True, exist_ok=True)
        return spill
    return Path(tempfile.gettempdir())
