"""The dataset of a run: one row per task, passed through one operator per segment."""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Generator, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import ray
import ray.data
from ray.data import ActorPoolStrategy, DataContext, Dataset, TaskPoolStrategy

from gristmill.backends.plan import Segment
from gristmill.backends.ray import ray_internals
from gristmill.backends.ray.allocation import Share
from gristmill.backends.ray.cluster import temporary_variables
from gristmill.backends.ray.driver import RayRun
from gristmill.backends.ray.stage_specs import shown_name
from gristmill.backends.ray.worker import WorkerReport
from gristmill.backends.ray_data.background import BackgroundIterator, in_background
from gristmill.backends.ray_data.calls import COLUMN, block, named_actor, named_call
from gristmill.execution.packed_task import pack

if TYPE_CHECKING:
    from gristmill.backends.ray_data.executor import RayDataConfig

_MOST_BATCHES = 8
"""Batches in one Ray task: its overhead of about 10 ms must not starve a worker that needs 10 ms for a batch."""
_MOST_BYTES = 64 << 20
"""Maximum input of one Ray task, where several small partitions are combined."""
_BATCH_BYTES = 8 << 20
"""Approximate size of a batch, to estimate how many there will be."""
_CALLS_AT_ONCE = 2
"""Concurrent calls of a stateful worker: it processes one while the other waits or is passed on."""
_CALLS_PER_WORKER = 4
"""Ray tasks per worker that should remain, so that all workers finish at about the same time."""
_BLOCKS_AHEAD = 64
"""Blocks that may wait for the driver. They are in the object store, not in the driver."""


class SegmentDataset:
    """Builds and runs the dataset of one attempt; one segment after the other if `one_at_a_time`.

    Processes the first `at_once` remaining partitions.
    """

    def __init__(
        self,
        run: RayRun,
        shares: Sequence[Share],
        settings: RayDataConfig,
        *,
        at_once: int,
        one_at_a_time: bool = False,
    ) -> None:
        self._plan = run.plan
        self._work = run.work
        self._run = run
        self._shares = shares
        self._settings = settings
        self._at_once = at_once
        self._one_at_a_time = one_at_a_time

    @contextlib.contextmanager
    def opened(self) -> Iterator[BackgroundIterator[Any]]:
        """The references of the blocks as they arrive; all workers have torn down when it ends."""
        try:
            with in_background(self._blocks, ahead=_BLOCKS_AHEAD) as blocks:
                yield blocks
        finally:
            gc.collect()
        self._run.wait_for_workers()

    def _blocks(self) -> Generator[Any, None, None]:
        with _data_settings():
            bundles = iter(self._dataset().iter_internal_ref_bundles())
            try:
                for bundle in bundles:
                    for entry in bundle.blocks:
                        yield entry.ref
            finally:
                if hasattr(bundles, "close"):
                    bundles.close()

    @staticmethod
    def reports(frame: Any) -> list[WorkerReport]:
        """The reports in a block."""
        return [item for item in frame[COLUMN] if isinstance(item, WorkerReport)]

    def _dataset(self) -> Dataset:
        # Each block goes to the object store as it is made: there can be very many partitions, and the driver is one
        # process.
        dataset: Dataset = ray.data.from_pandas_refs([ray.put(block(items)) for items in self._roots()])
        for segment, share in zip(self._plan.segments, self._shares, strict=True):
            dataset = self._mapped(dataset, segment, share)
            if self._one_at_a_time and segment is not self._plan.segments[-1]:
                dataset = dataset.materialize()
        return dataset

    def _roots(self) -> Iterator[list[Any]]:
        """The root tasks in groups, each of which is one Ray task."""
        tasks, size = islice(self._work.tasks(), self._at_once), self._partitions_per_call()
        while group := [pack(task) for task in islice(tasks, size)]:
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
        worker, name = self._run.worker_spec(segment), shown_name(segment)
        most = min(self._workers(segment), spec.ray.max_workers or self._workers(segment))
        options: dict[str, Any] = {
            "batch_size": None if segment.index == 0 else self._batches_per_call(segment),
            "batch_format": "pandas",
            "zero_copy_batch": True,
            "num_cpus": share.cpus if spec.ray.ray_num_cpus is None else spec.ray.ray_num_cpus,
            "num_gpus": share.gpus,
            # A few bytes that differ per segment: Ray Data would put operators with equal requests into one worker, but
            # the planner has already decided which stages share a worker.
            "memory": segment.index + 1,
        }
        if environment := self._environment(segment):
            options["runtime_env"] = environment
        if self._run.cluster.avoided is not None:
            options["label_selector"] = {"ray.io/node-id": f"!{self._run.cluster.avoided}"}
        options.update(spec.ray.ray_remote_args or {})
        if not self._run.stays(segment):
            options.setdefault("max_calls", spec.ray.max_calls_per_worker or ray_internals.MOST_CALLS)
            asked = (segment.workers, self._settings.max_workers_per_stage, spec.ray.max_workers)
            tasks = TaskPoolStrategy(size=None if asked == (None, None, None) else most)
            return dataset.map_batches(named_call(name), fn_kwargs={"spec": worker}, compute=tasks, **options)
        least = min(most, max(share.least, spec.ray.min_workers or 1))
        pool = ActorPoolStrategy(
            min_size=least,
            max_size=max(least, most),
            initial_size=min(max(least, spec.ray.initial_workers or least), max(least, most)),
            # Doubled, because Ray grows a pool when its actors have 1.75 times the calls that they run at once.
            max_tasks_in_flight_per_actor=2 * _CALLS_AT_ONCE,
            max_concurrent_calls_per_actor=_CALLS_AT_ONCE,
            enable_true_multi_threading=True,
        )
        interval_m = spec.xenna.worker_restart_interval_m
        arguments = {"spec": worker, "restart_interval_s": 60 * (1.0 if interval_m is None else interval_m)}
        ray_internals.hide_retries(name)
        return dataset.map_batches(named_actor(name), fn_constructor_kwargs=arguments, compute=pool, **options)

    def _environment(self, segment: Segment) -> dict[str, Any]:
        """The runtime environment of a segment's workers; that of its stages overrides the connection's."""
        mine, ours = dict(segment.runtime_env or {}), self._settings.runtime_env or {}
        if mine.get("env_vars") and ours.get("env_vars"):
            mine["env_vars"] = {**ours["env_vars"], **mine["env_vars"]}
        if self._run.cluster.connected_before:
            return {**ours, **mine}
        return mine


@contextlib.contextmanager
def _data_settings() -> Iterator[None]:
    """Applies our Ray Data settings, and restores the caller's at the end."""
    settings: dict[str, Any] = {
        # Rows are Python values in pandas blocks, which Ray sends without copying what is inside.
        "enable_pandas_block": True,
        "batch_to_block_arrow_format": False,
        # One row per block: see `calls`.
        "target_max_block_size": 1,
        # Stages have their own time limit (`time_limit_s`).
        "execution_no_progress_timeout_s": -1,
        "enable_progress_bars": False,
        "print_on_execution_start": False,
        "enable_auto_log_stats": False,
        **ray_internals.DATA_SETTINGS,
    }
    context = DataContext.get_current().copy()
    for name, value in settings.items():
        setattr(context, name, value)
    key, policies = ray_internals.idle_cpu_policies()
    if context.get_config(key) is None:  # otherwise keep those that the user has chosen
        context.set_config(key, policies)
    logger = logging.getLogger("ray.data")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with DataContext.current(context), temporary_variables(ray_internals.USAGE_VARIABLES):
            yield
    finally:
        logger.setLevel(level)
