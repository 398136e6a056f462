"""The metrics of one run: a listener to its events, and what Prometheus reads.

It measures nothing itself: the figures come from the events that the display and the record also use. Only the memory
and CPU usage of the machine are queried, when metrics are requested.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gristmill import __version__
from gristmill.ledger.record.trail import StageCount, StageTime
from gristmill.metrics.families import FAMILIES, LATENCY_BOUNDS_S, PREFIX, RUN
from gristmill.observe.events import (
    Event,
    PartitionCommitted,
    PartitionFailed,
    RecordsQuarantined,
    RunFinished,
    RunStarted,
    Sample,
    TaskFinished,
    WorkerStopped,
)
from gristmill.observe.memory import available_memory, gpu_devices, memory_limit

OTHER = "other"
"""The label of everything beyond the maximum number of series of a metric."""
_MOST_SERIES = 200
_MOST_CHARS = 120
_STATES = ("running", "done", "failed", "interrupted")
_OF_SEGMENTS = (
    "tasks",
    "retries",
    "worker_crashes",
    "worker_recycles",
    "worker_busy_seconds",
    "worker_starved_seconds",
    "worker_blocked_seconds",
    "worker_starting_seconds",
)
_OF_STAGES = (
    "stage_documents_in",
    "stage_documents_out",
    "stage_bytes_in",
    "stage_bytes_out",
    "stage_busy_seconds",
    "failures",
)
_OF_RUN = ("documents_read", "documents_written", "output_bytes")

Labels = tuple[str, ...]


class _Latency:
    """A histogram of call durations."""

    def __init__(self) -> None:
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)
        self.seconds = 0.0

    def add(self, times: StageTime) -> None:
        self.buckets[bisect.bisect_left(LATENCY_BOUNDS_S, times.busy_s / times.calls)] += times.calls
        self.seconds += times.busy_s

    def cumulated(self) -> list[tuple[str, float]]:
        total, found = 0, []
        for bound, calls in zip((*map(str, LATENCY_BOUNDS_S), "+Inf"), self.buckets, strict=True):
            total += calls
            found.append((bound, float(total)))
        return found


class RunMetrics:
    """Listens to a run, which may consist of several pipelines, and provides its metrics.

    Args:
        run: Value of the label `run`.

    Example:
        >>> metrics = RunMetrics("english-1")
        >>> pipeline.run(listeners=[metrics])
        >>> sorted(family.name for family in metrics.collect())
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._values: defaultdict[str, dict[Labels, float]] = defaultdict(dict)
        self._latency: dict[Labels, _Latency] = {}
        self._segments: list[str] = []
        self._source = ""
        self._slots: dict[str, dict[int, int]] = {}
        # Some events come from the thread that commits, and scrapes from yet another one.
        self._lock = threading.Lock()

    # --- listening ---

    def __call__(self, event: Event) -> None:
        """Handle an event."""
        with self._lock:
            if isinstance(event, TaskFinished):
                self._task(event)
            elif isinstance(event, Sample):
                self._sample(event)
            elif isinstance(event, PartitionCommitted):
                self._add("documents_written", (), event.rows)
                self._add("output_bytes", (), event.bytes)
                self._add("partitions_done", (), 1)
                self._values["last_progress_time_seconds"][()] = time.time()
            elif isinstance(event, WorkerStopped):
                segment = self._segment(event.segment)
                if not event.expected:
                    self._add("worker_crashes", (segment,), 1)
                    self._add("errors", ("crashed",), 1)
                self._add("worker_recycles", (segment,), event.cause == "recycled")
                self._slots.get(segment, {}).pop(event.worker, None)
            elif isinstance(event, RecordsQuarantined):
                self._add("quarantined", (event.stage, event.cause), event.records)
                self._add("errors", ("quarantined",), event.records)
            elif isinstance(event, PartitionFailed):
                self._add("failures", (event.stage,), 1)
                self._add("errors", ("failed",), 1)
            elif isinstance(event, RunStarted):
                self._started(event)
            elif isinstance(event, RunFinished):
                self._status(event.status)

    def _started(self, event: RunStarted) -> None:
        names = ["+".join(segment.stages) for segment in event.segments]
        self._segments = [self._cut(name) for name in names]
        self._slots = {}
        self._source = event.stages[0] if event.stages else ""
        info = (event.pipeline, event.executor, __version__, event.output or "")
        self._values["run_info"] = {tuple(map(self._cut, info)): 1}
        self._status("running")
        totals = {"partitions": event.partitions, "partitions_done": event.partitions_done_before}
        totals["input_bytes"] = event.input_bytes
        for name, value in totals.items():
            self._values[name][()] = value
        self._values["run_start_time_seconds"].setdefault((), event.at)
        self._values["last_progress_time_seconds"][()] = event.at
        # Zeros from the beginning: a rate needs a first value, and an empty panel looks broken.
        for name in _OF_RUN:
            self._add(name, (), 0)
        for kind in ("quarantined", "failed", "crashed"):
            self._add("errors", (kind,), 0)
        for name in _OF_STAGES:
            for stage in event.stages:
                self._add(name, (stage,), 0)
        for segment, plan in zip(self._segments, event.segments, strict=True):
            for name in _OF_SEGMENTS:
                self._add(name, (segment,), 0)
            for stage in plan.stages:
                self._values["segment_info"][self._bounded("segment_info", (segment, stage))] = 1

    def _status(self, status: str) -> None:
        self._values["run_status"] = {(state,): float(state == status) for state in _STATES}

    def _task(self, event: TaskFinished) -> None:
        segment = self._segment(event.segment)
        self._values["last_progress_time_seconds"][()] = time.time()
        self._add("tasks", (segment,), 1)
        self._add("retries", (segment,), event.attempt - 1)
        self._add("worker_busy_seconds", (segment,), event.seconds)
        for stage, count in event.counts.items():
            self._count(stage, count)
        for stage, times in event.times.items():
            self._add("stage_busy_seconds", (stage,), times.busy_s)
            if times.calls:
                key = self._bounded("stage_latency_seconds", (stage,), self._latency)
                self._latency.setdefault(key, _Latency()).add(times)

    def _count(self, stage: str, count: StageCount) -> None:
        if stage == self._source:
            self._add("documents_read", (), count.created)
        self._add("stage_documents_in", (stage,), count.rows_in)
        self._add("stage_documents_out", (stage,), count.rows_out)
        self._add("stage_bytes_in", (stage,), count.bytes_in)
        self._add("stage_bytes_out", (stage,), count.bytes_out)
        for reason, rows in count.dropped.items():
            self._add("dropped", (stage, reason), rows)

    def _sample(self, event: Sample) -> None:
        self._values["memory_bytes"][()] = event.memory_bytes
        self._values["shared_bytes"][()] = event.shared_bytes
        for name, values in (
            ("workers", event.workers),
            ("workers_busy", event.busy),
            ("queue_tasks", event.queued),
            ("queue_bytes", event.queued_bytes),
        ):
            self._values[name] = {(self._segment(number),): value for number, value in enumerate(values)}
        for name, spans in (
            ("worker_starved_seconds", event.starved_s),
            ("worker_blocked_seconds", event.blocked_s),
            ("worker_starting_seconds", event.starting_s),
        ):
            for number, seconds in enumerate(spans):
                self._add(name, (self._segment(number),), seconds)
        held: dict[Labels, float] = {}
        for number, workers in enumerate(event.worker_bytes):
            segment = self._segment(number)
            for slot, size in self._by_slot(segment, workers):
                if not size:
                    continue  # it has not been measured yet
                worker = str(slot) if len(held) < _MOST_SERIES else OTHER
                held[segment, worker] = held.get((segment, worker), 0) + size
        self._values["worker_memory_bytes"] = held

    def _by_slot(self, segment: str, workers: Mapping[int, int]) -> Iterator[tuple[int, int]]:
        """The memory of workers by small, reused numbers: a long run has very many workers over time."""
        slots = self._slots.setdefault(segment, {})
        for gone in slots.keys() - workers.keys():
            del slots[gone]
        for worker, size in workers.items():
            if worker not in slots:
                used = set(slots.values())
                slots[worker] = next(slot for slot in range(len(slots) + 1) if slot not in used)
            yield slots[worker], size

    # --- series ---

    def _segment(self, number: int) -> str:
        return self._segments[number] if number < len(self._segments) else OTHER

    @staticmethod
    def _cut(label: str) -> str:
        return label if len(label) <= _MOST_CHARS else f"{label[: _MOST_CHARS - 1]}…"

    def _bounded(self, name: str, labels: Sequence[str], series: Mapping[Labels, Any] | None = None) -> Labels:
        """The labels, or the overflow labels if the metric has reached its maximum number of series."""
        key = tuple(labels)
        known = self._values[name] if series is None else series
        if key in known:
            return key
        cut = tuple(map(self._cut, key))
        if cut in known or len(known) < _MOST_SERIES:
            return cut
        *first, _ = cut
        nearly = (*first, OTHER)
        return nearly if nearly in known or len(known) < 2 * _MOST_SERIES else (OTHER,) * len(cut)

    def _add(self, name: str, labels: Sequence[str], value: float) -> None:
        key = self._bounded(name, labels)
        series = self._values[name]
        series[key] = series.get(key, 0) + value

    # --- what Prometheus reads ---

    def collect(self) -> Iterable[Metric]:
        """Every metric with its current values, for a `CollectorRegistry`."""
        with self._lock:
            values = {name: dict(series) for name, series in self._values.items()}
            latency = {key: (one.cumulated(), one.seconds) for key, one in self._latency.items()}
        values.update(machine_values())
        for name, family in FAMILIES.items():
            labels = (RUN, *family.labels)
            if family.kind == "histogram":
                histogram = HistogramMetricFamily(PREFIX + name, family.help, labels=labels)
                for key, (buckets, seconds) in latency.items():
                    histogram.add_metric((self._run, *key), buckets=buckets, sum_value=seconds)
                yield histogram
                continue
            kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
            metric = kind(PREFIX + name, family.help, labels=labels)
            for key, value in values.get(name, {}).items():
                metric.add_metric((self._run, *key), value)
            yield metric


def machine_values() -> dict[str, dict[Labels, float]]:
    """Memory, CPUs and GPUs of this machine."""
    import psutil

    times = psutil.cpu_times()
    idle = times.idle + getattr(times, "iowait", 0.0)
    # Guest time is already included in user time.
    spent = sum(times) - getattr(times, "guest", 0.0) - getattr(times, "guest_nice", 0.0) - idle
    found: dict[str, dict[Labels, float]] = {
        "machine_memory_bytes": {(): memory_limit()},
        "machine_memory_available_bytes": {(): available_memory()},
        "machine_cpu_seconds": {("busy",): spent, ("idle",): idle},
    }
    for number, device in enumerate(gpu_devices()):
        found.setdefault("gpu_memory_used_bytes", {})[str(number),] = device.used_bytes
        found.setdefault("gpu_memory_total_bytes", {})[str(number),] = device.total_bytes
        if device.utilisation is not None:
            found.setdefault("gpu_utilisation_ratio", {})[str(number),] = device.utilisation
    return found
