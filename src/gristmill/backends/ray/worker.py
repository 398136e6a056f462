"""A worker on Ray: a segment runner from setup to teardown. The same in a Ray task, an actor and a Xenna worker."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import cloudpickle
import psutil
import ray

from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.plan import Segment
from gristmill.backends.ray.usage import WorkerUsage, own_memory
from gristmill.errors import GristmillError, WorkerError
from gristmill.execution.packed_task import PackedTask, pack, pack_end, unpack
from gristmill.execution.partition_output import TaskEnd
from gristmill.execution.recovery import Hints, Place
from gristmill.execution.runner import SegmentRunner, set_up_node
from gristmill.observe.events import TaskFinished
from gristmill.observe.memory import cpu_count, descendants
from gristmill.stages.base import FusedStage, ProcessingStage
from gristmill.tracking.origins import lineage_of

_ANSWER_S = 600.0
"""How long a worker waits for the coordinator, which is fast, but whose machine may be very busy."""
_MEASURE_S = 0.25
"""Seconds between two measurements of a worker's memory."""
_TELL_S = 1.0
"""Seconds between two messages to the coordinator about a worker's usage; its reports can arrive much later."""
_SMALL = 1024
"""The weight of a value without documents."""


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """The configuration of a worker.

    Attributes:
        run: Id of the run.
        code: The segment and the settings of the run, pickled.
        index: Number of the segment.
        last: Whether its results are the results of the run.
        whole_partitions: Whether it processes partitions from reading to commit.
        coordinator: The coordinator of the run.
        lifetime_s: Age at which the worker is replaced; None for never.
        max_growth_bytes: Maximum growth of its memory after its first task; None for no limit.
        holds_gpu: Whether it gets a GPU or a share of one; otherwise all GPUs are hidden.
    """

    run: str
    code: bytes
    index: int
    last: bool
    whole_partitions: bool
    coordinator: Any
    lifetime_s: float | None = None
    max_growth_bytes: int | None = None
    holds_gpu: bool = False


@dataclass(slots=True)
class WorkerReport:
    """A worker's report to the driver: ends of tasks, figures, or the error that ends the run.

    Attributes:
        ends: Ends of tasks.
        events: Events of the work done.
        error: The error that ends the run.
        usage: Resource use and waiting times of workers.
    """

    ends: list[tuple[TaskEnd, PackedTask | None]] = field(default_factory=list)
    events: list[TaskFinished] = field(default_factory=list)
    error: GristmillError | None = None
    usage: list[WorkerUsage] = field(default_factory=list)

    def add(self, other: WorkerReport) -> None:
        """Merge the contents of `other`."""
        self.ends.extend(other.ends)
        self.events.extend(other.events)
        self.error = self.error or other.error
        self.usage.extend(other.usage)

    def __sizeof__(self) -> int:
        # Ray Data weighs blocks by this, and holds work back accordingly.
        documents = sum(packed.nbytes for _, packed in self.ends if packed is not None)
        return _SMALL * (1 + len(self.ends)) + documents


Result: TypeAlias = PackedTask | WorkerReport


class SegmentWorker:
    """Sets up a segment in this process and runs tasks through it."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        # An actor keeps its id when Ray restarts it in a new process.
        context = ray.get_runtime_context()
        self.name = str(context.get_actor_id() or context.get_worker_id())
        self.number = -1
        self.failure: GristmillError | None = None
        self._started_at = time.monotonic()
        self._setup_s = 0.0
        self._worked_at: float | None = None
        self._measured_at = self._told_at = float("-inf")
        self._memory = self._first_memory = 0
        self._attempt = 1
        self._lock = threading.RLock()
        self._ended = False
        if not spec.holds_gpu:
            # Before the code of the stages is loaded: its imports may look for devices.
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        try:
            segment, settings = cloudpickle.loads(spec.code)
        except (ImportError, AttributeError) as error:
            self.failure = _missing_code(error)
            return
        self.segment: Segment = segment
        self.steps = _StepReporter(segment, spec.coordinator)
        self.runner = SegmentRunner(
            segment,
            settings,
            first=spec.index == 0,
            whole_partitions=spec.whole_partitions,
            step_log=self.steps,
            can_be_killed=True,
        )

    # --- life ---

    def start(self, gpus: tuple[Any, ...]) -> None:
        """Set up the node and the stages; an error is kept and reported with the first task.

        Args:
            gpus: Ids of the GPUs assigned to the worker.
        """
        if self.failure is not None:
            return
        coordinator = self.spec.coordinator
        try:
            self._prepare_node()
            if "numba" in sys.modules:
                from gristmill.kernels.ahead import compile_when_missing

                compile_when_missing(self.segment.stages, processes=cpu_count() - 1)
            numbers = tuple(int(gpu) for gpu in gpus if str(gpu).isdigit())
            self.runner.setup(WorkerMetadata(self.name, {"gpus": list(gpus)}))
            context = ray.get_runtime_context()
            handle = context.current_actor if context.get_actor_id() else None
            self.number = _answer(
                coordinator.worker_started.remote(self.name, self.spec.index, os.getpid(), numbers, handle)
            )
        except GristmillError as error:
            self.failure = error
        self._setup_s = time.monotonic() - self._started_at
        self._started_at = time.monotonic()
        self._worked_at = time.perf_counter()

    def end(self, cause: str = "finished") -> None:
        """Tear down the stages and notify the coordinator; a second call does nothing."""
        with self._lock:
            if self._ended or not hasattr(self, "runner"):
                return
            self._ended = True
            problem: GristmillError | None = None
            try:
                self.runner.teardown()
            except GristmillError as error:
                problem = error
            if self.number >= 0:
                _answer(self.spec.coordinator.worker_ended.remote(self.name, cause, problem))

    @property
    def has_grown(self) -> bool:
        """Whether its memory has grown so much since its first task that it should be replaced."""
        limit = self.spec.max_growth_bytes
        return limit is not None and self._memory - self._first_memory > limit

    def may_be_replaced(self, interval_s: float) -> bool:
        """Whether the worker has grown, or is old and no other of its segment was replaced within `interval_s`."""
        if self.has_grown:
            return True
        lifetime = self.spec.lifetime_s
        if lifetime is None or time.monotonic() - self._started_at <= lifetime:
            return False
        return bool(_answer(self.spec.coordinator.may_replace_worker.remote(self.spec.index, interval_s)))

    def _prepare_node(self) -> None:
        """Call `setup_on_node` of the segment's stages, unless that has been done on this node in this run.

        Raises:
            StageFailedError: A stage raised.
        """
        if not any(overrides(stage, "setup_on_node") for stage in self.segment.stages):
            return
        coordinator, index = self.spec.coordinator, self.spec.index
        node = ray.get_runtime_context().get_node_id()
        worker = f"{self.name}-{os.getpid()}"
        while (owner := _answer(coordinator.claim_node.remote(node, index, worker))) not in (None, worker):
            if not psutil.pid_exists(int(owner.rsplit("-", 1)[-1])):
                _answer(coordinator.node_failed.remote(node, index))
            time.sleep(0.05)
        if owner is None:
            return
        try:
            for stage in self.segment.stages:
                set_up_node(stage, NodeInfo(node), WorkerMetadata(worker))
        except GristmillError:
            _answer(coordinator.node_failed.remote(node, index))
            raise
        _answer(coordinator.node_done.remote(node, index))

    # --- work ---

    def run(self, tasks: Sequence[PackedTask], *, careful: bool, attempt: int = 1) -> Generator[Result, None, None]:
        """Push tasks through the segment: tasks for the next one as they come, reports for the driver.

        Args:
            tasks: The tasks.
            careful: An earlier attempt killed its worker: process one task at a time, and report every step.
            attempt: Number of the attempt at these tasks.
        """
        if self.failure is not None:
            yield WorkerReport(error=self.failure)
            return
        size = 1 if careful or self.spec.whole_partitions else self.segment.batch_size
        with self._lock:
            self._attempt = attempt
            for start in range(0, len(tasks), size):
                if not (yield from self._run_recorded(tasks[start : start + size], careful=careful)):
                    return

    def _run_recorded(self, group: Sequence[PackedTask], *, careful: bool) -> Generator[Result, None, bool]:
        """Run a group of tasks, recorded by the coordinator if `careful`; returns whether they were done."""
        coordinator = self.spec.coordinator
        key = f"{group[0].task_id} in {self.segment.name}"
        hints: Hints | None = None
        if careful:
            known = _answer(coordinator.start_task.remote(key))
            if isinstance(known, GristmillError):
                yield WorkerReport(error=known)
                return False
            hints = known
        self.steps.enter(key, careful=careful)
        finished = False
        try:
            done = yield from self._run_group(group, hints)
            finished = True
        finally:
            # Not reached when the process dies: that is how the coordinator knows.
            self.steps.leave()
            if careful:
                _answer((coordinator.finish_task if finished else coordinator.release_task).remote(key))
        return done

    def _run_group(self, group: Sequence[PackedTask], hints: Hints | None) -> Generator[Result, None, bool]:
        started = time.perf_counter()
        waited = 0.0
        given = given_bytes = 0
        report = WorkerReport()
        tasks = [unpack(packed) for packed in group]
        first = lineage_of(tasks[0])
        try:
            for item in self.runner.run(tasks, hints):
                if isinstance(item, TaskEnd):
                    report.ends.append(pack_end(item))
                elif self.spec.last:
                    report.ends.append(pack_end(TaskEnd(lineage_of(item), task=item)))
                else:
                    packed = pack(item)
                    given, given_bytes = given + 1, given_bytes + packed.nbytes
                    since = time.perf_counter()
                    yield packed
                    waited += time.perf_counter() - since
        except GristmillError as error:
            report.error = error
        except Exception as error:
            report.error = WorkerError(
                f"A worker failed in {self.segment.name} on {first.task_id}: {type(error).__name__}: {error}\n\n"
                f"{traceback.format_exc()}",
                task=first.task_id,
            )
        memory = self._measured()
        counts = self.runner.call_counts
        seconds = time.perf_counter() - started - waited
        report.events.append(
            TaskFinished(
                first.task_id,
                first.partition,
                self.spec.index,
                self.number,
                seconds,
                counts.counts,
                counts.times,
                attempt=self._attempt,
            )
        )
        self._tell(
            report,
            WorkerUsage(
                worker=self.name,
                number=self.number,
                segment=self.spec.index,
                memory=memory,
                idle_s=0.0 if self._worked_at is None else started - self._worked_at,
                blocked_s=waited,
                starting_s=self._setup_s,
                taken=len(group),
                taken_bytes=sum(packed.nbytes for packed in group),
                given=given,
                given_bytes=given_bytes,
            ),
        )
        self._setup_s = 0.0
        self._worked_at = time.perf_counter()
        yield report
        return report.error is None

    def _tell(self, report: WorkerReport, usage: WorkerUsage) -> None:
        if time.monotonic() - self._told_at < _TELL_S:
            report.usage.append(usage)
            return
        self._told_at = time.monotonic()
        self.spec.coordinator.note_usage.remote(usage)

    def _measured(self) -> int:
        """The memory that the worker holds; 0 if it was measured a moment ago."""
        if time.monotonic() - self._measured_at < _MEASURE_S:
            return 0
        self._measured_at = time.monotonic()
        self._memory = own_memory() + sum(map(own_memory, descendants(os.getpid())))
        self._first_memory = self._first_memory or self._memory
        return self._memory


class _StepReporter:
    """The runner's `StepLog`: reports its steps to the coordinator if needed, and enforces time limits."""

    def __init__(self, segment: Segment, coordinator: Any) -> None:
        self._limits = [stage.time_limit_s for stage in segment.stages]
        self._coordinator = coordinator
        self._key = ""
        self._careful = False
        self._timer: threading.Timer | None = None

    def enter(self, key: str, *, careful: bool) -> None:
        self._key, self._careful = key, careful

    def leave(self) -> None:
        self._cancel_timer()
        self._key = ""

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """Called by the runner before every step."""
        place = Place(call, stage, lo, hi)
        self._cancel_timer()
        if self._careful:
            _answer(self._coordinator.report_place.remote(self._key, place))
        limit = self._limits[stage]
        if limit is not None:
            self._timer = threading.Timer(limit, self._end_process, (self._key, place))
            self._timer.daemon = True
            self._timer.start()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_process(self, key: str, place: Place) -> None:
        """End this process: nothing else stops a stage that does not return."""
        try:
            _answer(self._coordinator.report_overdue.remote(key, place))
        finally:
            os._exit(1)


def overrides(stage: Any, hook: str) -> bool:
    """Whether `stage`, or a stage that it wraps, defines the hook itself."""
    if isinstance(stage, FusedStage):
        return any(overrides(member, hook) for member in stage.members)
    return getattr(type(stage), hook) is not getattr(ProcessingStage, hook)


def _missing_code(error: Exception) -> WorkerError:
    return WorkerError(
        f"The code of the stages cannot be loaded on node {ray.get_runtime_context().get_node_id()}: "
        f"{type(error).__name__}: {error}. Everything that stages import must be on every node: install it there, or "
        "send it "
        'along with config={"runtime_env": {"working_dir": "."}} (or "py_modules").',
        cause=str(error),
    )


def _answer(reference: Any) -> Any:
    try:
        return ray.get(reference, timeout=_ANSWER_S)
    except ray.exceptions.GetTimeoutError as error:
        raise WorkerError(
            f"The run's coordinator actor has not responded for {_ANSWER_S:g} s. Is the driver's machine overloaded? "
            "Run the same command again to resume; finished partitions are kept.",
            cause="no answer",
        ) from error
