"""What stages cost, partition by partition."""

from __future__ import annotations

from gristmill.ledger.performance import StagePerfStats
from gristmill.ledger.record.trail import StageTime
from gristmill.observe.events import Notice, TaskFinished
from gristmill.pipeline.output import MOST_PARTITIONS, PartitionPerf


def finished(partition: int, **times: StageTime) -> TaskFinished:
    return TaskFinished(f"{partition}/0", partition, 0, 0, 1.0, {}, times)


def test_adds_up_the_batches_of_a_partition() -> None:
    perf = PartitionPerf(5)
    perf(finished(3, read=StageTime(1, 0.5, 10, idle_s=2.0), score=StageTime(1, 1.0, 10, {"tokens": 7.0})))
    perf(finished(0, read=StageTime(1, 0.25, 4)))
    perf(finished(3, score=StageTime(2, 0.5, 5, {"tokens": 1.0, "pages": 2.0}), read=StageTime(0, idle_s=0.5)))
    perf(Notice("something else"))
    assert perf.of(0) == [StagePerfStats("read", process_time=0.25, num_items_processed=4)]
    assert perf.of(3) == [
        StagePerfStats("read", process_time=0.5, actor_idle_time=2.5, num_items_processed=10),
        StagePerfStats("score", process_time=1.5, num_items_processed=15, custom_metrics={"tokens": 8.0, "pages": 2.0}),
    ]


def test_partitions_that_did_not_run_have_no_records() -> None:
    perf = PartitionPerf(5)
    perf(finished(2, read=StageTime(1, 0.0, 0)))
    assert [len(perf.of(number)) for number in range(5)] == [0, 0, 1, 0, 0]


def test_very_many_partitions_have_no_records() -> None:
    perf = PartitionPerf(MOST_PARTITIONS + 1)
    perf(finished(2, read=StageTime(1, 1.0, 1)))
    assert perf.of(2) == []
