"""Work in another thread: ahead of its consumer, with errors passed on, and stopped even if it yields nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.backends.ray_data.background import BackgroundIterator, Interrupted, StageThread, in_background


@pytest.fixture
def stage_thread() -> Iterator[StageThread]:
    made = StageThread()
    yield made
    made.stop()


def test_everything_happens_in_one_thread_and_in_order(stage_thread: StageThread) -> None:
    def source() -> Iterator[int]:
        for _ in range(20):
            yield threading.get_ident()

    mine = stage_thread.call(threading.get_ident)
    assert mine != threading.get_ident()
    assert set(stage_thread.iterate(source)) == {mine}
    assert list(stage_thread.iterate(lambda: iter(range(50)))) == list(range(50))


def test_the_next_one_is_made_while_the_last_one_is_handed_on(stage_thread: StageThread) -> None:
    second = threading.Event()

    def source() -> Iterator[int]:
        yield 1
        second.set()
        yield 2

    results = stage_thread.iterate(source)
    assert next(results) == 1
    assert second.wait(60.0)
    assert list(results) == [2]


def test_errors_are_raised_where_results_are_taken(stage_thread: StageThread) -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    results = stage_thread.iterate(source)
    assert next(results) == 1
    with pytest.raises(KeyError, match="gone"):
        next(results)
    with pytest.raises(ValueError, match="no"):
        stage_thread.call(lambda: int("no"))


def test_what_is_not_taken_to_its_end_is_closed_and_the_thread_goes_on(stage_thread: StageThread) -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10_000)
        finally:
            closed.set()

    results = stage_thread.iterate(source)
    assert next(results) == 0
    results.close()
    assert stage_thread.call(lambda: "next") == "next"
    assert closed.is_set()


def _all(items: BackgroundIterator[Any]) -> list[Any]:
    found: list[Any] = []
    while (taken := items.take(5.0)) is not None:
        found.extend(taken)
    return found


def test_everything_arrives_in_order() -> None:
    with in_background(lambda: iter(range(1000)), ahead=64) as items:
        assert _all(items) == list(range(1000))


def test_an_error_comes_after_what_was_given_before() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    with in_background(source, ahead=64) as items:
        assert items.take(5.0) == [1]
        with pytest.raises(KeyError, match="gone"):
            items.take(5.0)


def test_nothing_for_a_while_is_an_empty_list() -> None:
    go = threading.Event()

    def source() -> Iterator[int]:
        go.wait(60.0)
        yield 1

    with in_background(source, ahead=64) as items:
        assert items.take(0.01) == []
        go.set()
        assert _all(items) == [1]


def test_a_source_that_waits_for_ever_is_stopped_and_closed() -> None:
    """As Ray Data waits: in a loop that polls."""
    seen: list[type[BaseException]] = []
    begun, never = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        try:
            begun.set()
            while not never.wait(0.01):
                pass
            yield 1
        except BaseException as error:
            seen.append(type(error))
            raise

    with in_background(source, ahead=64):
        assert begun.wait(60.0)
    assert seen == [Interrupted]


def test_one_that_is_not_taken_empty_is_closed() -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10_000)
        finally:
            closed.set()

    with in_background(source, ahead=64) as items:
        assert items.take(5.0) == [0]
    assert closed.wait(60.0)
