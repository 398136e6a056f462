"""Calls of a worker that stays: their work in one line, their results beside each other, and no end in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ray")

from gristmill.backends.ray_data import calls
from gristmill.backends.ray_data.calls import COLUMN, SegmentActor, block
from gristmill.execution.packed_task import PackedTask

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class _Worker:
    """Hands tasks on, and writes down what happens."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec
        self.is_old = False
        self.history: list[str] = []

    def start(self, gpus: Any) -> None:
        self.history.append("start")

    def may_be_replaced(self, interval_s: float) -> bool:
        return self.is_old

    def run(self, tasks: Sequence[PackedTask], *, careful: bool, attempt: int = 0) -> Iterator[PackedTask]:
        for packed in tasks:
            self.history.append(packed.task_id)
            yield packed

    def end(self, cause: str = "finished") -> None:
        self.history.append(cause)


class _Exit(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def actor(monkeypatch: pytest.MonkeyPatch) -> SegmentActor:
    def leave() -> None:
        raise _Exit

    monkeypatch.setattr(calls, "SegmentWorker", _Worker)
    monkeypatch.setattr(calls, "task_attempt", lambda: 0)
    monkeypatch.setattr(calls, "_HANDED_ON_S", 0.0)
    monkeypatch.setattr(calls.ray, "get_gpu_ids", list)
    monkeypatch.setattr(calls, "_start_anew", leave)
    spec: Any = SimpleNamespace(last=False)
    return SegmentActor(spec, restart_interval_s=0.0)


def _frame(*bodies: str) -> Any:
    return block([PackedTask(body, 0, (), b"") for body in bodies])


def _bodies(frames: Iterator[Any]) -> list[str]:
    return [item.task_id for frame in frames for item in frame[COLUMN] if isinstance(item, PackedTask)]


def test_the_next_call_is_worked_on_before_the_last_one_has_been_handed_on(actor: SegmentActor) -> None:
    first, second = actor(_frame("a", "b")), actor(_frame("c"))
    next(first)
    next(second)
    assert actor._worker.history == ["start", "a", "b", "c"]  # type: ignore[attr-defined]
    assert _bodies(first) == ["b"]
    assert _bodies(second) == []


def test_an_old_worker_ends_when_no_other_call_is_under_way(actor: SegmentActor) -> None:
    worker: Any = actor._worker
    worker.is_old = True
    first = actor(_frame("a", "b"))
    next(first)
    ended = threading.Event()

    def call() -> None:
        with pytest.raises(_Exit):
            next(actor(_frame("c")))
        ended.set()

    other = threading.Thread(target=call)
    other.start()
    assert not ended.wait(0.2)
    assert "recycled" not in worker.history
    assert _bodies(first) == ["b"]
    assert ended.wait(10.0)
    other.join()
    assert worker.history == ["start", "a", "b", "recycled"]


def test_even_a_worker_that_is_born_old_does_one_call(actor: SegmentActor) -> None:
    worker: Any = actor._worker
    worker.is_old = True
    assert _bodies(actor(_frame("a"))) == ["a"]
    with pytest.raises(_Exit):
        next(actor(_frame("b")))
