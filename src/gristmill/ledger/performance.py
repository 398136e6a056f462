"""Performance records of stages, as they ride on tasks and as they are added up afterwards."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

_FIGURES = ("process_time", "actor_idle_time", "input_data_size_mb", "num_items_processed")


@dataclass(slots=True)
class StagePerfStats:
    """What one call of a stage cost.

    Example:
        >>> a = StagePerfStats("filter", process_time=1.0, num_items_processed=10)
        >>> (a + StagePerfStats("filter", process_time=0.5, num_items_processed=5)).process_time
        1.5
    """

    stage_name: str
    process_time: float = 0.0
    actor_idle_time: float = 0.0
    input_data_size_mb: float = 0.0
    num_items_processed: int = 0
    custom_metrics: dict[str, float] = field(default_factory=dict)

    def __add__(self, other: StagePerfStats) -> StagePerfStats:
        custom = dict(self.custom_metrics)
        for key, value in other.custom_metrics.items():
            custom[key] = custom.get(key, 0.0) + value
        return StagePerfStats(
            self.stage_name,
            self.process_time + other.process_time,
            self.actor_idle_time + other.actor_idle_time,
            self.input_data_size_mb + other.input_data_size_mb,
            self.num_items_processed + other.num_items_processed,
            custom,
        )

    def __radd__(self, other: int | StagePerfStats) -> StagePerfStats:
        return self if isinstance(other, int) else other + self

    def items(self) -> list[tuple[str, float]]:
        """All figures by name; custom ones as `custom.<name>`."""
        figures = [(name, float(getattr(self, name))) for name in _FIGURES]
        return figures + [(f"custom.{name}", value) for name, value in self.custom_metrics.items()]


class StageTimer:
    """Measures the calls of one stage: idle time between calls, busy time within.

    Example:
        >>> timer = StageTimer("filter")
        >>> with timer.time_process(num_items=3):
        ...     pass
        >>> timer.log_stats().num_items_processed
        3
    """

    def __init__(self, stage: Any) -> None:
        self.stage_name = str(getattr(stage, "name", stage))
        self._stats = StagePerfStats(self.stage_name)
        self._last_end: float | None = None

    def reinit(self, input_data_size_mb: float = 0.0) -> None:
        """Begin a new record; the idle time since the last call counts into it."""
        idle = 0.0 if self._last_end is None else time.perf_counter() - self._last_end
        self._stats = StagePerfStats(self.stage_name, actor_idle_time=idle, input_data_size_mb=input_data_size_mb)

    @contextmanager
    def time_process(self, num_items: int = 1) -> Iterator[None]:
        """Count the time of the enclosed block as processing `num_items` items."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._last_end = time.perf_counter()
            self._stats.process_time += self._last_end - start
            self._stats.num_items_processed += num_items

    def log_stats(self, **custom_metrics: float) -> StagePerfStats:
        """The record so far, with the given custom figures added."""
        self._stats.custom_metrics.update(custom_metrics)
        return self._stats


class TaskPerfUtils:
    """Adds up the performance records that tasks carry."""

    @staticmethod
    def collect_stage_metrics(tasks: Iterable[Any]) -> dict[str, dict[str, list[float]]]:
        """All figures by stage and metric, one value per task."""
        found: dict[str, dict[str, list[float]]] = {}
        for task in tasks:
            for perf in task._stage_perf:
                metrics = found.setdefault(perf.stage_name, {})
                for name, value in perf.items():
                    metrics.setdefault(name, []).append(value)
        return found

    @staticmethod
    def aggregate_task_metrics(tasks: Iterable[Any], prefix: str = "") -> dict[str, float]:
        """Sum, mean and standard deviation of every figure, keyed `<prefix><stage>_<metric>_<sum|mean|std>`."""
        result: dict[str, float] = {}
        for stage, metrics in TaskPerfUtils.collect_stage_metrics(tasks).items():
            for metric, values in metrics.items():
                mean = sum(values) / len(values)
                key = f"{prefix}{stage}_{metric}"
                result[f"{key}_sum"] = sum(values)
                result[f"{key}_mean"] = mean
                result[f"{key}_std"] = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        return result

    @staticmethod
    def get_aggregated_stage_stat(tasks: Iterable[Any], stage_prefix: str, stat: str) -> float:
        """The sum of one figure over all stages whose name begins with `stage_prefix`."""
        total = 0.0
        for stage, metrics in TaskPerfUtils.collect_stage_metrics(tasks).items():
            if stage.startswith(stage_prefix):
                total += sum(metrics.get(stat, []))
        return total
