"""Pipelines whose documents are something else in between, or come from tasks that a stage makes: rows and origins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gristmill.errors import StageResultError, UsageError
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.tasks import DocumentBatch, EmptyTask, FailedTask, FileGroupTask, NoneTask
from gristmill.tasks.base import Task
from tests.contract import stages
from tests.unit.pipeline.jobs import here, read_rows, run_lines, write_lines

ROWS = [{"id": f"d{row}", "n": row, "text": f"text {row}"} for row in range(20)]


class Folder(Task[dict[str, Any]]):
    """A kind of task that only the user knows."""

    @property
    def num_items(self) -> int:
        return 1


class Listed(ProcessingStage[EmptyTask, FileGroupTask]):
    """A source that makes several tasks of nothing."""

    name = "listed"

    def process(self, task: EmptyTask) -> list[FileGroupTask]:
        return [FileGroupTask(data=[str(number)]) for number in range(3)]


class Made(ProcessingStage[FileGroupTask, DocumentBatch]):
    """Makes documents in several batches."""

    name = "made"

    def process(self, task: FileGroupTask) -> Iterator[DocumentBatch]:
        for part in range(2):
            ids = [f"{task.data[0]}-{part}-{number}" for number in range(4)]
            yield DocumentBatch(data=pa.table({"id": ids, "text": ids}))


@processing_stage(name="last_of_four")
def last_of_four(batch: DocumentBatch) -> DocumentBatch:
    frame = batch.to_pandas()
    return DocumentBatch(data=frame[frame["id"].str.endswith("-3")])


def test_documents_that_become_another_kind_of_task_end_there_and_those_made_of_it_are_new(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    result = run_lines(tmp_path, ROWS, [stages.PutAway(tmp_path / "away"), stages.TakeOut()])
    by_name = {stage.name: stage for stage in result.report.stages}
    away, back = by_name["put_away"], by_name["take_out"]
    assert (away.rows_in, away.rows_out, away.dropped) == (20, 0, {"converted": 20})
    assert (back.rows_in, back.rows_out, back.created, back.untracked, back.dropped) == (0, 20, 20, 0, {})
    assert verify(str(tmp_path / "out")).ok
    assert [row["n"] for row in read_rows(tmp_path / "out")] == list(range(19, -1, -1))
    decision = Ledger(str(tmp_path / "out")).why("d12").documents[0].decisions[0]
    assert (decision.stage, decision.reason) == ("put_away", "converted")
    assert not any("usually a mistake" in alarm for alarm in result.report.alarms)


def test_a_task_of_the_users_own_kind_can_become_several_and_documents_again(tmp_path: Path) -> None:
    @processing_stage(name="pack")
    def pack(batch: DocumentBatch) -> list[Folder]:
        rows = batch.to_pyarrow().to_pylist()
        return [Folder(data={"rows": rows[:8]}), Folder(data={"rows": rows[5:18]})]

    @processing_stage(name="hand_on")
    def hand_on(task: Folder) -> list[Folder]:
        half = len(task.data["rows"]) // 2
        return [Folder(data={"rows": task.data["rows"][:half]}), Folder(data={"rows": task.data["rows"][half:]})]

    @processing_stage(name="unpack")
    def unpack(task: Folder) -> DocumentBatch:
        return DocumentBatch(data=pa.Table.from_pylist(task.data["rows"]))

    @processing_stage(name="even")
    def even(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        return DocumentBatch(data=frame[frame["n"] % 2 == 0])

    result = run_lines(tmp_path, ROWS, [pack, hand_on, unpack, even])
    by_name = {stage.name: stage for stage in result.report.stages}
    assert by_name["pack"].dropped == {"converted": 20}
    assert (by_name["unpack"].created, by_name["unpack"].rows_out) == (21, 21)
    assert by_name["even"].dropped == {"even": 11}
    assert len(read_rows(tmp_path / "out")) == 10
    assert verify(str(tmp_path / "out")).ok


@pytest.mark.parametrize("nothing", [None, "none_task"])
def test_a_stage_may_give_nothing_for_such_a_task(tmp_path: Path, nothing: Any) -> None:
    (tmp_path / "away").mkdir()

    @processing_stage(name="lose")
    def lose(task: FileGroupTask) -> Any:
        return NoneTask() if nothing else None

    result = run_lines(tmp_path, ROWS, [stages.PutAway(tmp_path / "away"), lose, stages.TakeOut()])
    by_name = {stage.name: stage for stage in result.report.stages}
    assert (by_name["put_away"].dropped, by_name["lose"].dropped) == ({"converted": 20}, {})
    assert Ledger(str(tmp_path / "out")).why("d4").documents[0].decisions[0].stage == "put_away"
    assert verify(str(tmp_path / "out")).ok


def test_a_none_task_for_documents_drops_them(tmp_path: Path) -> None:
    @processing_stage(name="lose")
    def lose(batch: DocumentBatch) -> NoneTask:
        return NoneTask()

    assert run_lines(tmp_path, ROWS, [lose]).report.stages[1].dropped == {"lose": 20}
    assert verify(str(tmp_path / "out")).ok


def test_a_writer_gets_documents_or_says_what_it_got(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    with pytest.raises(
        StageResultError, match=r"'jsonl_writer' writes documents, but stage 'put_away' passed it a File"
    ):
        run_lines(tmp_path, ROWS, [stages.PutAway(tmp_path / "away")])
    assert not list((tmp_path / "out").glob("*.jsonl"))


@pytest.mark.parametrize("apart", [False, True])
def test_documents_of_several_tasks_of_one_source_keep_their_own_rows(tmp_path: Path, apart: bool) -> None:
    made = Made().with_(batch_size=2) if apart else Made()
    job = Pipeline("job", stages=[Listed(), made, last_of_four, JsonlWriter(str(tmp_path / "out"))])
    report = job.run(executor=here()).report
    assert (report.rows_read, report.rows_written) == (24, 6)
    assert verify(str(tmp_path / "out")).ok
    ledger = Ledger(str(tmp_path / "out"))
    frame = ledger.frame()
    assert sorted(frame["row"].to_list()) == [row for row in range(24) if row % 4 != 3]
    assert dict(zip(frame["row"].to_list(), frame["id"].to_list(), strict=True))[21] == "2-1-1"
    assert ledger.why("2-1-3").documents[0].status == "kept"
    assert job.run(executor=here()).report.partitions_done_before == 1


def test_a_source_cannot_fail_by_a_task(tmp_path: Path) -> None:
    @processing_stage(name="broken")
    def broken(task: EmptyTask) -> FailedTask:
        return FailedTask()

    with pytest.raises(UsageError, match="FailedTask"):
        Pipeline("job", stages=[broken, last_of_four]).run(executor=here(), initial_tasks=[EmptyTask()])


def test_without_a_writer_documents_may_end_as_something_else(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    write_lines(tmp_path / "in" / "a.jsonl", ROWS)
    result = Pipeline("job", stages=[JsonlReader(str(tmp_path / "in")), stages.PutAway(tmp_path / "away")]).run(
        executor=here()
    )
    assert [type(task) for task in result] == [FileGroupTask]
    assert result.report.stages[-1].dropped == {"converted": 20}
