"""What the coordinator concludes from tasks that are begun again, and whom it lets set a node up."""

from __future__ import annotations

from gristmill.backends.ray.coordinator import Coordinator
from gristmill.errors import WorkerError
from gristmill.execution.recovery import Hints, Place
from gristmill.observe.events import WorkerStarted, WorkerStopped

KEY = "part-0/1 in stage"
ROWS, KILLER = 100, 37


def _attempt(coordinator: Coordinator) -> Hints | WorkerError:
    """Run one attempt that dies as soon as the killer is in hand."""
    hints = coordinator.start_task(KEY)
    assert isinstance(hints, Hints | WorkerError)
    if isinstance(hints, WorkerError):
        return hints
    poison = hints.poison.get(0, {})
    pieces = sorted(hints.slices.get(0, [(0, ROWS)]))
    for lo, hi in pieces:
        if lo <= KILLER < hi and KILLER not in poison:
            coordinator.report_place(KEY, Place(0, 0, lo, hi))
            return hints
    return hints


def test_the_document_that_kills_is_found() -> None:
    coordinator = Coordinator()
    for _ in range(40):
        hints = _attempt(coordinator)
        assert isinstance(hints, Hints)
        if hints.poison:
            break
    assert list(hints.poison[0]) == [KILLER]
    coordinator.finish_task(KEY)
    assert coordinator.start_task(KEY) == Hints()


def test_a_task_that_kills_without_a_document_is_given_up() -> None:
    coordinator = Coordinator()
    answers = [coordinator.start_task(KEY) for _ in range(20)]
    assert isinstance(answers[-1], WorkerError)
    assert isinstance(answers[1], Hints)


def test_a_worker_ended_from_outside_is_no_death() -> None:
    coordinator = Coordinator()
    for _ in range(30):
        assert coordinator.start_task(KEY) == Hints()
        coordinator.report_place(KEY, Place(0, 0, 0, ROWS))
        coordinator.release_task(KEY)


def test_a_document_over_its_time_is_certain() -> None:
    coordinator = Coordinator()
    coordinator.report_overdue(KEY, Place(2, 0, 5, 6))
    hints = coordinator.start_task(KEY)
    assert isinstance(hints, Hints)
    assert hints.poison == {2: {5: "time limit"}}


def test_one_worker_sets_a_node_up() -> None:
    coordinator = Coordinator()
    assert coordinator.claim_node("n", 0, "a-1") == "a-1"
    assert coordinator.claim_node("n", 0, "b-2") == "a-1"
    assert coordinator.claim_node("m", 0, "c-3") == "c-3"
    coordinator.node_failed("n", 0)
    assert coordinator.claim_node("n", 0, "b-2") == "b-2"
    coordinator.node_done("n", 0)
    assert coordinator.claim_node("n", 0, "d-4") is None
    coordinator.node_failed("n", 0)
    assert coordinator.claim_node("n", 0, "d-4") is None


def test_workers_and_their_ends() -> None:
    coordinator = Coordinator()
    assert coordinator.worker_started("a", 1, 11, (0,), None) == 0
    assert coordinator.worker_started("a", 1, 12, (0,), None) == 1
    assert list(coordinator.workers()) == ["a"]
    coordinator.worker_ended("a", "recycled", None)
    coordinator.worker_grew("b")
    events, problems, workers, grown, _ = coordinator.drain()
    assert [type(event) for event in events] == [WorkerStarted, WorkerStopped, WorkerStarted, WorkerStopped]
    assert [event.expected for event in events if isinstance(event, WorkerStopped)] == [False, True]
    assert not problems
    assert (workers, grown) == (0, {"b"})
    assert not coordinator.workers()


def test_replacements_keep_their_distance() -> None:
    coordinator = Coordinator()
    assert coordinator.may_replace_worker(0, 60.0)
    assert not coordinator.may_replace_worker(0, 60.0)
    assert coordinator.may_replace_worker(1, 60.0)
    assert coordinator.may_replace_worker(0, 0.0)


def test_tasks_of_an_attempt_that_was_given_up_are_not_blamed() -> None:
    coordinator = Coordinator()
    for _ in range(40):
        assert coordinator.start_task(KEY) == Hints()
        coordinator.report_place(KEY, Place(0, 0, 0, ROWS))
        coordinator.release_all_tasks()
