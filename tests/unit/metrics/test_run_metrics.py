"""Metrics are what the events say, and never too many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gristmill.ledger.record.trail import StageCount, StageTime
from gristmill.metrics import run_metrics
from gristmill.metrics.families import FAMILIES, PREFIX, shown_names
from gristmill.metrics.run_metrics import OTHER, RunMetrics
from gristmill.observe.events import (
    PartitionCommitted,
    PartitionFailed,
    RecordsQuarantined,
    RunFinished,
    RunStarted,
    Sample,
    SegmentPlan,
    TaskFinished,
    WorkerStopped,
)
from gristmill.observe.memory import GpuDevice

_SEGMENTS = (SegmentPlan(0, ("read", "words"), 1.0, 0.0, 1, None), SegmentPlan(1, ("write",), 1.0, 0.0, 1, None))


def _begun(stages: tuple[str, ...] = ("read", "words", "write")) -> RunMetrics:
    metrics = RunMetrics("r")
    metrics(RunStarted("small", "local", stages, _SEGMENTS, 5, 2, 1234, "out", at=1000.0))
    return metrics


def _values(metrics: RunMetrics) -> dict[tuple[str, ...], float]:
    """Every sample as Prometheus would read it, by its name and the values of its labels but the run's."""
    registry = CollectorRegistry()
    registry.register(metrics)  # type: ignore[arg-type]
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("run") == "r"
            found[(sample.name.removeprefix(PREFIX), *(labels[key] for key in sorted(labels)))] = sample.value
    return found


def _sample(**more: Any) -> Sample:
    return Sample(
        memory_bytes=900,
        shared_bytes=90,
        queued=(3, 1),
        queued_bytes=(30, 10),
        workers=(2, 1),
        busy=(1, 0),
        **{
            "worker_bytes": ({7: 70, 9: 90}, {8: 50}),
            "starved_s": (0.0, 0.5),
            "blocked_s": (0.25, 0.0),
            "starting_s": (0.0, 0.125),
            **more,
        },
    )


def test_every_event_is_counted() -> None:
    metrics = _begun()
    counts = {
        "read": StageCount(created=10, rows_out=10, bytes_out=100),
        "words": StageCount(rows_in=10, rows_out=7, dropped={"too_few_words": 3}, bytes_in=100, bytes_out=70),
    }
    times = {"read": StageTime(calls=2, busy_s=0.004), "words": StageTime(calls=1, busy_s=3.0)}
    metrics(TaskFinished("a", 0, 0, 7, 3.5, counts, times, attempt=3))
    metrics(TaskFinished("b", 1, 0, 7, 0.5, counts, times))
    metrics(_sample())
    metrics(_sample())
    metrics(PartitionCommitted(0, "a", 7, 70, ("a.jsonl",)))
    metrics(RecordsQuarantined(0, "words", "ValueError", 2))
    metrics(PartitionFailed(1, "b", "words"))
    metrics(WorkerStopped(7, 0, 1, "SIGKILL", expected=False))
    metrics(WorkerStopped(8, 1, 1, "recycled", expected=True))
    found = _values(metrics)
    expected = {
        ("run_info", "local", "out", "small"): 1,
        ("run_status", "running"): 1,
        ("run_start_time_seconds",): 1000.0,
        ("partitions",): 5,
        ("partitions_done",): 3,
        ("input_bytes",): 1234,
        ("segment_info", "read+words", "words"): 1,
        ("documents_read_total",): 20,
        ("documents_written_total",): 7,
        ("output_bytes_total",): 70,
        ("tasks_total", "read+words"): 2,
        ("stage_documents_in_total", "words"): 20,
        ("stage_documents_out_total", "words"): 14,
        ("stage_bytes_in_total", "words"): 200,
        ("stage_bytes_out_total", "read"): 200,
        ("stage_busy_seconds_total", "words"): 6.0,
        ("stage_latency_seconds_bucket", "0.0025", "read"): 4,
        ("stage_latency_seconds_bucket", "0.001", "read"): 0,
        ("stage_latency_seconds_bucket", "2.5", "words"): 0,
        ("stage_latency_seconds_bucket", "+Inf", "words"): 2,
        ("stage_latency_seconds_sum", "read"): 0.008,
        ("stage_latency_seconds_count", "words"): 2,
        ("dropped_total", "too_few_words", "words"): 6,
        ("quarantined_total", "ValueError", "words"): 2,
        ("failures_total", "words"): 1,
        ("retries_total", "read+words"): 2,
        ("worker_crashes_total", "read+words"): 1,
        ("worker_crashes_total", "write"): 0,
        ("worker_recycles_total", "write"): 1,
        ("errors_total", "quarantined"): 2,
        ("errors_total", "failed"): 1,
        ("errors_total", "crashed"): 1,
        ("workers", "read+words"): 2,
        ("workers_busy", "read+words"): 1,
        ("worker_memory_bytes", "read+words", "0"): 70,
        ("worker_memory_bytes", "read+words", "1"): 90,
        ("worker_busy_seconds_total", "read+words"): 4.0,
        ("worker_starved_seconds_total", "write"): 1.0,
        ("worker_blocked_seconds_total", "read+words"): 0.5,
        ("worker_starting_seconds_total", "write"): 0.25,
        ("queue_tasks", "read+words"): 3,
        ("queue_bytes", "write"): 10,
        ("memory_bytes",): 900,
        ("shared_bytes",): 90,
    }
    found = {(key[:-1] if key[0] == "run_info" else key): value for key, value in found.items()}  # without the version
    assert {key: found.get(key) for key in expected} == expected


def test_what_may_be_asked_for_is_there_from_the_beginning() -> None:
    """A rate needs a first value, and alerts on what is missing never fire."""
    names = {key[0] for key in _values(_begun())}
    assert {"documents_read_total", "errors_total", "worker_crashes_total", "stage_documents_in_total"} <= names


def test_a_worker_that_is_replaced_leaves_its_place_to_the_next() -> None:
    metrics = _begun()
    for number in range(100):
        metrics(_sample(worker_bytes=({number: 1, number + 1: 2}, {})))
        metrics(WorkerStopped(number, 0, 1, "recycled", expected=True))
    workers = [key for key in _values(metrics) if key[0] == "worker_memory_bytes"]
    assert len(workers) == 2
    assert {key[2] for key in workers} <= {"0", "1", "2"}


def test_labels_are_bounded() -> None:
    metrics = _begun()
    for number in range(1_000):
        counts = {f"stage-{number}": StageCount(rows_in=1, dropped={f"reason-{number}": 1})}
        times = {f"stage-{number}": StageTime(calls=1, busy_s=1.0)}
        metrics(TaskFinished("a", 0, 0, 1, 0.1, counts, times))
        metrics(RecordsQuarantined(0, "words", f"{number} " + "x" * 1_000, 1))
    metrics(_sample(worker_bytes=(dict.fromkeys(range(1000), 1), {})))
    found = _values(metrics)
    for name in ("dropped_total", "quarantined_total", "stage_documents_in_total", "worker_memory_bytes"):
        series = {key: value for key, value in found.items() if key[0] == name}
        assert len(series) <= 401, name
        assert sum(series.values()) == 1_000, f"nothing of {name} is lost"
        assert any(OTHER in key for key in series), name
    assert len({key[2] for key in found if key[0] == "stage_latency_seconds_bucket"}) <= 202
    assert max(len(label) for key in found for label in key) <= 120


def test_labels_that_hold_anything_can_be_read() -> None:
    metrics = _begun()
    odd = 'a"b\\c\nd{}\u2028é'
    metrics(RecordsQuarantined(0, odd, odd, 1))
    assert _values(metrics)["quarantined_total", odd, odd] == 1


def test_the_end_of_a_run_is_told() -> None:
    metrics = _begun()
    metrics(RunFinished("failed", "no"))
    found = _values(metrics)
    assert (found["run_status", "failed"], found["run_status", "running"]) == (1, 0)


def test_a_later_step_has_its_own_segments() -> None:
    metrics = _begun()
    metrics(_sample())
    metrics(RunStarted("small: step 2", "local", ("hash",), (SegmentPlan(0, ("hash",), 1, 0, 1, 1),), 1, 0, 9, None))
    metrics(Sample(5, 0, (1,), (1,), (4,), (4,), ({0: 10},)))
    found = _values(metrics)
    assert found["workers", "hash"] == 4
    assert ("workers", "write") not in found


def test_gpus_are_told_where_there_are_some(monkeypatch: Any) -> None:
    assert not any(key[0].startswith("gpu") for key in _values(_begun()))
    monkeypatch.setattr(run_metrics, "gpu_devices", lambda: [GpuDevice(100, 91, None), GpuDevice(100, 5, 0.5)])
    found = _values(_begun())
    assert found["gpu_memory_used_bytes", "0"] == 91
    assert found["gpu_memory_total_bytes", "1"] == 100
    assert ("gpu_utilisation_ratio", "0") not in found
    assert found["gpu_utilisation_ratio", "1"] == 0.5


def test_every_metric_is_documented() -> None:
    page = Path(__file__).parents[3].joinpath("docs/how-to/monitor.md").read_text(encoding="utf-8")
    for name, family in FAMILIES.items():
        shown = PREFIX + name + ("_total" if family.kind == "counter" else "")
        assert f"`{shown}`" in page, shown
        for label in family.labels:
            assert f"`{label}`" in page, label


def test_the_exporter_gives_no_other_names() -> None:
    metrics = _begun()
    metrics(_sample())
    assert {PREFIX + key[0] for key in _values(metrics)} <= shown_names()
