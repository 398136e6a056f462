"""What the watch concludes from tasks that are begun again, and whom it lets set a node up."""

from __future__ import annotations

from gristmill.backends.ray.coordinator import Watch
from gristmill.errors import WorkerError
from gristmill.execution.recovery import Hints, Place
from gristmill.observe.events import WorkerStarted, WorkerStopped

KEY = "part-0/1 in stage"
ROWS, KILLER = 100, 37


def _attempt(watch: Watch) -> Hints | WorkerError:
    """Run one attempt that dies as soon as the killer is in hand."""
    hints = watch.begin(KEY)
    assert isinstance(hints, Hints | WorkerError)
    if isinstance(hints, WorkerError):
        return hints
    poison = hints.poison.get(0, {})
    pieces = sorted(hints.slices.get(0, [(0, ROWS)]))
    for lo, hi in pieces:
        if lo <= KILLER < hi and KILLER not in poison:
            watch.at(KEY, Place(0, 0, lo, hi))
            return hints
    return hints


def test_the_document_that_kills_is_found() -> None:
    watch = Watch()
    for _ in range(40):
        hints = _attempt(watch)
        assert isinstance(hints, Hints)
        if hints.poison:
            break
    assert list(hints.poison[0]) == [KILLER]
    watch.end(KEY)
    assert watch.begin(KEY) == Hints()


def test_a_task_that_kills_without_a_document_is_given_up() -> None:
    watch = Watch()
    answers = [watch.begin(KEY) for _ in range(20)]
    assert isinstance(answers[-1], WorkerError)
    assert isinstance(answers[1], Hints)


def test_a_worker_ended_from_outside_is_no_death() -> None:
    watch = Watch()
    for _ in range(30):
        assert watch.begin(KEY) == Hints()
        watch.at(KEY, Place(0, 0, 0, ROWS))
        watch.release(KEY)


def test_a_document_over_its_time_is_certain() -> None:
    watch = Watch()
    watch.overdue(KEY, Place(2, 0, 5, 6))
    hints = watch.begin(KEY)
    assert isinstance(hints, Hints)
    assert hints.poison == {2: {5: "time limit"}}


def test_one_worker_sets_a_node_up() -> None:
    watch = Watch()
    assert watch.node("n", 0, "a-1") == "go"
    assert watch.node("n", 0, "b-2") == "wait a-1"
    assert watch.node("m", 0, "c-3") == "go"
    watch.node_failed("n", 0)
    assert watch.node("n", 0, "b-2") == "go"
    watch.node_done("n", 0)
    assert watch.node("n", 0, "d-4") == "done"
    watch.node_failed("n", 0)
    assert watch.node("n", 0, "d-4") == "done"


def test_workers_and_their_ends() -> None:
    watch = Watch()
    assert watch.hello("a", 1, 11, (0,), None) == 0
    assert watch.hello("a", 1, 12, (0,), None) == 1
    assert list(watch.workers()) == ["a"]
    watch.bye("a", "recycled", None)
    events, problems, workers = watch.drain()
    assert [type(event) for event in events] == [WorkerStarted, WorkerStopped, WorkerStarted, WorkerStopped]
    assert [event.expected for event in events if isinstance(event, WorkerStopped)] == [False, True]
    assert not problems
    assert workers == 0
    assert not watch.workers()


def test_replacements_keep_their_distance() -> None:
    watch = Watch()
    assert watch.may_retire(0, 60.0)
    assert not watch.may_retire(0, 60.0)
    assert watch.may_retire(1, 60.0)
    assert watch.may_retire(0, 0.0)


def test_tasks_of_a_round_that_was_given_up_are_not_blamed() -> None:
    watch = Watch()
    for _ in range(40):
        assert watch.begin(KEY) == Hints()
        watch.at(KEY, Place(0, 0, 0, ROWS))
        watch.release_all()
