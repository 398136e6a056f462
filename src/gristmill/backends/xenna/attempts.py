"""Runs a plan as Xenna pipelines, one after the other until everything is done.

A Xenna pipeline ends when one of its workers dies. The next round does what is left, and takes each task alone, so that
one that kills its workers is found.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import ray
from cosmos_xenna.pipelines import v1 as xenna
from cosmos_xenna.pipelines.private import specs
from cosmos_xenna.utils.verbosity import VerbosityLevel

from gristmill.backends.plan import ExecutionPlan, Segment
from gristmill.backends.ray.allocation import Share
from gristmill.backends.ray.delivery import Delivery
from gristmill.backends.ray.driver import Run
from gristmill.backends.ray.parcels import Parcel, pack
from gristmill.backends.ray.ray_errors import is_loss
from gristmill.backends.xenna.config import XennaConfig
from gristmill.backends.xenna.patches import FAREWELL_S, adapted, farewell
from gristmill.backends.xenna.stage import SegmentStage
from gristmill.errors import WorkerError
from gristmill.execution.driver import Work
from gristmill.observe.events import Notice

_POLL_S = 0.05
_MOST_ROUNDS = 100
"""Rounds that may end without anything having been finished; a task that kills is found in far fewer."""

_MOST_SLOTS = 8
"""Tasks that a worker has at once: Xenna takes more than a tenth of a second to hand it the next one."""
_LEAST_SLOTS = 2
_TASKS_PER_WORKER = 4
"""Times that the slots of all workers should be filled anew, so that all of them end at about the same time."""
_BATCH_BYTES = 8 << 20
"""About the size of a batch, to estimate how many there will be."""


class Rounds:
    """One run on Xenna; `plan_shares` says what the workers get on the cluster as it is when a round begins."""

    def __init__(
        self,
        plan: ExecutionPlan,
        work: Work,
        run: Run,
        plan_shares: Callable[[], Sequence[Share]],
        settings: XennaConfig,
    ) -> None:
        self._plan = plan
        self._run = run
        self._work = work
        self._plan_shares = plan_shares
        self._shares: Sequence[Share] = ()
        self._settings = settings
        self._delivery = Delivery(work)

    def run(self) -> None:
        """Run rounds until nothing is left."""
        fruitless = number = 0
        while left := [pack(task, 0) for task in self._work.tasks()]:
            before = self._work.done
            loss = self._round(left, careful=number > 0)
            number += 1
            if loss is None:
                return
            fruitless = 0 if self._work.done > before else fruitless + 1
            if fruitless >= _MOST_ROUNDS:
                raise WorkerError(
                    f"Workers on Ray died {fruitless} times in a row without a partition being finished: {loss}. "
                    "Committed output is intact; look at the Ray dashboard and logs, and run again to go on.",
                    cause=str(loss),
                )
            self._work.events.emit(Notice("A worker died; what it was working on is done again.", "warning"))

    def _round(self, parcels: list[Parcel], *, careful: bool) -> Exception | None:
        """One Xenna pipeline; gives the loss that ended it early, if one did.

        Raises:
            GristmillError: The error that ends the run.
        """
        mailbox = self._run.watch
        ray.get(mailbox.open.remote())
        self._shares = self._plan_shares()
        specification = self._specification(parcels, mailbox, careful=careful)
        pipeline = _Thread(specification)
        with adapted(self._limits(specification), self._run.cluster):
            pipeline.start()
            try:
                while pipeline.is_alive():
                    pipeline.join(_POLL_S)
                    self._deliver(mailbox)
            except BaseException:
                ray.get(mailbox.close.remote())
                pipeline.join(FAREWELL_S)
                raise
            finally:
                problem = pipeline.problem
                pipeline.forget()
                self._end_workers()
        # What workers have sent before they ended.
        self._deliver(mailbox)
        if problem is None:
            self._run.wait_for_workers()
            return None
        if is_loss(problem):
            return problem
        raise WorkerError(f"Xenna ended the run: {type(problem).__name__}: {problem}", cause=str(problem)) from problem

    def _deliver(self, mailbox: Any) -> None:
        for receipt in ray.get(mailbox.take.remote()):
            self._delivery.take(receipt)
        self._run.tick()

    def _end_workers(self) -> None:
        """Let workers that Xenna has left behind tear down, and end them."""
        workers = {name: handle for name, handle in self._run.workers().items() if handle is not None}
        words = {name: handle.__ray_call__.remote(farewell) for name, handle in workers.items()}
        if words:
            ray.wait(list(words.values()), num_returns=len(words), timeout=FAREWELL_S)
        for handle in workers.values():
            ray.kill(handle)
        for name in self._run.workers():
            ray.get(self._run.watch.lost.remote(name))

    def _limits(self, specification: Any) -> dict[str, int]:
        """The most workers of each stage, by the name that Xenna gives it."""
        limits = {}
        for number, (segment, stage) in enumerate(zip(self._plan.segments, specification.stages, strict=True)):
            given = (self._settings.max_workers_per_stage, self._run.specs[segment.index].ray.max_workers)
            wanted = [limit for limit in given if limit is not None]
            if wanted and self._run.fixed_workers(segment) is None:
                limits[stage.name(number)] = max(1, min(wanted))
        return limits

    def _specification(self, parcels: list[Parcel], mailbox: Any, *, careful: bool) -> Any:
        settings = self._settings
        batch = settings.execution_mode == "batch"
        config = xenna.PipelineConfig(
            execution_mode=xenna.ExecutionMode.BATCH if batch else xenna.ExecutionMode.STREAMING,
            logging_interval_s=settings.logging_interval,
            cpu_allocation_percentage=settings.cpu_allocation_percentage,
            return_last_stage_outputs=False,
            enable_work_stealing=False,
            actor_pool_verbosity_level=VerbosityLevel.NONE,
            monitoring_verbosity_level=VerbosityLevel.NONE,
            mode_specific=None
            if batch
            else specs.StreamingSpecificSpec(
                autoscale_interval_s=settings.autoscale_interval_s,
                executor_verbosity_level=VerbosityLevel.NONE,
            ),
        )
        stages = [
            self._stage(segment, share, mailbox, careful=careful)
            for segment, share in zip(self._plan.segments, self._shares, strict=True)
        ]
        return xenna.PipelineSpec(input_data=parcels, stages=stages, config=config)

    def _stage(self, segment: Segment, share: Share, mailbox: Any, *, careful: bool) -> Any:
        spec = self._run.specs[segment.index].xenna
        order = self._run.order(segment)
        environment = {**(self._settings.runtime_env or {}), **(segment.runtime_env or {})}
        stage = SegmentStage(
            order,
            mailbox,
            cpus=share.cpus,
            gpus=share.gpus,
            batch_size=segment.batch_size,
            setup_attempts=spec.num_setup_attempts_python or 1,
            careful=careful,
            environment=environment,
        )
        interval = spec.worker_restart_interval_m
        if interval is None:
            interval = self._settings.worker_restart_interval_m
        fixed = self._run.fixed_workers(segment)
        return xenna.StageSpec(
            stage,
            num_workers=fixed,
            slots_per_actor=spec.slots_per_actor or self._slots(segment, share),
            worker_max_lifetime_m=0 if order.lifetime_s is None else order.lifetime_s / 60,
            worker_restart_interval_m=1 if interval is None else interval,
            max_setup_failure_percentage=spec.max_setup_failure_percentage,
            over_provision_factor=spec.over_provision_factor,
        )

    def _slots(self, segment: Segment, share: Share) -> int:
        """Tasks that a worker has at once: as many as it needs never to wait, and few enough for all to have some."""
        tasks = len(self._work)
        if segment.index:
            tasks = max(tasks, self._work.input_bytes // _BATCH_BYTES)
        calls = int(tasks) // (segment.batch_size * _TASKS_PER_WORKER * share.most)
        return max(_LEAST_SLOTS, min(_MOST_SLOTS, calls))


class _Thread(threading.Thread):
    """A Xenna pipeline beside the driver, which delivers in the meantime."""

    def __init__(self, specification: Any) -> None:
        super().__init__(name="gristmill-xenna", daemon=True)
        self._specification = specification
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            xenna.run_pipeline(self._specification)
        except Exception as error:
            self.problem = error

    def forget(self) -> None:
        """Let go of everything, so that Ray can collect the workers."""
        self._specification = None
        if self.problem is not None:
            self.problem = None
