"""Events as a small run emits them, and a clock that the test moves."""

from __future__ import annotations

from gristmill.ledger.record.trail import StageCount, StageTime
from gristmill.observe.events import PartitionCommitted, RunStarted, Sample, SegmentPlan, TaskFinished


class Clock:
    def __init__(self) -> None:
        self.time = 100.0

    def __call__(self) -> float:
        return self.time


def started(
    *,
    partitions: int = 4,
    before: int = 0,
    stages: tuple[str, ...] = ("read", "words", "write"),
    output: str | None = "out",
) -> RunStarted:
    segment = SegmentPlan(0, stages, 1.0, 0.0, 1, 2)
    return RunStarted("clean", "local", stages, (segment,), partitions, before, 2_000_000, output)


def task(number: int = 0, *, rows: int = 100, dropped: int = 40) -> TaskFinished:
    kept = rows - dropped
    counts = {
        "read": StageCount(rows_out=rows, created=rows),
        "words": StageCount(rows_in=rows, rows_out=kept, dropped={"too_few_words": dropped}),
        "write": StageCount(rows_in=kept, rows_out=kept),
    }
    return TaskFinished(f"{number}", number, 0, 0, 0.5, counts, {"words": StageTime(calls=1, busy_s=0.25)})


def committed(number: int = 0, *, rows: int = 60) -> PartitionCommitted:
    return PartitionCommitted(number, f"p{number}", rows, rows * 10, (f"p{number}.jsonl",))


def sample(*, memory: int = 5_000_000, workers: int = 2, busy: int = 1, queued: int = 3) -> Sample:
    return Sample(memory, 0, (queued,), (queued * 1000,), (workers,), (busy,))
