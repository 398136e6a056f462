"""The driver's side: reports are delivered once, workers are counted, and losses are told from faults."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

import ray.exceptions

from gristmill.backends.ray import usage as module
from gristmill.backends.ray.cluster import ClusterConfig, capacity
from gristmill.backends.ray.driver import Delivery, is_loss
from gristmill.backends.ray.usage import Sampler, WorkerUsage, own_memory
from gristmill.backends.ray.worker import WorkerReport
from gristmill.errors import StageFailedError
from gristmill.execution.packed_task import pack_end
from gristmill.execution.partition_output import TaskEnd
from gristmill.observe.events import Event, EventStream, Sample, WorkerStopped
from gristmill.tracking.origins import Lineage, Step

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class _Work:
    """Counts ends; a partition is done after its second one."""

    def __init__(self) -> None:
        self.ends: list[TaskEnd] = []
        self.events = EventStream()
        self.plan = SimpleNamespace(segments=[None])

    def deliver(self, end: TaskEnd) -> None:
        self.ends.append(end)

    def is_done(self, partition: int) -> bool:
        return len(self.ends) == 2

    def __len__(self) -> int:
        return 1


def _end(index: int) -> TaskEnd:
    return TaskEnd(Lineage(0, "p", (Step(index, last=index == 1),)))


def test_an_end_that_comes_twice_is_taken_once() -> None:
    work = _Work()
    delivery = Delivery(work)  # type: ignore[arg-type]
    for index in (0, 0, 1, 0, 1):
        delivery.take(WorkerReport(ends=[pack_end(_end(index))]))
    assert [end.lineage.order for end in work.ends] == [(0,), (1,)]


def test_an_error_is_raised_after_what_came_with_it() -> None:
    work = _Work()
    error = StageFailedError("no", stage="s")
    with pytest.raises(StageFailedError):
        Delivery(work).take(WorkerReport(ends=[pack_end(_end(0))], error=error))  # type: ignore[arg-type]
    assert len(work.ends) == 1


def _usage(worker: int, segment: int, memory: int = 0, **more: Any) -> list[WorkerUsage]:
    return [WorkerUsage(f"worker-{worker}", worker, segment, memory, **more)]


def test_samples_count_workers_and_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "own_memory", lambda: 1_000)
    seen: list[Event] = []
    events = EventStream([seen.append])
    sampler = Sampler(events, 2)
    sampler.take(_usage(0, 0, 10))  # the first one is told at once: a short run has no second
    sampler.take(_usage(1, 1, 20))
    sampler.take(_usage(0, 0))  # it has not looked again
    now[0] += 1.0
    sampler.take(_usage(2, 1, 40))
    events.emit(WorkerStopped(1, 1, 5, "finished", True))
    now[0] += 1.0
    sampler.take(_usage(0, 0, 30))
    samples = [event for event in seen if isinstance(event, Sample)]
    assert [(sample.memory_bytes, sample.workers, sample.busy) for sample in samples] == [
        (1_010, (1, 0), (1, 0)),
        (1_070, (1, 2), (1, 2)),
        (1_070, (1, 1), (1, 0)),
    ]


def test_samples_tell_what_workers_waited_for() -> None:
    """A worker without work is starved while nothing waits for its segment, and blocked otherwise."""
    seen: list[Event] = []
    sampler = Sampler(EventStream([seen.append]), 2, partitions=2)
    sampler.take(_usage(0, 0, idle_s=1.0, taken=1, given=3, given_bytes=30, starting_s=0.5))
    sampler.take(_usage(1, 1, idle_s=2.0, blocked_s=0.25, taken=1, taken_bytes=10))
    sampler.take(_usage(-1, 1, idle_s=4.0, taken=2, taken_bytes=20))
    sampler.take(_usage(-1, 1, idle_s=8.0))
    sampler.close()
    samples = [event for event in seen if isinstance(event, Sample)]
    assert [sample.queued for sample in samples] == [(1, 3), (1, 0)]
    assert samples[0].queued_bytes == (0, 30)
    assert [sum(sample.starved_s[1] for sample in samples), sum(sample.blocked_s[1] for sample in samples)] == [
        12,
        2.25,
    ]
    assert samples[0].blocked_s[0] == 1.0
    assert samples[0].starting_s == (0.5, 0.0)
    assert samples[-1].workers == (1, 2)


def test_a_process_that_works_for_two_segments_is_a_worker_of_each() -> None:
    seen: list[Event] = []
    sampler = Sampler(EventStream([seen.append]), 2)
    sampler.take([*_usage(-1, 0, 10), *_usage(-1, 1, 10)])
    sampler.close()
    assert isinstance(seen[0], Sample)
    assert seen[0].workers == (1, 1)
    assert seen[0].memory_bytes < 10 + 2 * own_memory()


def test_what_a_worker_told_before_its_end_does_not_bring_it_back() -> None:
    seen: list[Event] = []
    events = EventStream([seen.append])
    sampler = Sampler(events, 1)
    events.emit(WorkerStopped(3, 0, 5, "finished", True))
    sampler.take([*_usage(3, 0, 10, idle_s=1.0), *_usage(4, 0, 10)])
    assert isinstance(seen[1], Sample)
    assert (seen[1].workers, seen[1].starved_s) == ((1,), (1.0,))


def test_a_process_knows_what_it_holds() -> None:
    assert own_memory() > 1_000_000


def test_losses() -> None:
    assert is_loss(ray.exceptions.WorkerCrashedError())
    assert is_loss(ray.exceptions.NodeDiedError("gone"))
    assert is_loss(ray.exceptions.OwnerDiedError("00", None, ""))


def test_what_came_from_a_loss() -> None:
    error = RuntimeError("the pipeline failed")
    error.__cause__ = ray.exceptions.WorkerCrashedError()
    assert is_loss(error)


def test_faults() -> None:
    assert not is_loss(KeyError("text"))
    assert not is_loss(ray.exceptions.RuntimeEnvSetupError("no such package"))


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_are_none(monkeypatch: pytest.MonkeyPatch, visible: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    assert capacity(ClusterConfig()).gpus == 0
