"""Runs a plan as a series of Xenna pipelines until everything is done.

A Xenna pipeline ends when one of its workers dies. The next one does the remaining work with each task on its own, so
that a task that kills its workers is identified.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
from cosmos_xenna.pipelines import v1 as xenna

from gristmill.backends.plan import Segment
from gristmill.backends.ray.allocation import Share
from gristmill.backends.ray.cluster import present
from gristmill.backends.ray.driver import Delivery, RayRun, beside_driver, is_loss
from gristmill.backends.ray.stage_specs import shown_name
from gristmill.backends.ray.worker import SegmentWorker, WorkerReport, WorkerSpec
from gristmill.backends.xenna.patches import patched
from gristmill.errors import PlanningError, WorkerError
from gristmill.execution.packed_task import PackedTask, pack

if TYPE_CHECKING:
    from gristmill.backends.xenna.executor import XennaConfig

_POLL_S = 0.05
_TEARDOWN_S = 30.0
"""Time limit for the teardown of a worker."""
_MOST_FRUITLESS = 100
"""Maximum number of pipelines in a row without progress; a task that kills workers is identified in far fewer."""

_MOST_SLOTS = 8
"""Concurrent tasks per worker: Xenna needs more than a tenth of a second to assign the next one."""
_LEAST_SLOTS = 2
_TASKS_PER_WORKER = 4
"""How often the slots of all workers should be refilled, so that all of them finish at about the same time."""
_BATCH_BYTES = 8 << 20
"""Approximate size of a batch, to estimate how many there will be."""

_REPORTS = 64
"""Maximum number of reports queued for the driver; beyond that, workers wait."""
_REPORTS_AHEAD = 4
"""Maximum number of unacknowledged reports per worker; waiting for each one would cost milliseconds."""


class ReportQueue:
    """An actor that queues reports for the driver: Xenna itself returns results only at the end, all at once."""

    def __init__(self) -> None:
        self._reports: asyncio.Queue[WorkerReport] = asyncio.Queue(_REPORTS)

    async def put(self, report: WorkerReport) -> None:
        """Add a report; returns when there is room for it."""
        await self._reports.put(report)

    async def take(self) -> list[WorkerReport]:
        """All reports since the last call."""
        return [self._reports.get_nowait() for _ in range(self._reports.qsize())]


class XennaRun:
    """One run on Xenna."""

    def __init__(self, run: RayRun, settings: XennaConfig) -> None:
        self._run = run
        self._work = run.work
        self._settings = settings
        self._delivery: Delivery | None = None

    def run(self) -> None:
        """Run pipelines until nothing is left."""
        with self._run.delivery() as self._delivery:
            self._run_all()

    def _run_all(self) -> None:
        fruitless, careful = 0, False
        while left := [pack(task) for task in self._work.tasks()]:
            before = self._work.done
            loss = self._run_pipeline(left, careful=careful)
            if loss is None:
                return
            careful = True
            fruitless = 0 if self._work.done > before else fruitless + 1
            if fruitless >= _MOST_FRUITLESS:
                raise WorkerError(
                    f"Workers on Ray died {fruitless} times in a row without a partition being finished: {loss}. "
                    "Committed output is intact; look at the Ray dashboard and logs, and run the same command again to "
                    "resume.",
                    cause=str(loss),
                )
            self._run.notice("A worker died; its unfinished work is repeated.", "warning")

    def _run_pipeline(self, tasks: list[PackedTask], *, careful: bool) -> Exception | None:
        """Run one Xenna pipeline; returns the loss that ended it early, if one did.

        Raises:
            GristmillError: The error that ends the run.
        """
        # Reports waiting for room count as running calls, which must not keep the driver from collecting some.
        reports = ray.remote(ReportQueue).options(max_concurrency=100_000, **beside_driver()).remote()
        self._run.cluster = present(self._run.cluster)
        specification = self._specification(tasks, self._shares(), reports, careful=careful)
        nodes = frozenset(node.id for node in self._run.cluster.nodes if self._settings.usable_cpus(node))
        problems: list[Exception] = []

        def run() -> None:
            try:
                xenna.run_pipeline(specification)
            except Exception as error:
                problems.append(error)

        pipeline = threading.Thread(target=run, name="gristmill-xenna", daemon=True)
        grown = self._run.grown_workers
        limits = self._limits(specification)
        with patched(nodes=nodes, limits=limits, end_worker=_end_worker, has_grown=grown.__contains__):
            pipeline.start()
            try:
                while pipeline.is_alive():
                    pipeline.join(_POLL_S)
                    self._deliver(reports)
            except BaseException:
                # Workers that report from now on fail, which ends the pipeline.
                ray.kill(reports)
                pipeline.join(_TEARDOWN_S)
                raise
            finally:
                self._end_workers()
        # What workers reported before they ended.
        self._deliver(reports)
        ray.kill(reports)
        if not problems:
            self._run.wait_for_workers()
            return None
        problem = problems.pop()
        if is_loss(problem):
            return problem
        raise WorkerError(f"Xenna ended the run: {type(problem).__name__}: {problem}", cause=str(problem)) from problem

    def _shares(self) -> list[Share]:
        """The resources that the workers of each segment get on the current cluster.

        Raises:
            PlanningError: Some workers can never be placed.
        """
        settings, nodes = self._settings, self._run.cluster.nodes
        cpus = [float(settings.usable_cpus(node)) for node in nodes]
        if not any(cpus):
            raise PlanningError(
                f"Xenna uses whole CPUs, and {settings.cpu_allocation_percentage:.0%} of "
                f"{max(node.cpus for node in nodes):g} is less than one. Raise cpu_allocation_percentage.",
                setting="cpu_allocation_percentage",
            )
        return self._run.shares(cpus, one_stage_at_a_time=settings.execution_mode == "batch", ray_options=False)

    def _deliver(self, reports: Any) -> None:
        assert self._delivery is not None
        for report in ray.get(reports.take.remote()):
            self._delivery.take(report)
        self._run.poll()

    def _end_workers(self) -> None:
        """Tear down and stop workers that Xenna left behind."""
        left = [handle for handle in self._run.workers().values() if handle is not None]
        ends = [handle.__ray_call__.remote(end_stage) for handle in left]
        if ends:
            ray.wait(ends, num_returns=len(ends), timeout=_TEARDOWN_S)
        for handle in left:
            ray.kill(handle)
        self._run.kill_workers()

    def _limits(self, specification: Any) -> dict[str, int]:
        """The maximum number of workers of each stage, by the name that Xenna uses."""
        limits = {}
        for number, (segment, stage) in enumerate(zip(self._run.plan.segments, specification.stages, strict=True)):
            given = (self._settings.max_workers_per_stage, self._run.specs[segment.index].ray.max_workers)
            wanted = [limit for limit in given if limit is not None]
            if wanted and self._run.fixed_workers(segment) is None:
                limits[stage.name(number)] = max(1, min(wanted))
        return limits

    def _specification(
        self, tasks: list[PackedTask], shares: Sequence[Share], reports: Any, *, careful: bool
    ) -> xenna.PipelineSpec:
        settings = self._settings
        streaming = xenna.StreamingSpecificSpec(
            autoscale_interval_s=settings.autoscale_interval_s, executor_verbosity_level=xenna.VerbosityLevel.NONE
        )
        batch = settings.execution_mode == "batch"
        config = xenna.PipelineConfig(
            execution_mode=xenna.ExecutionMode.BATCH if batch else xenna.ExecutionMode.STREAMING,
            logging_interval_s=settings.logging_interval,
            cpu_allocation_percentage=settings.cpu_allocation_percentage,
            return_last_stage_outputs=False,
            enable_work_stealing=False,
            actor_pool_verbosity_level=xenna.VerbosityLevel.NONE,
            monitoring_verbosity_level=xenna.VerbosityLevel.NONE,
            mode_specific=None if batch else streaming,
        )
        stages = [
            self._stage(segment, share, reports, careful=careful)
            for segment, share in zip(self._run.plan.segments, shares, strict=True)
        ]
        return xenna.PipelineSpec(input_data=tasks, stages=stages, config=config)

    def _stage(self, segment: Segment, share: Share, reports: Any, *, careful: bool) -> xenna.StageSpec:
        spec = self._run.specs[segment.index].xenna
        worker = self._run.worker_spec(segment)
        # Xenna names a stage after its class.
        kind = type(shown_name(segment), (SegmentStage,), {})
        stage = kind(
            worker,
            reports,
            share,
            batch_size=segment.batch_size,
            setup_attempts=spec.num_setup_attempts_python or 1,
            careful=careful,
            environment={**(self._settings.runtime_env or {}), **(segment.runtime_env or {})},
        )
        interval = spec.worker_restart_interval_m
        if interval is None:
            interval = self._settings.worker_restart_interval_m
        return xenna.StageSpec(
            stage,
            num_workers=self._run.fixed_workers(segment),
            slots_per_actor=spec.slots_per_actor or self._slots(segment, share),
            worker_max_lifetime_m=0 if worker.lifetime_s is None else worker.lifetime_s / 60,
            worker_restart_interval_m=1 if interval is None else interval,
            max_setup_failure_percentage=spec.max_setup_failure_percentage,
            over_provision_factor=spec.over_provision_factor,
        )

    def _slots(self, segment: Segment, share: Share) -> int:
        """Concurrent tasks per worker: enough that it never waits, few enough that all workers have some."""
        tasks = len(self._work)
        if segment.index:
            tasks = max(tasks, self._work.input_bytes // _BATCH_BYTES)
        calls = int(tasks) // (segment.batch_size * _TASKS_PER_WORKER * share.most)
        return max(_LEAST_SLOTS, min(_MOST_SLOTS, calls))


@dataclass(eq=False)
class SegmentStage(xenna.Stage):  # type: ignore[misc]
    """A segment as a stage of Xenna, whose samples are tasks.

    Attributes:
        spec: The configuration of the workers.
        reports: The queue for reports to the driver.
        share: Resources of one worker.
        batch_size: Tasks per call.
        setup_attempts: Maximum number of attempts of `setup`.
        careful: A worker of an earlier pipeline has died; see `SegmentWorker.run`.
        environment: The runtime environment of the segment.
    """

    spec: WorkerSpec
    reports: Any
    share: Share
    batch_size: int
    setup_attempts: int
    careful: bool
    environment: dict[str, Any]
    _worker: SegmentWorker | None = field(default=None, init=False)
    _sent: deque[Any] = field(default_factory=deque, init=False)
    _ending: bool = field(default=False, init=False)
    _has_grown: bool = field(default=False, init=False)

    def __deepcopy__(self, memo: object) -> SegmentStage:
        # Xenna copies its whole specification; handles of actors must not be copied.
        return self

    @property
    def stage_batch_size(self) -> int:
        """Tasks per call."""
        return self.batch_size

    @property
    def required_resources(self) -> xenna.Resources:
        """The resources of one worker."""
        return xenna.Resources(cpus=self.share.cpus, gpus=self.share.gpus)

    @property
    def env_info(self) -> xenna.RuntimeEnv:
        """The runtime environment of the workers."""
        conda = self.environment.get("conda")
        variables = dict(self.environment.get("env_vars", {}))
        return xenna.RuntimeEnv(conda=xenna.CondaEnv(conda) if conda else None, extra_env_vars=variables)

    def setup(self, worker_metadata: Any) -> None:
        """Called by Xenna once per worker, in the thread that later does the work."""
        _stages.append(self)
        gpus = tuple(gpu.index for gpu in worker_metadata.allocation.gpus)
        threading.Thread(target=_end_process, name="gristmill-end", daemon=True).start()
        for _ in range(self.setup_attempts):
            self._worker = SegmentWorker(self.spec)
            self._worker.start(gpus)
            if self._worker.failure is None:
                return

    def process_data(self, in_data: list[PackedTask]) -> list[PackedTask]:
        """Called by Xenna with `stage_batch_size` tasks, or fewer at the end."""
        assert self._worker is not None
        if self._ending:
            threading.Event().wait()  # it is about to be killed, and another worker gets the task
        given: list[PackedTask] = []
        with contextlib.closing(self._worker.run(in_data, careful=self.careful)) as results:
            for item in results:
                if isinstance(item, WorkerReport):
                    self._send(item)
                else:
                    given.append(item)
        if self._worker.has_grown and not self._has_grown:
            self._has_grown = True
            self.spec.coordinator.worker_grew.remote(self._worker.name)
        return given

    def _send(self, report: WorkerReport) -> None:
        """Send a report; if it contains an error, it has arrived when this returns.

        Raises:
            RayError: The driver no longer accepts reports.
        """
        self._sent.append(self.reports.put.remote(report))
        self._wait(0 if self.careful or report.error is not None else _REPORTS_AHEAD)

    def _wait(self, left: int) -> None:
        """Wait until at most `left` reports are unacknowledged."""
        while len(self._sent) > left:
            ray.get(self._sent.popleft())

    def end(self, cause: str = "finished") -> None:
        """Tear down, and wait until all reports have arrived, unless the run is over. Waiting tasks are not started."""
        self._ending = True
        if self._worker is not None:
            # Waits for a running call.
            self._worker.end(cause)
        with contextlib.suppress(ray.exceptions.RayError):
            self._wait(0)


_stages: list[SegmentStage] = []
"""The stage of this process if it is a Xenna worker."""


def end_stage(worker: Any, cause: str = "finished") -> None:
    """Called in a Xenna worker by the driver, before the worker is killed."""
    for stage in _stages:
        stage.end(cause)


def _end_worker(actor: Any, cause: str) -> None:
    with contextlib.suppress(ray.exceptions.RayError):
        ray.get(actor.__ray_call__.remote(end_stage, cause), timeout=_TEARDOWN_S)


def _end_process() -> None:
    """Exit this process when Ray ends its main thread: Xenna's own threads would keep it alive forever."""
    threading.main_thread().join()
    os._exit(0)
