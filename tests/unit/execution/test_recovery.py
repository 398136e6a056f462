"""The search for documents that kill, against a simulated worker."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.execution.recovery import Attempts, Place, around, with_gaps


def attempt(attempts: Attempts, rows: dict[int, int], killers: set[tuple[int, int]]) -> Place | None:
    """Where a worker dies that does what the runner does with these hints; None if it comes through."""
    hints = attempts.hints
    for call, count in rows.items():
        known = call in hints.slices or call in hints.poison
        pieces = with_gaps(hints.slices.get(call, ()), count, None) if known else iter([(0, count)])
        seen = 0
        for lo, hi in pieces:
            for start, end in around(lo, hi, hints.poison.get(call, {})):
                assert start == seen, "rows are left out or given twice"
                seen = end
                if start in hints.poison.get(call, {}):
                    continue
                if any((call, row) in killers for row in range(start, end)):
                    return Place(call, 0, start, end)
        assert seen == count
    return None


@st.composite
def batches(draw: st.DrawFn) -> tuple[dict[int, int], set[tuple[int, int]]]:
    rows = {call: draw(st.integers(1, 400)) for call in range(draw(st.integers(1, 4)))}
    places = st.sampled_from(sorted(rows)).flatmap(
        lambda call: st.tuples(st.just(call), st.integers(0, rows[call] - 1))
    )
    return rows, draw(st.sets(places, max_size=6))


@settings(max_examples=200)
@given(batches())
def test_exactly_the_documents_that_kill_are_found(case: tuple[dict[int, int], set[tuple[int, int]]]) -> None:
    rows, killers = case
    attempts = Attempts()
    tries = 0
    while (place := attempt(attempts, rows, killers)) is not None:
        tries += 1
        assert attempts.died(place, "SIGSEGV", was_alone=attempts.alone)
    found = {(call, row) for call, causes in attempts.poison.items() for row in causes}
    assert found == killers
    assert tries <= 4 + 8 * len(killers)
    assert all(cause == "SIGSEGV" for causes in attempts.poison.values() for cause in causes.values())


@settings(max_examples=100)
@given(batches(), st.lists(st.tuples(st.integers(0, 3), st.integers(0, 399)), max_size=3))
def test_deaths_that_have_nothing_to_do_with_a_document_blame_none(
    case: tuple[dict[int, int], set[tuple[int, int]]], accidents: list[tuple[int, int]]
) -> None:
    rows, killers = case
    attempts = Attempts()
    for call, row in accidents:
        if call in rows and row < rows[call]:
            assert attempts.died(Place(call, 0, 0, rows[call]), "SIGKILL", was_alone=attempts.alone)
    while (place := attempt(attempts, rows, killers)) is not None:
        assert attempts.died(place, "SIGSEGV", was_alone=attempts.alone)
    assert {(call, row) for call, causes in attempts.poison.items() for row in causes} == killers


def test_a_first_death_only_asks_for_another_try_alone() -> None:
    attempts = Attempts()
    assert not attempts.alone
    assert attempts.died(Place(0, 0, 0, 9), "SIGKILL", was_alone=False)
    assert attempts.alone
    assert not attempts.searching
    assert not attempts.hints.slices


def test_a_time_limit_needs_no_second_proof() -> None:
    attempts = Attempts()
    assert attempts.died(Place(2, 1, 4, 5), "time limit", was_alone=False, certain=True)
    assert attempts.poison == {2: {4: "time limit"}}


def test_a_task_that_kills_where_no_document_is_in_hand_is_given_up() -> None:
    attempts = Attempts()
    tries = 1
    while attempts.died(Place(0, 0, 0, 0), "SIGSEGV", was_alone=attempts.alone):
        tries += 1
    assert 4 <= tries <= 10
    assert not attempts.poison


def test_a_piece_that_kills_in_the_middle_leaves_the_rest_as_it_is() -> None:
    attempts = Attempts(searching=True)
    attempts.died(Place(0, 0, 100, 132), "SIGSEGV", was_alone=True)
    assert attempts.slices[0][0] == (100, 102)
    assert attempts.slices[0][-1] == (130, 132)
    attempts.died(Place(0, 0, 110, 112), "SIGSEGV", was_alone=True)
    assert (110, 111) in attempts.slices[0]
    assert (111, 112) in attempts.slices[0]
    assert (108, 110) in attempts.slices[0]
    assert (112, 114) in attempts.slices[0]
