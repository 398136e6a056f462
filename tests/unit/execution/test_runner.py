"""The runner: slices, time limits, failures that name their row, results of several tasks, and the trail of each."""

from __future__ import annotations

import itertools
import json
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.backends.base import WorkerMetadata
from gristmill.backends.plan import RunSettings, Segment
from gristmill.errors import ConservationError, StageFailedError, StageResultError
from gristmill.execution.recovery import Hints, around, by_time, with_gaps
from gristmill.execution.runner import SegmentRunner
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.tasks import DocumentBatch
from gristmill.tasks.base import EmptyTask, Task
from gristmill.tracking.origins import Lineage


class Picky(ProcessingStage):
    """Raises on some documents."""

    name = "picky"

    def __init__(self, *bad: int, lazy: bool = False, only_whole: bool = False) -> None:
        self.bad = set(bad)
        self.lazy = lazy
        self.only_whole = only_whole
        self.calls: list[list[int]] = []

    def process(self, task: Any) -> Any:
        return self._later(task) if self.lazy else self._now(task)

    def _later(self, task: Any) -> Iterator[Any]:
        yield self._now(task)

    def _now(self, task: Any) -> Any:
        numbers = task.column("n").to_pylist()
        self.calls.append(numbers)
        if self.only_whole and len(numbers) > 3:
            raise ValueError("too many")
        for number in numbers:
            if number in self.bad:
                raise ValueError(f"bad {number}")
        return task


class Together(Picky):
    """Gets several tasks at once."""

    name = "together"
    batch_size = 3

    def process_batch(self, tasks: list[Any]) -> list[Any]:
        return [self.process(task) for task in tasks]


class Twice(ProcessingStage):
    name = "twice"

    def process(self, task: Any) -> Any:
        return [task, task.with_column("n", pa.array([n + 100 for n in task.column("n").to_pylist()]))]


class Sees:
    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int, int]] = []

    def at(self, call: int, stage: int, lo: int, hi: int) -> None:
        self.seen.append((call, stage, lo, hi))


def batch(start: int, stop: int, *, partition: int = 0) -> DocumentBatch:
    made = DocumentBatch(data=pa.table({"n": pa.array(range(start, stop), pa.int64())}))
    made._tracking.rows = np.arange(start, stop)
    made._lineage = Lineage(partition, f"p{partition}")
    made._metadata = {"source_file": f"file{partition}.jsonl"}
    return made


def runner(*stages: ProcessingStage, batch_size: int = 1, **options: Any) -> SegmentRunner:
    settings = RunSettings(ignore_failures=options.pop("ignore_failures", False))
    segment = Segment(0, stages, Resources(), batch_size, None)
    return SegmentRunner(segment, settings, first=False, whole_partitions=False, **options)


def numbers(results: list[Any]) -> list[list[int]]:
    return [task.column("n").to_pylist() for task in results if isinstance(task, Task)]


@settings(max_examples=50)
@given(st.integers(1, 30), st.data())
def test_a_failure_names_the_first_row_that_raises(size: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    lazy = data.draw(st.booleans())
    with pytest.raises(StageFailedError) as caught:
        list(runner(Picky(*(row + 50 for row in bad), lazy=lazy)).run([batch(50, 50 + size)]))
    error = caught.value
    assert (error.stage, error.file, error.row) == ("picky", "file0.jsonl", min(bad) + 50)
    assert f"ValueError: bad {min(bad) + 50}" in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_the_users_traceback_comes_without_ours() -> None:
    with pytest.raises(StageFailedError) as caught:
        list(runner(Picky(1)).run([batch(0, 3)]))
    lines = caught.value.traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "test_runner.py" in lines[1]
    assert "backends/runner" not in caught.value.traceback


def test_a_failure_of_the_whole_batch_blames_no_row() -> None:
    with pytest.raises(StageFailedError, match="too many") as caught:
        list(runner(Picky(only_whole=True)).run([batch(0, 6)]))
    assert caught.value.row is None


class Returns(ProcessingStage):
    """Returns what it was made with."""

    name = "returns"

    def __init__(self, given: Any) -> None:
        self.given = given

    def process(self, task: Any) -> Any:
        return self.given


class ReturnsMany(Returns):
    batch_size = 3

    def process_batch(self, tasks: list[Any]) -> Any:
        return self.given


WRONG = [
    ({}, "a dict"),
    ("text", "a str"),
    (0, "an int"),
    (pa.table({"n": [1]}), "a pyarrow.Table"),
    (["text"], "a list with a str in it"),
    ((None, 5), "a tuple with an int in it"),
]


@pytest.mark.parametrize("ignore_failures", [False, True])
@pytest.mark.parametrize(("wrong", "words"), WRONG)
def test_a_wrong_result_is_the_fault_of_the_stage(wrong: Any, words: str, ignore_failures: bool) -> None:
    source = EmptyTask()
    source._lineage = Lineage(0, "p0")
    for made, tasks, method in (
        (runner(Returns(wrong), ignore_failures=ignore_failures), [batch(0, 4)], "process()"),
        (runner(Returns(wrong), ignore_failures=ignore_failures), [source], "process()"),
        (
            runner(ReturnsMany(wrong), batch_size=3, ignore_failures=ignore_failures),
            [batch(0, 4), batch(4, 6)],
            "process_batch()",
        ),
        (runner(ReturnsMany(wrong), batch_size=1, ignore_failures=ignore_failures), [batch(0, 4)], "process_batch()"),
    ):
        with pytest.raises(StageResultError) as caught:
            list(made.run(tasks))
        assert (caught.value.stage, caught.value.returned, caught.value.row) == ("returns", words, None)
        assert f"returned {words} from {method}; it must return" in str(caught.value)
        assert "ignore_failures" not in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_nothing_between_the_tasks_of_a_source_ends_it_early() -> None:
    source = EmptyTask()
    source._lineage = Lineage(0, "p0")
    results = list(runner(Returns([None, batch(0, 2), None, batch(2, 4)])).run([source]))
    assert numbers(results) == [[0, 1], [2, 3]]


def test_rows_that_do_not_add_up_blame_no_document() -> None:
    class Liar(ProcessingStage):
        name = "liar"

        def process(self, task: Any) -> Any:
            task.drop(np.ones(task.num_items, bool), reason="said_so")
            return task

    with pytest.raises(ConservationError, match="Use the batch that drop"):
        list(runner(Liar(), ignore_failures=True).run([batch(0, 4)]))


def test_a_failure_among_several_tasks_names_the_right_file_and_row() -> None:
    tasks = [batch(0, 5, partition=0), batch(5, 9, partition=1), batch(9, 12, partition=2)]
    with pytest.raises(StageFailedError) as caught:
        list(runner(Together(7), batch_size=3).run(tasks))
    assert (caught.value.file, caught.value.row) == ("file1.jsonl", 7)


@settings(max_examples=50)
@given(st.integers(1, 30), st.data())
def test_ignored_failures_put_exactly_the_raising_documents_aside(size: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, size - 1)))
    kind = data.draw(st.sampled_from([Picky, Together]))
    made = runner(kind(*bad), batch_size=2, ignore_failures=True)
    task = batch(0, size)
    results = list(made.run([task]))
    assert [n for group in numbers(results) for n in group] == sorted(set(range(size)) - bad)
    trail = task._lineage.trail  # type: ignore[union-attr]
    assert sorted(record.row for record in trail.quarantine) == sorted(bad)
    assert all(json.loads(record.raw)["n"] == record.row for record in trail.quarantine)
    counts = trail.counts[kind.name]
    assert counts.conserves()
    assert counts.rows_in == size
    assert counts.quarantined == ({"ValueError": len(bad)} if bad else {})


@settings(max_examples=60)
@given(st.integers(1, 40), st.data())
def test_slices_and_poison_give_every_other_row_once_and_in_order(size: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, size), max_size=6)))
    pieces = tuple(pair for pair in itertools.pairwise(cuts) if data.draw(st.booleans()))
    poison = dict.fromkeys(data.draw(st.sets(st.integers(0, size - 1), max_size=4)), "SIGSEGV")
    stage, sees = Picky(*poison), Sees()
    task = batch(0, size)
    results = list(runner(stage, step_log=sees).run([task], Hints(slices={0: pieces}, poison={0: poison})))
    assert [n for group in numbers(results) for n in group] == sorted(set(range(size)) - set(poison))
    assert len(numbers(results)) == (len(poison) < size)
    assert [n for call in stage.calls for n in call] == sorted(set(range(size)) - set(poison))
    assert [place[2:] for place in sees.seen] == [(call[0], call[-1] + 1) for call in stage.calls]
    counts = task._lineage.trail.counts["picky"]  # type: ignore[union-attr]
    assert (counts.rows_in, counts.rows_out) == (size, size - len(poison))


def test_slices_keep_the_outputs_of_a_stage_that_gives_several_apart() -> None:
    whole = numbers(list(runner(Twice()).run([batch(0, 6)])))
    sliced = numbers(list(runner(Twice()).run([batch(0, 6)], Hints(slices={0: ((2, 4),)}))))
    assert whole == sliced == [[0, 1, 2, 3, 4, 5], [100, 101, 102, 103, 104, 105]]


@pytest.mark.parametrize("ignore_failures", [False, True])
def test_process_batch_is_called_for_a_single_task_and_its_own_figures_are_kept(ignore_failures: bool) -> None:
    class Counts(Together):
        def process(self, task: Any) -> Any:
            raise AssertionError("process_batch is called instead")

        def process_batch(self, tasks: list[Any]) -> list[Any]:
            self._log_metric("tasks", len(tasks))
            return tasks

    made = runner(Counts(), batch_size=1, ignore_failures=ignore_failures)
    assert numbers(list(made.run([batch(0, 3)]))) == [[0, 1, 2]]
    assert made.call_counts.times["together"].custom == {"tasks": 1}


def test_a_time_limit_gives_documents_in_growing_pieces() -> None:
    stage = Picky()
    results = list(runner(stage.with_(time_limit_s=100.0), can_be_killed=True).run([batch(0, 20)]))
    assert numbers(results) == [list(range(20))]
    sizes = [hi - lo for lo, hi in by_time(0, 20, 100.0)]
    assert sizes[0] == 1
    assert sum(sizes) == 20
    assert all(after <= 2 * before for before, after in itertools.pairwise(sizes))


@given(st.integers(1, 50), st.data())
def test_gaps_are_filled(size: int, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, size), max_size=8)))
    pieces = [pair for pair in itertools.pairwise(cuts) if data.draw(st.booleans())]
    limit = data.draw(st.sampled_from([None, 1.0]))
    found = [row for lo, hi in with_gaps(pieces, size, limit) for row in range(lo, hi)]
    assert found == list(range(size))
    poison = dict.fromkeys(data.draw(st.sets(st.integers(0, size - 1))), "x")
    cut = list(around(0, size, poison))
    assert [row for lo, hi in cut for row in range(lo, hi)] == list(range(size))
    assert {lo for lo, hi in cut if hi - lo == 1} >= set(poison)


class Life(ProcessingStage):
    def __init__(self, name: str, log: list[str], *, fails: str = "") -> None:
        self.name, self.log, self.fails = name, log, fails

    def setup(self, worker_metadata: Any = None) -> None:
        self.log.append(f"setup {self.name}")
        if self.fails == "setup":
            raise RuntimeError("no")

    def teardown(self) -> None:
        self.log.append(f"teardown {self.name}")
        if self.fails == "teardown":
            raise RuntimeError("never")

    def process(self, task: Any) -> Any:
        return task


def test_stages_already_set_up_are_torn_down_when_a_later_one_fails() -> None:
    log: list[str] = []
    made = runner(Life("a", log), Life("b", log, fails="setup"), Life("c", log))
    with pytest.raises(StageFailedError, match=r"'b' failed in setup\(\): RuntimeError: no"):
        made.setup(WorkerMetadata())
    assert log == ["setup a", "setup b", "teardown a"]


def test_every_stage_gets_its_teardown_even_if_one_fails() -> None:
    log: list[str] = []
    made = runner(Life("a", log), Life("b", log, fails="teardown"))
    made.setup(WorkerMetadata())
    with pytest.raises(StageFailedError, match="'b' failed in teardown"):
        made.teardown()
    assert log[2:] == ["teardown b", "teardown a"]
    made.teardown()
    assert len(log) == 4


def test_the_wait_for_tasks_is_in_the_record_of_the_first_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("gristmill.execution.runner.time.perf_counter", lambda: now)
    worker = runner(Picky(), Twice())
    results = worker.run([batch(0, 2)])
    first = [next(results)]
    now += 30.0  # whoever takes the results is slow: that is no wait for input
    first += results
    now += 5.0
    second = list(worker.run([batch(2, 4)]))
    times = worker.call_counts.times
    idle = [[perf.actor_idle_time for perf in task._stage_perf] for task in (*first, *second)]
    assert idle == [[0.0, 0.0]] * 2 + [[5.0, 0.0]] * 2
    assert (times["picky"].idle_s, times["twice"].idle_s) == (5.0, 0.0)
