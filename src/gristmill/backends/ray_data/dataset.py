"""The dataset of a run: small rows that stand for tasks, through one operator per segment."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import Any

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset, TaskPoolStrategy

from gristmill.backends.plan import ExecutionPlan, Segment
from gristmill.backends.ray.allocation import Share
from gristmill.backends.ray.cluster import set_meanwhile
from gristmill.backends.ray.driver import Run
from gristmill.backends.ray.parcels import Receipt, pack
from gristmill.backends.ray_data.backpressure import KEY as PRESSURE
from gristmill.backends.ray_data.backpressure import with_idle_processors
from gristmill.backends.ray_data.block_reader import Pump
from gristmill.backends.ray_data.calls import COLUMN, SegmentActor, block, run_segment
from gristmill.backends.ray_data.config import RayDataConfig
from gristmill.execution.driver import Work

_MOST_BATCHES = 8
"""Batches in one Ray task: its overhead of about 10 ms must not starve a worker that needs 10 ms for a batch."""
_MOST_BYTES = 64 << 20
"""Input that one Ray task reads at the most, where partitions are small enough to be put together."""
_BATCH_BYTES = 8 << 20
"""About the size of a batch, to estimate how many there will be."""
_CALLS_AT_ONCE = 2
"""Calls that a worker which stays has at once: it works on one, and the other waits beside it or is handed on."""
_CALLS_PER_WORKER = 4
"""Ray tasks per worker that should remain, so that all workers end at about the same time."""


class Flow:
    """Builds and runs the dataset of one round; one segment after the other if `one_at_a_time`.

    The first `at_once` of the partitions that are left take part.
    """

    def __init__(
        self,
        plan: ExecutionPlan,
        work: Work,
        run: Run,
        shares: Sequence[Share],
        settings: RayDataConfig,
        *,
        at_once: int,
        one_at_a_time: bool = False,
    ) -> None:
        self._plan = plan
        self._work = work
        self._run = run
        self._shares = shares
        self._settings = settings
        self._at_once = at_once
        self._one_at_a_time = one_at_a_time

    @contextlib.contextmanager
    def opened(self) -> Iterator[Pump]:
        """A pump that gives the references of the blocks as they come; at the end all workers have torn down."""
        try:
            with Pump(self._blocks).running() as pump:
                yield pump
        finally:
            gc.collect()
        self._run.wait_for_workers()

    def _blocks(self) -> Generator[Any, None, None]:
        with _context():
            yield from _references(self._dataset())

    @staticmethod
    def receipts(frame: Any) -> list[Receipt]:
        """The receipts in a block."""
        return [item for item in frame[COLUMN] if isinstance(item, Receipt)]

    def _dataset(self) -> Dataset:
        # Each block goes to the object store as it is made: partitions can be very many, and the driver is one process.
        dataset: Dataset = ray.data.from_pandas_refs([ray.put(block(items)) for items in self._roots()])
        for segment, share in zip(self._plan.segments, self._shares, strict=True):
            dataset = self._mapped(dataset, segment, share)
            if self._one_at_a_time and segment is not self._plan.segments[-1]:
                dataset = dataset.materialize()
        return dataset

    def _roots(self) -> Iterator[list[Any]]:
        """The root tasks in groups, each of which is one Ray task."""
        size = self._partitions_per_call()
        group: list[Any] = []
        for task in islice(self._work.tasks(), self._at_once):
            group.append(pack(task, 0))
            if len(group) == size:
                yield group
                group = []
        if group:
            yield group

    def _partitions_per_call(self) -> int:
        first = self._plan.segments[0]
        number = len(self._work)
        spread = number // (_CALLS_PER_WORKER * self._workers(first))
        average = max(1, self._work.input_bytes // max(1, number))
        fitting = max(1, _MOST_BYTES // average) if self._work.input_bytes else _MOST_BATCHES
        return max(first.batch_size, min(spread, fitting, 4 * _MOST_BATCHES), 1)

    def _batches_per_call(self, segment: Segment) -> int:
        size = segment.batch_size
        if self._settings.batches_per_call is not None:
            return max(size, self._settings.batches_per_call)
        batches = max(len(self._work), self._work.input_bytes // _BATCH_BYTES)
        spread = int(batches) // (_CALLS_PER_WORKER * self._workers(segment))
        return size * max(1, min(_MOST_BATCHES, spread) // size)

    def _workers(self, segment: Segment) -> int:
        share = self._shares[segment.index]
        limit = self._settings.max_workers_per_stage
        return share.most if limit is None else max(1, min(share.most, limit))

    def _mapped(self, dataset: Dataset, segment: Segment, share: Share) -> Dataset:
        spec = self._run.specs[segment.index]
        order = self._run.order(segment)
        most = min(self._workers(segment), spec.ray.max_workers or self._workers(segment))
        options: dict[str, Any] = {
            "batch_size": None if segment.index == 0 else self._batches_per_call(segment),
            "batch_format": "pandas",
            "zero_copy_batch": True,
            "num_cpus": share.cpus if spec.ray.ray_num_cpus is None else spec.ray.ray_num_cpus,
            "num_gpus": share.gpus,
            # A few bytes that differ from segment to segment: Ray Data puts operators with equal requests into one
            # worker, but what shares a worker has been decided by the planner.
            "memory": segment.index + 1,
            **({"runtime_env": environment} if (environment := self._environment(segment)) else {}),
            **self._where(),
            **(spec.ray.ray_remote_args or {}),
        }
        if not self._run.holds(segment):
            if spec.ray.max_calls_per_worker is not None:
                options["max_calls"] = spec.ray.max_calls_per_worker
            limit = most if self._is_limited(segment) else None
            return dataset.map_batches(
                run_segment,
                fn_kwargs={"order": order},
                compute=TaskPoolStrategy(size=limit),
                **options,
            )
        least = min(most, max(share.least, spec.ray.min_workers or 1))
        pool = ActorPoolStrategy(
            min_size=least,
            max_size=max(least, most),
            initial_size=min(max(least, spec.ray.initial_workers or least), max(least, most)),
            # Twice as many, since Ray lets a pool grow when its actors have 1.75 times the calls that they run at once.
            max_tasks_in_flight_per_actor=2 * _CALLS_AT_ONCE,
            max_concurrent_calls_per_actor=_CALLS_AT_ONCE,
            enable_true_multi_threading=True,
        )
        return dataset.map_batches(
            SegmentActor,
            fn_constructor_kwargs={"order": order, "restart_interval_s": spec.restart_interval_s},
            compute=pool,
            **options,
        )

    def _where(self) -> dict[str, Any]:
        """Keeps work off the node that is to be avoided."""
        avoided = self._run.cluster.avoided
        return {} if avoided is None else {"label_selector": {ray._raylet.RAY_NODE_ID_KEY: f"!{avoided}"}}

    def _environment(self, segment: Segment) -> dict[str, Any]:
        """What its workers need beside the environment of the connection: that of its stages goes before all others."""
        mine, ours = dict(segment.runtime_env or {}), self._settings.runtime_env or {}
        if mine.get("env_vars") and ours.get("env_vars"):
            mine["env_vars"] = {**ours["env_vars"], **mine["env_vars"]}
        if self._run.cluster.connected_before:
            return {**ours, **mine}
        return mine

    def _is_limited(self, segment: Segment) -> bool:
        asked = segment.workers is not None or self._settings.max_workers_per_stage is not None
        return asked or self._run.specs[segment.index].ray.max_workers is not None


def _references(dataset: Dataset) -> Generator[Any, None, None]:
    bundles = iter(dataset.iter_internal_ref_bundles())
    try:
        for bundle in bundles:
            for entry in bundle.blocks:
                yield entry.ref
    finally:
        close = getattr(bundles, "close", None)
        if close is not None:
            close()


@contextlib.contextmanager
def _context() -> Iterator[None]:
    """The settings of Ray Data for our rows; the caller's come back at the end."""
    context = DataContext.get_current()
    wanted: dict[str, Any] = {
        # Rows are Python values in pandas blocks, which Ray sends without copying what lies inside.
        "enable_pandas_block": True,
        "batch_to_block_arrow_format": False,
        # One row per block: see `calls`.
        "target_max_block_size": 1,
        # A worker goes on while Ray's loop, which looks every tenth of a second, has not taken what it has given: two
        # blocks, Ray's own limit, are 20 batches per second and no more.
        "_max_num_blocks_in_streaming_gen_buffer": 2 * _MOST_BATCHES,
        # How long a stage may take is its own affair (`time_limit_s`).
        "execution_no_progress_timeout_s": -1,
        "enable_progress_bars": False,
        "print_on_execution_start": False,
        "enable_auto_log_stats": False,
    }
    before = {name: getattr(context, name) for name in wanted if hasattr(context, name)}
    rules = context.get_config(PRESSURE)
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    for name in before:
        setattr(context, name, wanted[name])
    if rules is None:  # the user's own stay
        context.set_config(PRESSURE, with_idle_processors())
    try:
        # Ray's figures about its own use would take a process more on every cluster.
        with set_meanwhile({"RAY_DATA_USAGE_DISABLED": "1"}):
            yield
    finally:
        for name, value in before.items():
            setattr(context, name, value)
        if rules is None:
            context.remove_config(PRESSURE)
        logger.setLevel(level)
