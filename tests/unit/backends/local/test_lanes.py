"""Lanes: calls of a stage are made in one thread, in the order asked for, whatever thread asks."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gristmill.backends.local.lanes import Call, Lane
from gristmill.backends.local.status import Phase, StatusBlock, StatusWriter


@pytest.fixture
def page() -> Iterator[tuple[StatusBlock, StatusWriter]]:
    block = StatusBlock.create()
    writer = StatusWriter(block.fileno())
    yield block, writer
    writer.close()
    block.close()


def _in_a_lane(job: Callable[[Lane], Any], status: StatusWriter, *, calls: int = 1) -> Any:
    """What `job` gives in a lane whose calls are made here."""
    asked: queue.SimpleQueue[Call] = queue.SimpleQueue()
    answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def work() -> None:
        try:
            answer.put(job(Lane(asked, group=7)))
        except BaseException as error:
            answer.put(error)

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(calls):
        asked.get(timeout=60).make(status)
    thread.join(60)
    return answer.get(timeout=60)


def test_a_call_is_made_in_the_thread_that_makes_calls(page: tuple[StatusBlock, StatusWriter]) -> None:
    here = threading.get_ident()
    found = _in_a_lane(lambda lane: (threading.get_ident(), lane.call(lambda _: threading.get_ident(), 1)), page[1])
    assert found[1] == here
    assert found[0] != here


def test_the_page_says_where_the_lane_is_when_its_call_begins(page: tuple[StatusBlock, StatusWriter]) -> None:
    block, writer = page
    seen = []

    def job(lane: Lane) -> None:
        lane.at(3, 1, 20, 40)
        lane.call(lambda _: seen.append(block.read()), None)

    _in_a_lane(job, writer)
    (status,) = seen
    assert (status.phase, status.task, status.batch, status.stage) == (Phase.PROCESSING, 7, 3, 1)
    assert (status.lo, status.hi) == (20, 40)


def test_what_a_call_raises_is_raised_in_the_lane(page: tuple[StatusBlock, StatusWriter]) -> None:
    def fail(argument: int) -> None:
        raise KeyError(argument)

    found = _in_a_lane(lambda lane: lane.call(fail, 5), page[1])
    assert isinstance(found, KeyError)
    assert found.args == (5,)


def test_a_generator_runs_where_calls_are_made(page: tuple[StatusBlock, StatusWriter]) -> None:
    def stream(count: int) -> Iterator[int]:
        for _ in range(count):
            yield threading.get_ident()

    assert _in_a_lane(lambda lane: lane.call(stream, 3), page[1]) == [threading.get_ident()] * 3


def test_an_interrupt_is_not_the_lanes_business(page: tuple[StatusBlock, StatusWriter]) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    call = Call(interrupted, None, 0, (0, 0, 0, 0), queue.SimpleQueue())
    with pytest.raises(KeyboardInterrupt):
        call.make(page[1])
    assert call.answer.empty()


def test_the_clock_stands_while_a_call_waits_for_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("gristmill.backends.local.lanes.time.perf_counter", lambda: now[0])
    lane = Lane(queue.SimpleQueue())

    class Turn(queue.SimpleQueue):  # type: ignore[type-arg]
        """Five seconds until it is this lane's turn, two for the call itself."""

        def put(self, made: Call) -> None:  # type: ignore[override]
            now[0] += 7.0
            made.seconds = 2.0
            made.answer.put(("done", None))

    lane.calls = Turn()
    begun = lane.clock()
    assert lane.call(str, 1) == "done"
    assert lane.clock() - begun == 2.0
