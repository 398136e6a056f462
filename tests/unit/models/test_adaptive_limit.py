"""The number of requests at once follows the server; no time passes here."""

from __future__ import annotations

import asyncio

from gristmill.models.client.adaptive_limit import AdaptiveLimit


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_one_burst_of_refusals_halves_the_limit_once() -> None:
    clock = Clock()
    limit = AdaptiveLimit(64, clock=clock)
    clock.now += 1
    for _ in range(30):
        limit.note_overload(begun=100.0)
    assert limit.current == 32
    clock.now += 1
    limit.note_overload(begun=101.5)
    assert limit.current == 16
    assert limit.overloads == 31


def test_never_below_one_and_back_to_the_most() -> None:
    clock = Clock()
    limit = AdaptiveLimit(8, clock=clock)
    for _ in range(10):
        clock.now += 1
        limit.note_overload(begun=clock.now - 0.5)
    assert limit.current == 1
    for _ in range(200):
        limit.note_answer(0.05)
    assert limit.current == 8


def test_slow_answers_lower_the_limit_and_fast_ones_do_not() -> None:
    limit = AdaptiveLimit(10)
    for _ in range(50):
        limit.note_answer(0.1)
    assert limit.current == 10
    for _ in range(10):
        limit.note_answer(1.0)
    assert limit.current == 8


def test_admits_as_many_as_the_limit_and_wakes_the_next() -> None:
    async def scenario() -> None:
        limit = AdaptiveLimit(2)
        await limit.enter()
        await limit.enter()
        third = asyncio.ensure_future(limit.enter())
        await asyncio.sleep(0)
        assert not third.done()
        limit.leave()
        await asyncio.wait_for(third, 10)
        assert limit.running == 2

    asyncio.run(scenario())


def test_a_cancelled_request_passes_its_turn_on() -> None:
    async def scenario() -> None:
        limit = AdaptiveLimit(1)
        await limit.enter()
        second, third = asyncio.ensure_future(limit.enter()), asyncio.ensure_future(limit.enter())
        await asyncio.sleep(0)
        limit.leave()
        second.cancel()
        await asyncio.wait_for(third, 10)
        assert limit.running == 1

    asyncio.run(scenario())
