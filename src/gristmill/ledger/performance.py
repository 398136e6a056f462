"""Performance records of stages, as carried by tasks and as aggregated afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

logger = logging.getLogger(__name__)
_FIGURES = ("process_time", "actor_idle_time", "input_data_size_mb", "num_items_processed")


@dataclass(slots=True)
class StagePerfStats:
    """The cost of one call of a stage.

    Stages that share a worker share its times: `actor_idle_time`, the seconds that the worker waited for its input, is
    in the record of the first one.

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

    def reset(self) -> None:
        """Reset all figures to zero."""
        self.process_time = self.actor_idle_time = self.input_data_size_mb = 0.0
        self.num_items_processed = 0
        self.custom_metrics = {}

    def to_dict(self) -> dict[str, Any]:
        """All fields by name."""
        return asdict(self)

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
        >>> name, stats = timer.log_stats()
        >>> name, stats.num_items_processed
        ('filter', 3)
    """

    def __init__(self, stage: Any) -> None:
        self.stage_name = str(getattr(stage, "name", stage))
        self._stats = StagePerfStats(self.stage_name)
        self._last_end: float | None = None

    def reinit(self, stage_input_size: int = 1) -> None:
        """Start a new record for an input of this many bytes; includes the idle time since the last call."""
        idle = 0.0 if self._last_end is None else time.perf_counter() - self._last_end
        size = stage_input_size / 2**20
        self._stats = StagePerfStats(self.stage_name, actor_idle_time=idle, input_data_size_mb=size)

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

    def log_stats(self, *, verbose: bool = False) -> tuple[str, StagePerfStats]:
        """The stage's name and the record so far; `verbose` logs it too."""
        if verbose:
            logger.info("%s: %s", self.stage_name, self._stats)
        return self.stage_name, self._stats


class TaskPerfUtils:
    """Aggregates the performance records that tasks carry.

    Each method takes a list of tasks, the result of a workflow, or a mapping from pipeline names to tasks. A record
    shared by several tasks, because one call returned them all, counts once.
    """

    @staticmethod
    def collect_stage_metrics(tasks: Any) -> dict[str, dict[str, npt.NDArray[np.float64]]]:
        """All figures by stage and metric, one value per record."""
        import numpy as np

        found: dict[str, dict[str, list[float]]] = {}
        for perf in _records(chain.from_iterable(_by_pipeline(tasks).values())):
            metrics = found.setdefault(perf.stage_name, {})
            for name, value in perf.items():
                metrics.setdefault(name, []).append(value)
        return {
            stage: {name: np.asarray(values, float) for name, values in metrics.items()}
            for stage, metrics in found.items()
        }

    @staticmethod
    def aggregate_task_metrics(tasks: Any, prefix: str | None = None) -> dict[str, float]:
        """Sum, mean and standard deviation of every figure, keyed `<stage>_<metric>_<sum|mean|std>`.

        `prefix` and, if there are several pipelines, the pipeline's name precede the stage's name, joined by
        underscores.
        """
        result: dict[str, float] = {}
        pipelines = _by_pipeline(tasks)
        for pipeline, own in pipelines.items():
            parts = [prefix or "", pipeline if prefix or len(pipelines) > 1 else ""]
            for stage, metrics in TaskPerfUtils.collect_stage_metrics(list(own)).items():
                for metric, values in metrics.items():
                    key = "_".join(filter(None, [*parts, stage, metric]))
                    result[f"{key}_sum"] = float(values.sum())
                    result[f"{key}_mean"] = float(values.mean())
                    result[f"{key}_std"] = float(values.std())
        return result

    @staticmethod
    def get_unique_stage_stat(tasks: Any, stage_name: str, stat: str, pipeline_name: str | None = None) -> float:
        """The sum of one figure of the stage with exactly this name, in all pipelines or one."""
        pipelines = _by_pipeline(tasks)
        chosen = pipelines.values() if pipeline_name is None else [pipelines.get(pipeline_name, [])]
        metrics = TaskPerfUtils.collect_stage_metrics(list(chain.from_iterable(chosen))).get(stage_name, {})
        return float(metrics[stat].sum()) if stat in metrics else 0.0

    @staticmethod
    def get_aggregated_stage_stat(tasks: Any, stage_prefix: str, stat: str) -> float:
        """The sum of one figure over all stages whose name begins with `stage_prefix`."""
        total = 0.0
        for stage, metrics in TaskPerfUtils.collect_stage_metrics(tasks).items():
            if stage.startswith(stage_prefix) and stat in metrics:
                total += float(metrics[stat].sum())
        return total


def _by_pipeline(tasks: Any) -> dict[str, Iterable[Any]]:
    """The tasks of each pipeline; under an empty name if there is only a list."""
    found = getattr(tasks, "pipeline_tasks", tasks)
    if isinstance(found, Mapping):
        found = found.get("pipeline_tasks", found)
        return {str(name): own or [] for name, own in found.items()}
    return {"": found or []}


def _records(tasks: Iterable[Any]) -> Iterator[StagePerfStats]:
    """The records of tasks, each once."""
    seen: set[int] = set()
    for task in tasks:
        for perf in task._stage_perf:
            if id(perf) not in seen:
                seen.add(id(perf))
                yield perf


def model_usage(custom: Mapping[str, float], busy_s: float) -> str:
    """A sentence on a stage's use of a language model in a run, and its cost.

    Example:
        >>> model_usage({"llm_requests": 2, "llm_prompt_tokens": 30, "llm_completion_tokens": 10, "llm_cost": 0.5}, 4)
        '2 requests to the model, 0 answers from the cache, 40 tokens (30 in, 10 out; 10/s), estimated cost 0.5000'
    """
    busy_s = custom.get("llm_seconds") or busy_s  # overlapping calls are busy at the same time
    prompt, completion = (custom.get(f"llm_{kind}_tokens", 0.0) for kind in ("prompt", "completion"))
    told = (
        f"{custom.get('llm_requests', 0):,.0f} requests to the model, "
        f"{custom.get('llm_cached_answers', 0):,.0f} answers from the cache, "
        f"{prompt + completion:,.0f} tokens ({prompt:,.0f} in, {completion:,.0f} out"
        + (f"; {(prompt + completion) / busy_s:,.0f}/s)" if busy_s > 0 else ")")
    )
    for name, what in (("llm_repaired_answers", "answers repaired"), ("llm_overloads", "times overloaded")):
        told += f", {custom[name]:,.0f} {what}" if custom.get(name) else ""
    return told + (f", estimated cost {custom['llm_cost']:,.4f}" if custom.get("llm_cost") else "")
