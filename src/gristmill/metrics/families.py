"""Every metric that a run exports: its kind, its labels and what it means."""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "gristmill_"
RUN = "run"
"""The label that every metric has in addition to its own: its run."""

LATENCY_BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)


class Family(NamedTuple):
    """One metric; counters are named without the `_total` that Prometheus shows."""

    kind: str
    help: str
    labels: tuple[str, ...] = ()


FAMILIES: dict[str, Family] = {
    "run_info": Family("gauge", "The run; always 1.", ("pipeline", "executor", "version", "output")),
    "run_status": Family(
        "gauge", "1 for the current status of the run: running, done, failed or interrupted.", ("status",)
    ),
    "run_start_time_seconds": Family("gauge", "Start of the run, in seconds since 1970."),
    "last_progress_time_seconds": Family("gauge", "Time when a task last finished, in seconds since 1970."),
    "partitions": Family("gauge", "Partitions of the input, including those done by earlier runs."),
    "partitions_done": Family("gauge", "Committed partitions, including those of earlier runs."),
    "input_bytes": Family("gauge", "Bytes of the input that were left to read when the run began."),
    "segment_info": Family(
        "gauge", "The segment (stages that share workers) of each stage; always 1.", ("segment", "stage")
    ),
    # --- work ---
    "documents_read": Family("counter", "Documents that the run has read."),
    "documents_written": Family("counter", "Documents in committed partitions."),
    "output_bytes": Family("counter", "Bytes of committed partitions."),
    "tasks": Family("counter", "Tasks that a segment has finished.", ("segment",)),
    "stage_documents_in": Family("counter", "Documents that went into a stage.", ("stage",)),
    "stage_documents_out": Family("counter", "Documents that came out of it.", ("stage",)),
    "stage_bytes_in": Family("counter", "Bytes of documents that went into a stage.", ("stage",)),
    "stage_bytes_out": Family("counter", "Bytes of documents that came out of it.", ("stage",)),
    "stage_busy_seconds": Family("counter", "Time spent in a stage, summed over workers.", ("stage",)),
    "stage_latency_seconds": Family(
        "histogram", "Duration of one call of a stage; the calls of a task count with their mean.", ("stage",)
    ),
    # --- what went wrong ---
    "dropped": Family("counter", "Documents that a stage dropped.", ("stage", "reason")),
    "quarantined": Family("counter", "Records that could not be processed.", ("stage", "cause")),
    "failures": Family("counter", "Partitions for which a stage returned a FailedTask.", ("stage",)),
    "retries": Family("counter", "Repeated attempts at tasks.", ("segment",)),
    "worker_crashes": Family("counter", "Workers that died.", ("segment",)),
    "worker_recycles": Family("counter", "Workers that were replaced as planned.", ("segment",)),
    "errors": Family(
        "counter", "Quarantined records, failed partitions and crashed workers of the whole run.", ("kind",)
    ),
    # --- workers and queues ---
    "workers": Family("gauge", "Number of workers.", ("segment",)),
    "workers_busy": Family("gauge", "Number of busy workers.", ("segment",)),
    "worker_memory_bytes": Family("gauge", "Memory of a worker, including its child processes.", ("segment", "worker")),
    "worker_busy_seconds": Family("counter", "Worker-seconds with a task.", ("segment",)),
    "worker_starved_seconds": Family("counter", "Worker-seconds without input.", ("segment",)),
    "worker_blocked_seconds": Family(
        "counter", "Worker-seconds with input, but held back by backpressure.", ("segment",)
    ),
    "worker_starting_seconds": Family("counter", "Worker-seconds in setup.", ("segment",)),
    "queue_tasks": Family("gauge", "Tasks queued for a segment.", ("segment",)),
    "queue_bytes": Family("gauge", "Bytes of documents queued for a segment.", ("segment",)),
    # --- memory and machine ---
    "memory_bytes": Family("gauge", "Memory of all processes of the run."),
    "shared_bytes": Family("gauge", "The part of this memory in queues between workers."),
    "machine_memory_bytes": Family("gauge", "Memory limit of this machine or container."),
    "machine_memory_available_bytes": Family("gauge", "The part of this memory that is available."),
    "machine_cpu_seconds": Family("counter", "CPU time of this machine, over all cores.", ("mode",)),
    "gpu_memory_used_bytes": Family("gauge", "Used memory of a GPU of this machine.", ("gpu",)),
    "gpu_memory_total_bytes": Family("gauge", "Memory of a GPU of this machine.", ("gpu",)),
    "gpu_utilisation_ratio": Family("gauge", "Utilisation of a GPU of this machine, as a fraction.", ("gpu",)),
}


def shown_names() -> frozenset[str]:
    """The names of the metrics in Prometheus."""
    names = set()
    for name, family in FAMILIES.items():
        full = PREFIX + name
        if family.kind == "histogram":
            names |= {full + ending for ending in ("_bucket", "_count", "_sum")}
        else:
            names.add(f"{full}_total" if family.kind == "counter" else full)
    return frozenset(names)
