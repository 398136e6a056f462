"""The driver's side: reports are delivered once, workers are counted, and losses are told from faults."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

import ray.exceptions

from gristmill.backends.ray import driver as module
from gristmill.backends.ray.cluster import ClusterConfig, capacity
from gristmill.backends.ray.driver import Delivery, Sampler, is_loss
from gristmill.backends.ray.worker import WorkerReport, own_memory
from gristmill.errors import StageFailedError
from gristmill.execution.packed_task import pack_end
from gristmill.execution.partition_output import TaskEnd
from gristmill.observe.events import Event, EventStream, Sample, TaskFinished, WorkerStopped
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


def _report(worker: int, segment: int, memory: int = 0) -> WorkerReport:
    return WorkerReport(events=[TaskFinished("t", 0, segment, worker, 0.1, {}, {})], memory=memory)


def test_samples_count_workers_and_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "own_memory", lambda: 1_000)
    seen: list[Event] = []
    events = EventStream([seen.append])
    sampler = Sampler(events, 2)
    sampler.take(_report(0, 0, 10))  # the first one is told at once: a short run has no second
    sampler.take(_report(1, 1, 20))
    sampler.take(_report(0, 0))  # it has not looked again
    now[0] += 1.0
    sampler.take(_report(2, 1, 40))
    events.emit(WorkerStopped(1, 1, 5, "finished", True))
    now[0] += 1.0
    sampler.take(_report(0, 0, 30))
    samples = [event for event in seen if isinstance(event, Sample)]
    assert [(sample.memory_bytes, sample.workers, sample.busy) for sample in samples] == [
        (1_010, (1, 0), (1, 0)),
        (1_070, (1, 2), (1, 2)),
        (1_070, (1, 1), (1, 0)),
    ]


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
