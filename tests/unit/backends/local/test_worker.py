"""Beside a GPU, calls of a stage are made in one thread, in the order asked for, whatever thread asks."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from multiprocessing import RawArray
from typing import Any

import pytest

from gristmill.backends.local.fork_server import STATUS_BYTES
from gristmill.backends.local.messages import Leave, StatusWriter, read_status
from gristmill.backends.local.worker import MainThreadCalls, StageCall, _in_turn, _StatusLog


@pytest.fixture
def page() -> Any:
    return RawArray("B", STATUS_BYTES)


def _beside(job: Callable[[MainThreadCalls], Any], page: Any, *, calls: int = 1) -> Any:
    """What `job` returns in another thread whose calls are made here."""
    asked: queue.SimpleQueue[StageCall] = queue.SimpleQueue()
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(job(MainThreadCalls(asked, group=7)))
        except BaseException as error:
            answer.put(error)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(calls):
        asked.get(timeout=60).make(StatusWriter(page))
    thread.join(60)
    return answer.get(timeout=60)


def test_a_call_is_made_in_the_thread_that_makes_calls(page: Any) -> None:
    here = threading.get_ident()
    found = _beside(lambda mine: (threading.get_ident(), mine.call(lambda _: threading.get_ident(), 1)), page)
    assert found[1] == here
    assert found[0] != here


def test_the_page_says_where_the_runner_is_when_its_call_begins(page: Any) -> None:
    seen = []

    def job(mine: MainThreadCalls) -> None:
        mine.at(3, 1, 20, 40)
        mine.call(lambda _: seen.append(read_status(page)), None)

    _beside(job, page)
    (status,) = seen
    assert status[:5] == (7, 3, 1, 20, 40)


def test_what_a_call_raises_is_raised_where_it_was_asked_for(page: Any) -> None:
    def fail(argument: int) -> None:
        raise KeyError(argument)

    found = _beside(lambda mine: mine.call(fail, 5), page)
    assert isinstance(found, KeyError)
    assert found.args == (5,)


def test_a_generator_runs_where_calls_are_made(page: Any) -> None:
    def stream(count: int) -> Iterator[int]:
        for _ in range(count):
            yield threading.get_ident()

    assert _beside(lambda mine: mine.call(stream, 3), page) == [threading.get_ident()] * 3


def test_an_interrupt_is_for_the_thread_that_makes_calls(page: Any) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    call = StageCall(interrupted, None, 0, (0, 0, 0, 0), queue.SimpleQueue())
    with pytest.raises(KeyboardInterrupt):
        call.make(StatusWriter(page))
    assert call.answer.empty()


def test_the_clock_stands_while_a_call_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gristmill.backends.local.worker.time.perf_counter", lambda: now[0])
    mine = MainThreadCalls(queue.SimpleQueue())

    class Turn(queue.SimpleQueue):  # type: ignore[type-arg]
        """Five seconds until it is this thread's turn, two for the call itself."""

        def put(self, made: StageCall) -> None:  # type: ignore[override]
            now[0] += 7.0
            made.seconds = 2.0
            made.answer.put(("done", None))

    mine.calls = Turn()
    begun = mine.clock()
    assert mine.call(str, 1) == "done"
    assert mine.clock() - begun == 2.0


def test_a_worker_that_waits_to_hand_on_a_result_blames_no_document(page: Any) -> None:
    """Time limits count what a stage takes, not how long the next one keeps its worker waiting."""
    status, seen = StatusWriter(page), []
    steps = _StatusLog(status)

    class Runner:
        call_counts = None

        def run(self, tasks: Any, hints: Any) -> Iterator[str]:
            steps.at(0, 0, 0, 10)
            seen.append(read_status(page)[:5])
            yield "result"

    class Outbox:
        def result(self, group: int, task: Any) -> None:
            seen.append(read_status(page)[:5])

        def done(self, *_: Any) -> None:
            pass

    class Figures:
        def write(self) -> None:
            pass

    class Interrupts(contextlib.nullcontext[None]):
        asked = False

    groups: Any = queue.SimpleQueue()
    groups.put((7, [], None))
    groups.put(Leave())
    assert _in_turn(Runner(), groups, Outbox(), steps, status, Interrupts(), Figures())  # type: ignore[arg-type]
    assert seen == [(7, 0, 0, 0, 10), (7, -1, -1, 0, 0)]
