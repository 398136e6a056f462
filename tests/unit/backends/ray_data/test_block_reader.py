"""The pump hands on what a thread gives, notices the end and errors, and stops a source that gives nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.backends.ray_data.block_reader import Interrupted, Pump


def _all(pump: Pump) -> list[Any]:
    found: list[Any] = []
    while (items := pump.take(5.0)) is not None:
        found.extend(items)
    return found


def test_everything_arrives_in_order() -> None:
    with Pump(lambda: iter(range(1000))).running() as pump:
        assert _all(pump) == list(range(1000))


def test_an_error_comes_after_what_was_given_before() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("gone")

    with Pump(source).running() as pump:
        assert pump.take(5.0) == [1]
        with pytest.raises(KeyError, match="gone"):
            pump.take(5.0)


def test_nothing_for_a_while_is_an_empty_list() -> None:
    go = threading.Event()

    def source() -> Iterator[int]:
        go.wait(60.0)
        yield 1

    with Pump(source).running() as pump:
        assert pump.take(0.01) == []
        go.set()
        assert _all(pump) == [1]


def test_a_source_that_waits_for_ever_is_stopped_and_closed() -> None:
    """As Ray Data waits: in a loop, looking again and again."""
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

    with Pump(source).running():
        assert begun.wait(60.0)
    assert seen == [Interrupted]


def test_one_that_is_not_taken_empty_is_closed() -> None:
    closed = threading.Event()

    def source() -> Iterator[int]:
        try:
            yield from range(10_000)
        finally:
            closed.set()

    with Pump(source).running() as pump:
        assert pump.take(5.0) == [0]
    assert closed.wait(60.0)
