"""A worker on Ray: a segment runner with its life around it. The same in a task, an actor and a Xenna worker."""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
import ray

from gristmill.backends.base import NodeInfo, WorkerMetadata
from gristmill.backends.plan import RunSettings, Segment
from gristmill.backends.ray.parcels import Parcel, Receipt, pack, pack_leaf, task_id, task_leaves, unpack
from gristmill.backends.ray.sampling import held_memory
from gristmill.errors import GristmillError, WorkerError
from gristmill.execution.failures import raised_in
from gristmill.execution.partition_output import Leaf
from gristmill.execution.recovery import Hints, Place
from gristmill.execution.runner import SegmentRunner
from gristmill.observe.events import TaskFinished
from gristmill.tasks.base import Task

_ASK_S = 600.0
"""How long a worker waits for the watch: it is quick, but its machine may be very busy."""
_MEASURE_S = 1.0
"""How long a look at the memory of a worker is good for."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker needs to know to start.

    Attributes:
        run: The run, told apart from others.
        code: The segment and the settings of the run, pickled.
        index: The number of the segment.
        last: Whether its results are the results of the run.
        whole_partitions: Whether it takes partitions from reading to commit.
        watch: The watch of the run.
        lifetime_s: The age at which the worker makes room for a new one; None: never.
    """

    run: str
    code: bytes
    index: int
    last: bool
    whole_partitions: bool
    watch: Any
    lifetime_s: float | None = None


class SegmentWorker:
    """Sets up a segment in this process and runs parcels through it."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.name = _worker_name()
        self.number = -1
        self.born = time.monotonic()
        self.failure: GristmillError | None = None
        self._measured_at = float("-inf")
        self._lock = threading.RLock()
        self._ended = False
        try:
            segment, settings = cloudpickle.loads(order.code)
        except (ImportError, AttributeError) as error:
            self.failure = _not_here(error)
            return
        self.segment: Segment = segment
        self.settings: RunSettings = settings
        self.place = _Places(segment, order.watch)
        self.runner = SegmentRunner(
            segment,
            settings,
            first=order.index == 0,
            whole_partitions=order.whole_partitions,
            progress=self.place,
            can_be_killed=True,
        )

    # --- life ---

    def start(self, allocation: Any = None) -> None:
        """Set the node and the stages up; an error is kept and reported with the first parcel."""
        if self.failure is not None:
            return
        try:
            prepare_node(self.segment, self.order.watch)
            gpus = tuple(ray.get_gpu_ids()) if allocation is None else allocation
            self.runner.setup(WorkerMetadata(self.name, allocation=gpus))
            numbers = tuple(int(gpu) for gpu in gpus if str(gpu).isdigit()) if isinstance(gpus, tuple) else ()
            hello = self.order.watch.hello.remote(self.name, self.order.index, os.getpid(), numbers, _own_handle())
            self.number = _ask(hello)
        except GristmillError as error:
            self.failure = error
        self.born = time.monotonic()

    def end(self, cause: str = "finished") -> None:
        """Tear the stages down and say goodbye; does nothing the second time."""
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
                _ask(self.order.watch.bye.remote(self.name, cause, problem))

    @property
    def is_old(self) -> bool:
        """Whether the worker should make room for a new one."""
        lifetime = self.order.lifetime_s
        return lifetime is not None and time.monotonic() - self.born > lifetime

    def may_retire(self, interval_s: float) -> bool:
        """Whether this worker may end now; its neighbours must not all start anew at once."""
        return bool(_ask(self.order.watch.may_retire.remote(self.order.index, interval_s)))

    # --- work ---

    def run(self, parcels: Sequence[Parcel], *, careful: bool) -> Generator[Parcel | Receipt, None, None]:
        """Push parcels through the segment: parcels for the next one as they come, receipts for the driver.

        Args:
            parcels: The tasks.
            careful: An earlier attempt has killed its worker: take one task at a time, and tell the watch every step.
        """
        if self.failure is not None:
            yield Receipt(error=self.failure)
            return
        size = 1 if careful or self.order.whole_partitions else self.segment.batch_size
        with self._lock:
            for start in range(0, len(parcels), size):
                failed = False
                for given in self._watched(list(parcels[start : start + size]), careful=careful):
                    failed = isinstance(given, Receipt) and given.error is not None
                    yield given
                if failed:
                    return

    def _watched(self, group: list[Parcel], *, careful: bool) -> Iterator[Parcel | Receipt]:
        key = f"{task_id(group[0])} in {self.segment.name}"
        hints: Hints | None = None
        if careful:
            known = _ask(self.order.watch.begin.remote(key))
            if isinstance(known, GristmillError):
                yield Receipt(error=known)
                return
            hints = known
        self.place.enter(key, careful=careful)
        done = False
        try:
            yield from self._group([unpack(parcel) for parcel in group], hints)
            done = True
        finally:
            # Not reached when the process dies: that is how the watch knows.
            self.place.leave()
            if careful:
                _ask((self.order.watch.end if done else self.order.watch.release).remote(key))

    def _group(self, tasks: list[Task[Any]], hints: Hints | None) -> Iterator[Parcel | Receipt]:
        begun = time.perf_counter()
        waited = 0.0
        receipt = Receipt()
        first = tasks[0]._lineage
        assert first is not None
        try:
            for item in self.runner.run(tasks, hints):
                if isinstance(item, Leaf):
                    receipt.leaves.append(pack_leaf(item))
                elif self.order.last:
                    receipt.leaves.extend(pack_leaf(leaf) for leaf in task_leaves([item]))
                else:
                    parcel = pack(item, self.order.index + 1)
                    since = time.perf_counter()
                    yield parcel
                    waited += time.perf_counter() - since
        except GristmillError as error:
            receipt.error = error
        except Exception as error:
            receipt.error = WorkerError(
                f"A worker failed in {self.segment.name} on {first.task_id}: {type(error).__name__}: {error}\n\n"
                f"{traceback.format_exc()}",
                task=first.task_id,
            )
        receipt.memory = self._memory()
        counts = self.runner.call_counts
        seconds = time.perf_counter() - begun - waited
        receipt.events.append(
            TaskFinished(
                first.task_id, first.partition, self.order.index, self.number, seconds, counts.counts, counts.times
            )
        )
        yield receipt

    def _memory(self) -> int:
        """The memory of this process, or 0 where it was told a moment ago."""
        if time.monotonic() - self._measured_at < _MEASURE_S:
            return 0
        self._measured_at = time.monotonic()
        return held_memory()


class _Places:
    """Where the runner is; tells the watch when it must know, and enforces time limits."""

    def __init__(self, segment: Segment, watch: Any) -> None:
        self._limits = [stage.time_limit_s for stage in segment.stages]
        self._watch = watch
        self._key = ""
        self._careful = False
        self._timer: threading.Timer | None = None

    def enter(self, key: str, *, careful: bool) -> None:
        self._key, self._careful = key, careful

    def leave(self) -> None:
        self._disarm()
        self._key = ""

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        """Called by the runner before every step."""
        place = Place(call, stage, lo, hi)
        self._disarm()
        if self._careful:
            _ask(self._watch.at.remote(self._key, place))
        limit = self._limits[stage]
        if limit is not None:
            self._timer = threading.Timer(limit, self._give_up, (self._key, place))
            self._timer.daemon = True
            self._timer.start()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, key: str, place: Place) -> None:
        """End this process: nothing else stops a stage that does not return."""
        try:
            _ask(self._watch.overdue.remote(key, place))
        finally:
            os._exit(1)


def _not_here(error: Exception) -> WorkerError:
    return WorkerError(
        f"The code of the stages cannot be loaded on node {ray.get_runtime_context().get_node_id()}: "
        f"{type(error).__name__}: {error}. What stages import must be on every node: install it there, or send it "
        'along with config={"runtime_env": {"working_dir": "."}} (or "py_modules").',
        cause=str(error),
    )


def prepare_node(segment: Segment, watch: Any) -> None:
    """Call `setup_on_node` of the segment's stages, unless that has been done on this node in this run.

    Raises:
        StageFailedError: A stage raised.
    """
    if not sets_up_nodes(segment):
        return
    node = ray.get_runtime_context().get_node_id()
    worker = f"{_worker_name()}-{os.getpid()}"
    while (answer := str(_ask(watch.node.remote(node, segment.index, worker)))) != "done":
        if answer == "go":
            _set_up_node(segment, watch, worker, node)
            return
        if not _is_alive(answer.removeprefix("wait ")):
            _ask(watch.node_failed.remote(node, segment.index))
        time.sleep(0.05)


def _set_up_node(segment: Segment, watch: Any, worker: str, node: str) -> None:
    for stage in segment.stages:
        try:
            stage.setup_on_node(NodeInfo(node), WorkerMetadata(worker))
        except Exception as error:
            _ask(watch.node_failed.remote(node, segment.index))
            raise raised_in(stage, error, doing="setup_on_node()") from error
    _ask(watch.node_done.remote(node, segment.index))


def sets_up_nodes(segment: Segment) -> bool:
    """Whether some stage has something to do once per node."""
    return any(overrides(stage, "setup_on_node") for stage in segment.stages)


def overrides(stage: Any, hook: str) -> bool:
    """Whether `stage`, or a stage that it does the work of, defines the hook itself."""
    from gristmill.stages.base import FusedStage, ProcessingStage

    if isinstance(stage, FusedStage):
        return any(overrides(member, hook) for member in stage.members)
    return getattr(type(stage), hook) is not getattr(ProcessingStage, hook)


def _worker_name() -> str:
    """A name that stays when Ray starts the actor again in a new process."""
    context = ray.get_runtime_context()
    return str(context.get_actor_id() or context.get_worker_id())


def _own_handle() -> Any:
    context = ray.get_runtime_context()
    return context.current_actor if context.get_actor_id() else None


def _is_alive(worker: str) -> bool:
    """Whether the process of a worker on this node still runs."""
    pid = int(worker.rsplit("-", 1)[-1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _ask(answer: Any) -> Any:
    try:
        return ray.get(answer, timeout=_ASK_S)
    except ray.exceptions.GetTimeoutError as error:
        raise WorkerError(
            f"The watch of the run, a small actor beside the driver, has not answered for {_ASK_S:g} s. Is the "
            "driver's machine overloaded? Run again to go on; finished partitions are kept.",
            cause="no answer",
        ) from error
