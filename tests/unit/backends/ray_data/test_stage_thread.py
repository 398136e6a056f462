"""The lane works in one thread, ahead of whoever takes, and passes errors on."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from gristmill.backends.ray_data.stage_thread import Lane


@pytest.fixture
def lane() -> Iterator[Lane]:
    made = Lane()
    yield made
    made.stop()


def test_everything_happens_in_one_thread_and_in_order(lane: Lane) -> None:
    def source() -> Iterator[int]:
        for _ in range(20):
            yield threading.get_ident()

    mine = lane.call(threading.get_ident)
    assert mine != threading.get_ident()
    assert set(lane.each(source)) == {mine}
    assert list(lane.each(lambda: iter(range(50)))) == list(range(50))


def test_the_next_one_is_made_while_the_last_one_is_handed_on(lane: Lane) -> None:
    second = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        second.set()
        yield 2

    results = lane.each(source)
    assert next(results) == 1
    assert second.wait(60.0)
    assert list(results) == [2]


def test_errors_are_raised_where_results_are_taken(lane: Lane) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    results = lane.each(source)
    assert next(results) == 1
    with pytest.raises(KeyError, match="gone"):
        next(results)
    with pytest.raises(ValueError, match="no"):
        lane.call(lambda: int("no"))


def test_what_is_not_taken_to_its_end_is_closed_and_the_lane_goes_on(lane: Lane) -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10_000)
        finally:
            closed.set()

    results = lane.each(source)
    assert next(results) == 0
    results.close()
    assert lane.call(lambda: "next") == "next"
    assert closed.is_set()
