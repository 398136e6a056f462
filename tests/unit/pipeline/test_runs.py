"""Runs from the outside: budgets, resuming, what stages may return, tasks given by hand, and the record of it all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.plan import ExecutionPlan, RunSettings
from gristmill.errors import (
    ConservationError,
    ErrorBudgetExceededError,
    OutputError,
    ResumeError,
    StageDefinitionError,
    StageFailedError,
    UsageError,
)
from gristmill.kernels.compiler import compile_listeners
from gristmill.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.observe.events import (
    EventStream,
    KernelCompiling,
    Notice,
    PartitionCommitted,
    RunFinished,
    RunStarted,
    TaskFinished,
)
from gristmill.pipeline import Pipeline
from gristmill.pipeline.run import announced_compilation
from gristmill.stages.base import ProcessingStage
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.resources import Resources
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.stages.text.modifiers import Modify
from gristmill.stages.text.modules import AddId
from gristmill.tasks import DocumentBatch, EmptyTask, FileGroupTask, Task
from tests.other_engine import only_in_one_process
from tests.unit.pipeline.jobs import here, read_lines, read_rows, run_json, run_lines, write_lines

ROWS = [{"id": number, "text": f"text {number}"} for number in range(10)]


class Longer(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Keeps long documents."""

    name = "longer"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def process(self, task: DocumentBatch) -> DocumentBatch:
        frame = task.to_pandas()
        return DocumentBatch(data=frame[frame["text"].str.len() >= self.least])


def _pipeline(folder: Path, *stages: Any, mode: Any = "ignore") -> Pipeline:
    return Pipeline(
        "job", stages=[JsonlReader(str(folder / "in")), *stages, JsonlWriter(str(folder / "out"), mode=mode)]
    )


def _three_files(folder: Path) -> None:
    for number in range(3):
        write_lines(folder / "in" / f"{number}.jsonl", [{"id": number, "text": "x" * (number + 1)}])


# --- the error budget ---


def _bad(folder: Path, good: int, bad: int) -> None:
    write_lines(folder / "in" / "a.jsonl", [*ROWS[:1] * good, *(["{bad"] * bad)])


def test_a_share_never_means_fewer_than_ten(tmp_path: Path) -> None:
    _bad(tmp_path, 10, 10)
    assert _pipeline(tmp_path).run(executor=here()).report.quarantined == 10
    _bad(tmp_path, 10, 11)
    with pytest.raises(ErrorBudgetExceededError, match="11 of 21"):
        _pipeline(tmp_path).run(executor=here(), fresh=True)


@pytest.mark.parametrize(
    ("budget", "fails"), [(0, True), (2, True), (3, False), (None, False), (1.0, False), (0.0, True), (0.001, False)]
)
def test_budgets_are_shares_or_numbers(tmp_path: Path, budget: Any, fails: bool) -> None:
    _bad(tmp_path, 10, 3)
    if fails:
        with pytest.raises(ErrorBudgetExceededError) as caught:
            _pipeline(tmp_path).run(executor=here(), error_budget=budget)
        assert (caught.value.quarantined, caught.value.records, caught.value.allowed) == (3, 13, budget)
        record = run_json(tmp_path / "out")
        assert record["status"] == "failed"
        assert "error budget" in record["error"]
        result = _pipeline(tmp_path).run(executor=here(), error_budget=3)
        assert result.report.partitions_done_before == 1
    else:
        result = _pipeline(tmp_path).run(executor=here(), error_budget=budget)
    assert result.report.quarantined == 3
    assert run_json(tmp_path / "out")["status"] == "done"
    verify(str(tmp_path / "out")).raise_for_problems()


@pytest.mark.parametrize("budget", [-1, -0.5, 1.5, True, "1%"])
def test_budgets_that_make_no_sense_are_refused(tmp_path: Path, budget: Any) -> None:
    _bad(tmp_path, 1, 0)
    with pytest.raises(UsageError, match="error_budget"):
        _pipeline(tmp_path).run(executor=here(), error_budget=budget)


# --- what a stage may return ---


def _returning(kind: str) -> Any:
    @processing_stage(name="returning")
    def returning(batch: DocumentBatch) -> Any:
        frame = batch.to_pandas()
        half = [DocumentBatch(data=frame.iloc[:4]), DocumentBatch(data=frame.iloc[4:])]
        return {"none": None, "empty list": [], "list": half, "tuple": tuple(half), "generator": iter(half)}[kind]

    return returning


@pytest.mark.parametrize("kind", ["none", "empty list"])
def test_nothing_means_that_all_was_dropped(tmp_path: Path, kind: str) -> None:
    result = run_lines(tmp_path, ROWS, [_returning(kind)])
    assert result.report.rows_written == 0
    assert result.report.stages[1].dropped == {"returning": 10}
    verify(str(tmp_path / "out")).raise_for_problems()


@pytest.mark.parametrize("kind", ["list", "tuple", "generator"])
def test_several_tasks_are_written_in_order(tmp_path: Path, kind: str) -> None:
    result = run_lines(tmp_path, ROWS, [_returning(kind)])
    assert read_rows(tmp_path / "out") == ROWS
    assert result.report.stages[1].created == 0
    assert result.report.dropped == 0


def test_a_frame_instead_of_a_batch_is_explained(tmp_path: Path) -> None:
    @processing_stage(name="frame")
    def frame(batch: DocumentBatch) -> Any:
        return batch.to_pandas()

    with pytest.raises(StageFailedError, match=r"DocumentBatch\(data="):
        run_lines(tmp_path, ROWS, [frame])


def test_a_class_stage_that_returns_a_frame_is_explained(tmp_path: Path) -> None:
    class Frame(ProcessingStage[DocumentBatch, DocumentBatch]):
        name = "frame"

        def process(self, task: DocumentBatch) -> Any:
            return task.to_pandas()

    with pytest.raises((StageFailedError, StageDefinitionError), match=r"DocumentBatch\(data="):
        run_lines(tmp_path, ROWS, [Frame()])


def test_a_failing_stage_names_file_and_row_with_the_users_traceback(tmp_path: Path) -> None:
    @processing_stage(name="picky")
    def picky(batch: DocumentBatch) -> DocumentBatch:
        for text in batch.to_pandas()["text"]:
            if text == "text 7":
                raise RuntimeError("cannot do it")
        return batch

    with pytest.raises(StageFailedError) as caught:
        run_lines(tmp_path, ROWS, [picky])
    assert caught.value.stage == "picky"
    assert caught.value.row == 7
    assert caught.value.file.endswith("a.jsonl")
    assert "cannot do it" in str(caught.value)
    assert "raise RuntimeError" in str(caught.value)
    assert str(caught.value).endswith("run with --ignore-failures (ignore_failures=True).")
    assert run_json(tmp_path / "out")["status"] == "failed"
    with pytest.raises(StageFailedError) as caught:
        run_lines(tmp_path, ROWS, [picky], ignore_failures=False)
    assert "ignore_failures" not in str(caught.value), "who said no is not advised to do it"
    result = run_lines(tmp_path, ROWS, [picky], ignore_failures=True)
    assert [row["id"] for row in read_rows(tmp_path / "out")] == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert result.report.stages[1].quarantined == {"RuntimeError": 1}


@only_in_one_process
def test_batches_reach_process_batch_together(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Together(ProcessingStage[DocumentBatch, DocumentBatch]):
        name = "together"
        batch_size = 4

        def process(self, task: DocumentBatch) -> DocumentBatch:
            raise AssertionError("process_batch is there")

        def process_batch(self, tasks: list[DocumentBatch]) -> list[DocumentBatch]:
            sizes.append(len(tasks))
            frame = pd.concat([task.to_pandas() for task in tasks], ignore_index=True)
            return [DocumentBatch(data=frame[frame["id"] != 1])]

    for number in range(6):
        write_lines(tmp_path / "in" / f"{number}.jsonl", [{"id": number, "text": "x"}])
    result = _pipeline(tmp_path, Together()).run(executor=here())
    assert max(sizes) > 1
    assert [row["id"] for row in read_rows(tmp_path / "out")] == [0, 2, 3, 4, 5]
    assert result.report.stages[1].untracked == 0
    verify(str(tmp_path / "out")).raise_for_problems()


# --- what is shown ---


def test_a_script_without_a_terminal_sees_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Model(Longer):
        name = "model"
        resources = Resources(gpus=1)
        runs_without_gpu = True

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    write_lines(tmp_path / "in" / "0.jsonl", [{"id": 1, "text": "xx"}])
    _pipeline(tmp_path, Model(2)).run(executor=here())
    shown = capsys.readouterr().err.splitlines()
    assert shown[1] == "No GPU found: model will run on the CPU."
    assert shown[-1].split(":")[0].endswith(" done")
    _pipeline(tmp_path, Model(2)).run(executor=here(), fresh=True, progress=False)
    assert capsys.readouterr().err == ""


# --- tasks by hand, other kinds of tasks, custom sources ---


@pytest.mark.parametrize("kind", ["pandas", "polars", "arrow"])
def test_initial_tasks_without_a_writer(kind: str) -> None:
    table = pa.table({"id": [1, 2], "text": ["a", "bb"]})
    data = {"pandas": table.to_pandas(), "polars": pl.from_arrow(table), "arrow": table}[kind]
    tasks = Pipeline("job", stages=[Longer(2)]).run(executor=here(), initial_tasks=[DocumentBatch(data=data)] * 2)
    assert [task.to_pyarrow().to_pylist() for task in tasks] == [[{"id": 2, "text": "bb"}]] * 2
    assert tasks.report.dropped == 2
    assert tasks.report.rows_read == 4
    assert [task.task_id for task in tasks] == ["task-00000", "task-00001"]
    assert [stats.stage_name for stats in tasks[0]._stage_perf] == ["longer"]


@pytest.mark.parametrize("writer", [JsonlWriter, ParquetWriter])
def test_initial_tasks_with_a_writer(tmp_path: Path, writer: Any) -> None:
    frame = pd.DataFrame({"id": [1, 2], "text": ["a", "bb"]}, index=[7, 9])
    pipeline = Pipeline("job", stages=[Longer(2), writer(str(tmp_path / "out"))])
    result = pipeline.run(executor=here(), initial_tasks=[DocumentBatch(data=frame)])
    assert len(result) == 1
    assert isinstance(result[0], FileGroupTask)
    assert len(result[0].data) == 1
    verify(str(tmp_path / "out")).raise_for_problems()
    assert list(frame.index) == [7, 9]


def test_other_initial_tasks_are_not_mistaken_for_the_same(tmp_path: Path) -> None:
    pipeline = Pipeline("job", stages=[Longer(0), JsonlWriter(str(tmp_path / "out"))])
    pipeline.run(executor=here(), initial_tasks=[DocumentBatch(data=pa.table({"text": ["one"]}))])
    pipeline.run(executor=here(), initial_tasks=[DocumentBatch(data=pa.table({"text": ["two"]}))])
    assert read_rows(tmp_path / "out") == [{"text": "two"}]


class Numbers(ProcessingStage[EmptyTask, DocumentBatch]):
    """A source of its own."""

    name = "numbers"

    def process(self, task: EmptyTask) -> list[DocumentBatch]:
        return [DocumentBatch(data=pd.DataFrame({"n": [number, number + 1], "text": ["a", "b"]})) for number in (0, 2)]


class Stream(Numbers):
    name = "stream"

    def process(self, task: EmptyTask) -> Iterator[DocumentBatch]:  # type: ignore[override]
        yield from super().process(task)


@pytest.mark.parametrize("source", [Numbers, Stream])
def test_a_custom_source_gives_documents(tmp_path: Path, source: Any) -> None:
    pipeline = Pipeline("job", stages=[source(), Modify(str.upper), JsonlWriter(str(tmp_path / "out"))])
    result = pipeline.run(executor=here())
    assert read_rows(tmp_path / "out") == [{"n": n, "text": "AB"[n % 2]} for n in range(4)]
    assert result.report.rows_read == 4
    verify(str(tmp_path / "out")).raise_for_problems()
    tasks = Pipeline("job", stages=[source(), Modify(str.upper)]).run(executor=here())
    assert sum(task.num_items for task in tasks) == 4


class Word(Task[str]):
    """A task that is not a batch of documents."""

    @property
    def num_items(self) -> int:
        return 1


def test_tasks_of_other_kinds_pass(tmp_path: Path) -> None:
    class Shout(ProcessingStage[Word, Word]):
        name = "shout"

        def process(self, task: Word) -> Word:
            return Word(data=task.data.upper())

    class Spell(ProcessingStage[Word, DocumentBatch]):
        name = "spell"

        def process(self, task: Word) -> DocumentBatch:
            return DocumentBatch(data=pa.table({"text": list(task.data)}))

    words = [Word(data="ab"), Word(data="c")]
    assert [task.data for task in Pipeline("w", stages=[Shout()]).run(executor=here(), initial_tasks=words)] == [
        "AB",
        "C",
    ]
    pipeline = Pipeline("w", stages=[Shout(), Spell(), JsonlWriter(str(tmp_path / "out"))])
    pipeline.run(executor=here(), initial_tasks=words)
    assert [row["text"] for row in read_rows(tmp_path / "out")] == ["A", "B", "C"]
    verify(str(tmp_path / "out")).raise_for_problems()


def test_initial_tasks_must_be_tasks() -> None:
    with pytest.raises(ValueError, match="DataFrame"):
        Pipeline("job", stages=[Longer()]).run(executor=here(), initial_tasks=[pd.DataFrame()])  # type: ignore[list-item]


# --- going on where a run stopped ---


def test_a_second_run_does_nothing_and_a_lost_entry_is_redone(tmp_path: Path) -> None:
    _three_files(tmp_path)
    pipeline = _pipeline(tmp_path, Longer(2))
    first = pipeline.run(executor=here())
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jsonl")}
    assert pipeline.run(executor=here()).report.partitions_done_before == 3
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jsonl")} == before
    next((tmp_path / "out.gristmill" / "manifest").glob("1*")).unlink()
    third = pipeline.run(executor=here())
    assert third.report.partitions_done_before == 2
    assert third.report.rows_written == first.report.rows_written == 2
    verify(str(tmp_path / "out")).raise_for_problems()


def test_a_changed_input_is_redone(tmp_path: Path) -> None:
    _three_files(tmp_path)
    pipeline = _pipeline(tmp_path)
    pipeline.run(executor=here())
    write_lines(tmp_path / "in" / "1.jsonl", [{"id": 9, "text": "new"}, {"id": 10, "text": "new"}])
    result = pipeline.run(executor=here())
    assert result.report.partitions_done_before == 2
    assert result.report.rows_written == 4
    assert [row["id"] for row in read_rows(tmp_path / "out")] == [0, 9, 10, 2]
    verify(str(tmp_path / "out")).raise_for_problems()


def test_an_input_that_vanished_is_reported(tmp_path: Path) -> None:
    _three_files(tmp_path)
    _pipeline(tmp_path).run(executor=here())
    (tmp_path / "in" / "1.jsonl").unlink()
    with pytest.raises(ResumeError, match="no longer exist"):
        _pipeline(tmp_path).run(executor=here())
    assert _pipeline(tmp_path).run(executor=here(), fresh=True).report.rows_written == 2
    verify(str(tmp_path / "out")).raise_for_problems()


def test_a_changed_parameter_is_named(tmp_path: Path) -> None:
    _three_files(tmp_path)
    _pipeline(tmp_path, Longer(1)).run(executor=here())
    with pytest.raises(ResumeError, match=r"'longer': parameter least changed from 1 to 2"):
        _pipeline(tmp_path, Longer(2)).run(executor=here())
    assert len(read_lines(tmp_path / "out")) == 3
    assert _pipeline(tmp_path, Longer(2)).run(executor=here(), fresh=True).report.rows_written == 2


def test_changed_code_of_a_function_is_noticed(tmp_path: Path) -> None:
    def stage(words: str) -> Any:
        @processing_stage(name="mark")
        def mark(batch: DocumentBatch) -> DocumentBatch:
            return DocumentBatch(data=batch.to_pandas().assign(mark=words))

        return mark

    _three_files(tmp_path)
    _pipeline(tmp_path, stage("one")).run(executor=here())
    assert _pipeline(tmp_path, stage("one")).run(executor=here()).report.partitions_done_before == 3
    with pytest.raises(ResumeError, match="'mark'"):
        _pipeline(tmp_path, stage("two")).run(executor=here())


def test_settings_that_do_not_change_the_output_do_not_matter(tmp_path: Path) -> None:
    _three_files(tmp_path)
    _pipeline(tmp_path, Longer(1)).run(executor=here())
    again = _pipeline(tmp_path, Longer(1).with_(batch_size=4, num_workers=2)).run(executor=here())
    assert again.report.partitions_done_before == 3


def test_modes_of_the_writer(tmp_path: Path) -> None:
    _three_files(tmp_path)
    _pipeline(tmp_path).run(executor=here())
    (tmp_path / "out" / "mine.txt").write_text("keep me")
    with pytest.raises(OutputError, match="mode='error'"):
        _pipeline(tmp_path, mode="error").run(executor=here())
    result = _pipeline(tmp_path, Longer(2), mode="overwrite").run(executor=here())
    assert result.report.partitions_done_before == 0
    assert len(read_lines(tmp_path / "out")) == 2
    assert (tmp_path / "out" / "mine.txt").read_text() == "keep me"
    with pytest.raises(UsageError, match="ignore"):
        JsonlWriter(str(tmp_path), mode="append")  # type: ignore[arg-type]


@only_in_one_process
def test_a_run_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    _three_files(tmp_path)
    calls: list[int] = []

    @processing_stage(name="interrupt")
    def interrupt(batch: DocumentBatch) -> DocumentBatch:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return batch

    with pytest.raises(KeyboardInterrupt):
        _pipeline(tmp_path, interrupt).run(executor=here())
    assert run_json(tmp_path / "out")["status"] == "interrupted"
    assert len(read_lines(tmp_path / "out")) == 1


def test_checkpoint_path_is_accepted(tmp_path: Path) -> None:
    _three_files(tmp_path)
    result = _pipeline(tmp_path).run(executor=here(), checkpoint_path=str(tmp_path / "check"))
    assert result.report.rows_written == 3


# --- the record ---


def test_run_json_tells_what_happened(tmp_path: Path) -> None:
    lines = [*(json.dumps(row) for row in ROWS), "{bad"]
    run_lines(tmp_path, lines, [Longer(99), Modify(str.upper)])
    record = run_json(tmp_path / "out")
    assert record["status"] == "done"
    assert record["error"] is None
    for key in ("wall_seconds", "time_to_first_output_seconds", "peak_memory_bytes"):
        assert record[key] is None or record[key] >= 0, key
    assert record["peak_memory_bytes"] > 1e6
    assert record["wall_seconds"] > 0
    assert (record["rows_read"], record["rows_written"], record["rows_dropped"], record["rows_quarantined"]) == (
        11,
        0,
        10,
        1,
    )
    stages = {stage["stage"]: stage for stage in record["stages"]}
    assert next(iter(stages)) == "jsonl_reader"
    assert list(stages)[-1] == "jsonl_writer"
    reader, longer = stages["jsonl_reader"], stages["longer"]
    assert reader["created"] == 11
    assert reader["rows_out"] == 10
    assert reader["quarantined"] == {"malformed_json": 1}
    assert longer["rows_in"] == 10
    assert longer["dropped"] == {"longer": 10}
    assert longer["rows_out"] == 0
    for stage in stages.values():
        assert stage["rows_in"] + stage["created"] == stage["rows_out"] + sum(stage["dropped"].values()) + sum(
            stage["quarantined"].values()
        )
        for key in ("bytes_in", "bytes_out", "busy_seconds", "workers", "calls"):
            assert stage[key] >= 0, key
    assert longer["bytes_in"] > 0
    assert longer["workers"] == 1
    assert longer["busy_seconds"] > 0
    verify(str(tmp_path / "out")).raise_for_problems()


def test_the_report_says_it_in_words(tmp_path: Path) -> None:
    report = run_lines(tmp_path, [*ROWS, "{bad"], [Longer(99)]).report
    text = str(report)
    for words in (
        "11 documents read, 0 kept, 1 quarantined",
        "10 dropped by longer",
        "malformed_json",
        str(tmp_path / "out"),
    ):
        assert words in text, text


def test_events_come_in_order(tmp_path: Path) -> None:
    seen: list[Any] = []
    run_lines(tmp_path, ROWS, [Longer(99)], listeners=[seen.append])
    kinds = [type(event) for event in seen]
    assert kinds[0] is RunStarted
    assert kinds[-1] is RunFinished
    assert kinds.index(TaskFinished) < kinds.index(RunFinished)
    assert PartitionCommitted in kinds


def test_rows_that_do_not_add_up_fail_the_run(tmp_path: Path) -> None:
    class Liar(ProcessingStage[DocumentBatch, DocumentBatch]):
        name = "liar"

        def process(self, task: DocumentBatch) -> DocumentBatch:
            import numpy as np

            task.drop(np.ones(task.num_items, bool), reason="said_so")
            return task

    with pytest.raises((ConservationError, StageFailedError), match="Use the batch that drop"):
        run_lines(tmp_path, ROWS, [Liar()])
    assert run_json(tmp_path / "out")["status"] == "failed"
    assert read_lines(tmp_path / "out") == []


@only_in_one_process
def test_rows_lost_between_stages_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.execution.partition_output import PartitionOutput

    append = PartitionOutput.append
    monkeypatch.setattr(
        PartitionOutput, "append", lambda self, batch: append(self, batch.slice(0, batch.num_items - 1))
    )
    with pytest.raises(ConservationError):
        run_lines(tmp_path, ROWS)
    assert run_json(tmp_path / "out")["status"] == "failed"


@only_in_one_process
def test_a_full_disk_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gristmill.execution.partition_output import PartitionOutput

    def full(self: Any, batch: Any) -> int:
        raise OSError(28, os.strerror(28), "somewhere")

    monkeypatch.setattr(PartitionOutput, "append", full)
    with pytest.raises(OutputError, match="disk is full"):
        run_lines(tmp_path, ROWS)


@only_in_one_process
def test_setup_and_teardown_are_called_once_also_after_an_error(tmp_path: Path) -> None:
    calls: list[str] = []

    class Careful(Longer):
        name = "careful"

        def setup_on_node(self, node_info: Any = None, worker_metadata: Any = None) -> None:
            calls.append("node")

        def setup(self, worker_metadata: Any = None) -> None:
            calls.append("setup")

        def process(self, task: DocumentBatch) -> DocumentBatch:
            if self.least < 0:
                raise RuntimeError("no")
            return super().process(task)

        def teardown(self) -> None:
            calls.append("teardown")

    class NoCopy(Careful):
        name = "no_copy"

    _three_files(tmp_path)
    _pipeline(tmp_path, Careful()).run(executor=here())
    assert calls == ["node", "setup", "teardown"]
    calls.clear()
    with pytest.raises(StageFailedError):
        _pipeline(tmp_path, NoCopy(-1)).run(executor=here(), fresh=True)
    assert calls == ["node", "setup", "teardown"]


def test_an_error_of_teardown_is_not_swallowed(tmp_path: Path) -> None:
    class Sloppy(Longer):
        name = "sloppy"

        def teardown(self) -> None:
            raise RuntimeError("left the lights on")

    _three_files(tmp_path)
    with pytest.raises(StageFailedError, match="left the lights on"):
        _pipeline(tmp_path, Sloppy()).run(executor=here())


def _text_and_number(kind: str) -> Any:
    """A stage of a user that changes the text of even rows and drops the last one."""

    @processing_stage(name=kind)
    def stage(batch: DocumentBatch) -> DocumentBatch:
        if kind == "pandas":
            frame = batch.to_pandas()
            frame["text"] = [text + "!?" if int(text[5:]) % 2 == 0 else text for text in frame["text"]]
            return DocumentBatch(data=frame[frame["n"] != 9])
        if kind == "polars":
            frame = batch.to_polars().filter(pl.col("n") != 9)
            even = pl.col("n") % 2 == 0
            return DocumentBatch(data=frame.with_columns(pl.when(even).then(pl.col("text") + "!?").otherwise("text")))
        texts = [text + "!?" if int(text[5:]) % 2 == 0 else text for text in batch.column("text").to_pylist()]
        changed = batch.with_column("text", pa.array(texts, pa.large_string()))
        return changed.take([row for row in range(batch.num_items) if row != 9])

    return stage


@pytest.mark.parametrize("kind", ["pandas", "polars", "methods"])
@pytest.mark.parametrize("reader", [JsonlReader, ParquetReader])
def test_changes_of_text_by_user_code_are_in_the_report_and_the_ledger(tmp_path: Path, kind: str, reader: Any) -> None:
    rows = [{"id": f"d{row}", "n": row, "text": f"text {row}"} for row in range(10)]
    write_lines(tmp_path / "in" / "a.jsonl", rows)
    source = tmp_path / "in"
    if reader is ParquetReader:
        source = tmp_path / "in.parquet"
        pq.write_table(pa.Table.from_pylist(rows), source)
    writer = JsonlWriter(str(tmp_path / "out"))
    stages = [reader(str(source)), _text_and_number(kind), writer]
    report = Pipeline("job", stages=stages).run(executor=here()).report
    assert (report.stages[1].changed, report.dropped) == (5, 1)
    assert verify(str(tmp_path / "out")).ok
    ledger = Ledger(str(tmp_path / "out"))
    changes = ledger.why("d4").documents[0].changes
    assert [(change.stage, change.field, change.characters) for change in changes] == [(kind, "text", 2)]
    assert ledger.why("d5").documents[0].changes == []


def _counting(name: str, work: Any) -> Any:
    @processing_stage(name=name)
    def stage(batch: DocumentBatch) -> DocumentBatch:
        return DocumentBatch(data=work(batch.to_pandas()))

    return stage


def test_only_a_stage_that_really_does_nothing_is_called_without_effect(tmp_path: Path) -> None:
    rows = [{"id": f"d{row}", "n": row, "text": f"text {row}"} for row in range(10_000)]
    stages = [
        _counting("texts", lambda frame: frame.assign(text=frame["text"].str.upper())),
        _counting("numbers", lambda frame: frame.assign(n=frame["n"] + 1)),
        _counting("adds", lambda frame: frame.assign(more=1)),
        _counting("removes", lambda frame: frame.drop(columns="more")),
        _counting("idle", lambda frame: frame),
        AddId("own_id"),
    ]
    report = run_lines(tmp_path, rows, stages).report
    assert [alarm.split("'")[1] for alarm in report.alarms] == ["idle"]
    changed = {stage.name: stage.changed for stage in report.stages}
    assert (changed["texts"], changed["numbers"], changed["idle"]) == (10_000, 0, 0)


def test_kernels_that_are_compiled_are_announced() -> None:
    seen: list[Any] = []
    plan = ExecutionPlan("nothing", (), RunSettings(), ())
    with announced_compilation(EventStream([seen.append]), plan):
        for name in ("words", "lines"):
            for listener in compile_listeners:
                listener(name)
    assert [type(event) for event in seen] == [Notice, KernelCompiling, KernelCompiling]
    assert [event.name for event in seen[1:]] == ["words", "lines"]
    assert compile_listeners == []


def test_a_later_run_without_a_profile_removes_the_earlier_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "in.jsonl", ROWS)
    pipeline = Pipeline("copy", stages=[JsonlReader(str(tmp_path / "in.jsonl")), JsonlWriter(str(tmp_path / "out"))])
    pipeline.run(here(), progress=False, profile=True)
    assert len(list((tmp_path / "out.gristmill").glob("profile.*"))) == 2
    pipeline.run(here(), progress=False)
    assert not list((tmp_path / "out.gristmill").glob("profile.*"))
