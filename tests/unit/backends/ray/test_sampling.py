"""What the driver can say about workers on Ray between two looks."""

from __future__ import annotations

from gristmill.backends.ray import sampling as module
from gristmill.backends.ray.parcels import Receipt
from gristmill.backends.ray.sampling import Levels
from gristmill.observe.events import Event, EventStream, Sample, TaskFinished, WorkerStopped


def _receipt(worker: int, segment: int, memory: int = 0) -> Receipt:
    return Receipt(events=[TaskFinished("t", 0, segment, worker, 0.1, {}, {})], memory=memory)


def test_samples_count_workers_and_their_memory(monkeypatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "held_memory", lambda: 1_000)
    seen: list[Event] = []
    events = EventStream([seen.append])
    levels = Levels(events, 2)
    levels.take(_receipt(0, 0, 10))  # the first one is told at once: a short run has no second
    levels.take(_receipt(1, 1, 20))
    levels.take(_receipt(0, 0))  # it has not looked again
    now[0] += 1.0
    levels.take(_receipt(2, 1, 40))
    events.emit(WorkerStopped(1, 1, 5, "finished", True))
    now[0] += 1.0
    levels.take(_receipt(0, 0, 30))
    samples = [event for event in seen if isinstance(event, Sample)]
    assert [(sample.memory_bytes, sample.workers, sample.busy) for sample in samples] == [
        (1_010, (1, 0), (1, 0)),
        (1_070, (1, 2), (1, 2)),
        (1_070, (1, 1), (1, 0)),
    ]


def test_a_process_knows_what_it_holds() -> None:
    assert module.held_memory() > 1_000_000
