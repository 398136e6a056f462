"""What every executor must do. Subclass `ExecutorSuite`, give `make_executor`, and all of it is tested.

class TestMine(ExecutorSuite):
    def make_executor(self, **config):
        return MyExecutor(config=config)
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import textwrap
from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import pytest

from gristmill.backends.base import BaseExecutor
from gristmill.backends.plan import ExecutionPlan
from gristmill.errors import ResourcesError, StageFailedError, StageResultError, UnknownNameError
from gristmill.execution.driver import Work
from gristmill.execution.in_process import run_in_process
from gristmill.ledger import Ledger
from gristmill.ledger.performance import TaskPerfUtils
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import RunFolder
from gristmill.ledger.record.run_record import read_run
from gristmill.observe.events import PartitionCommitted, WorkerStopped
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.resources import Resources
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from tests.contract import stages
from tests.http_server import web_server
from tests.integration import download_job
from tests.outputs import contents_of

FILES, ROWS = 4, 40


class InProcess(BaseExecutor):
    """The plainest executor, whose results the others must reproduce."""

    name = "in_process"

    def capacity(self) -> Any:
        from gristmill.backends.base import Capacity

        return Capacity(1, 0, 1, 0)

    def execute(self, plan: ExecutionPlan, work: Work) -> None:
        run_in_process(plan, work)


def make_input(folder: Path, *, files: int = FILES, rows: int = ROWS) -> Path:
    """JSONL files whose documents carry a running number."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in range(files):
        lines = [
            json.dumps(
                {"id": f"{file}-{row}", "n": file * rows + row, "text": f"text {file} {row} äß"}, ensure_ascii=False
            )
            for row in range(rows)
        ]
        (folder / f"part-{file}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def contents(output: Path) -> dict[str, bytes]:
    """Every file that must be the same on every executor: data, ledger, index and quarantine."""
    found = contents_of(output, without=("run.json", "report.html"))
    return {name: data for name, data in found.items() if not name.startswith("record/manifest/")}


def _stage_record(output: Path, stage: str) -> dict[str, Any]:
    """What the record of the last run says about a stage."""
    record = read_run(RunFolder(str(output)))
    assert record is not None
    return next(found for found in record["stages"] if found["stage"] == stage)


class ExecutorSuite:
    """The contract of an executor as tests."""

    survives_death: ClassVar[bool] = True
    """Whether the death of a worker process is survived (nothing can be done in the calling process)."""
    finds_poison: ClassVar[bool] = True
    """Whether the test may take the time to find a document that kills every worker."""
    in_other_processes: ClassVar[bool] = True
    """Whether stages run in other processes than the caller's."""
    settings: ClassVar[dict[str, Any]] = {}
    """Settings that every executor of this suite gets."""

    @abstractmethod
    def make_executor(self, **config: Any) -> BaseExecutor:
        """A new executor with the given settings."""

    def environment(self) -> dict[str, str]:
        """Variables for a script that uses this executor by name."""
        return {}

    # --- helpers ---

    @pytest.fixture
    def source(self, tmp_path: Path) -> Path:
        return make_input(tmp_path / "in")

    @pytest.fixture
    def notes(self, tmp_path: Path) -> Path:
        folder = tmp_path / "notes"
        folder.mkdir()
        return folder

    def run(
        self,
        source: Path,
        middle: list[ProcessingStage[Any, Any]],
        output: Path | None,
        *,
        on: BaseExecutor | None = None,
        **options: Any,
    ) -> Any:
        pipeline = Pipeline(name="contract")
        pipeline.add_stage(JsonlReader(str(source), files_per_partition=1))
        for stage in middle:
            pipeline.add_stage(stage)
        if output is not None:
            pipeline.add_stage(JsonlWriter(str(output)))
        return pipeline.run(executor=on or self.make_executor(**self.settings), **options)

    # --- results ---

    def test_same_files_as_in_process(
        self, source: Path, tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Several segments; data, ledger and index are the same bytes, every row is accounted for, hooks are called.

        Without a terminal, lines of progress come as often as `logging_interval` says.
        """
        here, there = tmp_path / "here", tmp_path / "there"

        def middle(folder: Path) -> list[ProcessingStage[Any, Any]]:
            return [stages.Tidy(), stages.Stream(), stages.Recorded(folder)]

        other = tmp_path / "other-notes"
        other.mkdir()
        self.run(source, middle(other), here, on=InProcess(), progress=False)
        events: list[Any] = []
        executor = self.make_executor(**self.settings, logging_interval=0.001)
        result = self.run(source, middle(notes), there, on=executor, listeners=[events.append])
        shown = capsys.readouterr().err.splitlines()
        assert shown[0].startswith("contract: 6 stages, 4 partitions"), shown
        assert [line for line in shown[1:-1] if "/4 partitions" in line], shown
        assert shown[-1].startswith("contract done: 4/4 partitions"), shown
        expected, found = contents(here), contents(there)
        # The plan names the folder that the stage writes its notes to.
        expected.pop("record/plan.json"), found.pop("record/plan.json")
        assert expected == found
        assert any(name.endswith(".jsonl") for name in found)
        report = verify(str(there))
        assert report.ok, report
        by_name = {stage.name: stage for stage in result.report.stages}
        assert (by_name["third"].rows_in, by_name["third"].rows_out) == (FILES * ROWS, result.report.rows_written)
        for stage in result.report.stages:
            gone = sum(stage.dropped.values()) + sum(stage.quarantined.values())
            assert stage.rows_in + stage.created == stage.rows_out + gone, stage
        spent = TaskPerfUtils.collect_stage_metrics(result)
        assert len(spent["recorded"]["process_time"]) == FILES
        assert sum(spent["recorded"]["num_items_processed"]) == by_name["recorded"].rows_in
        assert len([event for event in events if isinstance(event, PartitionCommitted)]) == FILES
        assert not [event for event in events if isinstance(event, WorkerStopped) and not event.expected]
        calls = [path.name.split(".")[:2] for path in notes.iterdir()]
        assert [what for what, _ in calls].count("node") == 1
        set_up = sorted(pid for what, pid in calls if what == "setup")
        assert set_up == sorted(pid for what, pid in calls if what == "teardown")
        assert set_up
        again = self.run(source, middle(notes), there)
        assert again.report.partitions_done_before == FILES
        assert len(again) == FILES
        assert not TaskPerfUtils.collect_stage_metrics(again)

    def test_whole_partitions(self, source: Path, tmp_path: Path) -> None:
        """One segment from reading to commit, with an empty file, a JSON array and a batch of which nothing is left."""
        (source / "part-9.jsonl").write_bytes(b"")
        elements = [json.loads(line) for line in (source / "part-2.jsonl").read_text().splitlines()]
        (source / "part-2.json").write_text(json.dumps([*elements, "no record"], indent=2))
        (source / "notes.txt").write_text("not read")
        self.run(source, [stages.Shout(), stages.Split()], tmp_path / "here", on=InProcess())
        result = self.run(source, [stages.Shout(), stages.Split()], tmp_path / "there")
        found = contents(tmp_path / "there")
        assert contents(tmp_path / "here") == found
        lines, array = (found[name].splitlines() for name in ("part-2.jsonl", "part-2~json.jsonl"))
        assert list(map(json.loads, array)) == list(map(json.loads, lines))
        assert result.report.quarantined == 1
        assert {reason: total["files"] for reason, total in result.report.left_out.items()} == {
            "extension": 1,
            "empty": 1,
        }

    @pytest.mark.parametrize("salvage", [False, True])
    @pytest.mark.parametrize("segments", ["one", "several"])
    def test_damaged_archive(self, source: Path, tmp_path: Path, segments: str, salvage: bool) -> None:
        """Damage that shows when documents of the file were written: only this file goes, on every executor alike."""
        lines = b"".join((source / f"part-{number}.jsonl").read_bytes() for number in range(FILES))
        packed = bytearray(gzip.compress(lines, mtime=0))
        packed[-8] ^= 1  # the checksum
        (source / "part-1.jsonl").unlink()
        (source / "part-1.jsonl.gz").write_bytes(packed)

        def run(output: Path, on: BaseExecutor) -> Any:
            middle = (
                [stages.Shout()]
                if segments == "one"
                else [stages.Shout(), stages.Stream().with_(resources=Resources(cpus=0.5))]
            )
            reader = JsonlReader(str(source), files_per_partition=2, read_kwargs={"batch_bytes": 512})
            pipeline = Pipeline("contract", stages=[reader, *middle, JsonlWriter(str(output))])
            return pipeline.run(executor=on, error_budget=None, salvage=salvage)

        run(tmp_path / "here", InProcess())
        result = run(tmp_path / "there", self.make_executor(**self.settings))
        assert contents(tmp_path / "here") == contents(tmp_path / "there")
        assert result.report.quarantined == 1
        assert result.report.rows_written == (FILES - 1) * ROWS + salvage * FILES * ROWS
        assert "part-1.jsonl.gz is damaged" in str(result.report)
        report = verify(str(tmp_path / "there"))
        assert not report.ok
        assert not report.problems
        assert "part-1.jsonl.gz" in report.damaged[0]
        again = run(tmp_path / "there", self.make_executor(**self.settings))
        assert again.report.partitions_done_before == again.report.partitions

    def test_tasks_come_back_in_order(self, source: Path) -> None:
        result = self.run(source, [stages.Split(), stages.DropEveryThird()], None)
        numbers = [number for task in result for number in task.column("n").to_pylist()]
        assert numbers == [number for number in range(FILES * ROWS) if number % 3]
        assert len(result) == 2 * FILES

    def test_nothing_left(self, source: Path, tmp_path: Path) -> None:
        result = self.run(source, [stages.DropEveryThird(), stages.DropAll()], tmp_path / "out")
        assert result.report.rows_written == 0
        assert verify(str(tmp_path / "out")).ok

    def test_batch_size(self, source: Path, notes: Path) -> None:
        """A stage that defines `process_batch` gets up to `batch_size` tasks per call, also where that is one."""
        single = stages.TakesMany(notes).with_(name="single", batch_size=1)
        result = self.run(source, [stages.DropEveryThird(), stages.Stream(), stages.TakesMany(notes), single], None)
        calls = [path.name.split(".")[:2] for path in notes.iterdir()]
        assert max(int(size) for name, size in calls if name == "many") == 3
        assert {size for name, size in calls if name == "single"} == {"1"}
        assert sum(task.num_items for task in result) == len([n for n in range(FILES * ROWS) if n % 3])

    def test_idle_time(self, tmp_path: Path) -> None:
        """Every call but the first of a worker says how long the worker had waited for its input."""
        source = make_input(tmp_path / "in", files=8)
        waits = stages.Shout().with_(name="waits", num_workers=1, resources=Resources(cpus=0.5))
        result = self.run(source, [stages.Sleeps(0.02), waits], None)
        idle = [perf.actor_idle_time for task in result for perf in task._stage_perf if perf.stage_name == "waits"]
        assert len(idle) == 8
        assert min(idle) == 0.0
        assert 0.0 < sum(idle) < result.report.seconds

    def test_documents_that_are_something_else_in_between(self, source: Path, tmp_path: Path, notes: Path) -> None:
        """Documents become files and documents again; the first end there, the others are new."""

        def middle() -> list[ProcessingStage[Any, Any]]:
            put = stages.PutAway(notes, drop=9)
            return [put, stages.Untouched(), stages.TakeOut(without=(2,), add=True), stages.DropEveryThird()]

        self.run(source, middle(), tmp_path / "here", on=InProcess())
        result = self.run(source, middle(), tmp_path / "there")
        assert contents(tmp_path / "here") == contents(tmp_path / "there")
        report = verify(str(tmp_path / "there"))
        assert report.ok, report
        by_name = {stage.name: stage for stage in result.report.stages}
        tenth = FILES * ROWS // 10
        assert by_name["put_away"].dropped == {"unwanted": tenth, "converted": 9 * tenth}
        assert (by_name["untouched"].rows_in, by_name["untouched"].rows_out) == (0, 0)
        back = by_name["take_out"]
        assert (back.rows_in, back.created, back.rows_out) == (0, 8 * tenth + FILES, 8 * tenth + FILES)
        assert back.dropped == {}
        ledger = Ledger(str(tmp_path / "there"))
        assert ledger.why("1-2").documents[0].decisions[0].reason == "converted"
        assert ledger.why("1-9").documents[0].decisions[0].reason == "unwanted"
        assert self.run(source, middle(), tmp_path / "there").report.partitions_done_before == FILES

    def test_failed_task(self, source: Path, tmp_path: Path, notes: Path) -> None:
        """A partition for which a stage returned a FailedTask is left for the next run; the others are committed."""
        out = tmp_path / "out"
        middle = [stages.DropEveryThird(), stages.FailsOnce(notes, 50)]
        with pytest.raises(StageFailedError, match="'fails_once' returned a FailedTask for part-1") as caught:
            self.run(source, middle, out)
        assert caught.value.partitions == ["part-1"]
        assert _stage_record(out, "fails_once")["failures"] == 1
        assert sorted(path.name for path in out.glob("*.jsonl")) == ["part-0.jsonl", "part-2.jsonl", "part-3.jsonl"]
        (notes / "mended").touch()
        again = self.run(source, middle, out)
        assert again.report.partitions_done_before == FILES - 1
        assert verify(str(out)).ok
        self.run(source, middle, tmp_path / "here", on=InProcess())
        assert contents(out) == contents(tmp_path / "here")

    def test_downloads(self, tmp_path: Path) -> None:
        """URLs are partitions like any other; one that does not exist is a record in quarantine."""
        with web_server() as web:
            urls = [f"{web.url}/{name}.gz" for name in ("a", "b", "none", "c")]
            for number, url in enumerate(urls):
                if "none" not in url:
                    lines = [f"{number} {row}" for row in range(ROWS)]
                    web.files[url.removeprefix(web.url)] = gzip.compress("\n".join(lines).encode())
            for name, on in (("here", InProcess()), ("there", self.make_executor())):
                pipeline = download_job.pipeline(str(tmp_path / name), urls)
                report = pipeline.run(on, progress=False).report
                assert (report.rows_written, report.quarantined) == (3 * ROWS, 1)
        assert contents(tmp_path / "here/out") == contents(tmp_path / "there/out")
        assert verify(str(tmp_path / "there/out")).ok

    # --- failures ---

    def test_failing_stage(self, source: Path, tmp_path: Path) -> None:
        with pytest.raises(StageFailedError) as caught:
            self.run(source, [stages.DropEveryThird(), stages.Fails((50,))], tmp_path / "out")
        error = caught.value
        assert error.stage == "fails"
        assert error.row == 50 - ROWS
        assert str(error.file).endswith("part-1.jsonl")
        assert "_look_at" in error.traceback
        assert "no entry for document 50" in str(error)
        assert "RayTaskError" not in str(error)

    @pytest.mark.parametrize("listed", [False, True])
    def test_wrong_result(self, source: Path, tmp_path: Path, listed: bool) -> None:
        """The stage causes the failure, so no document is named, and none can be quarantined instead."""
        with pytest.raises(StageResultError) as caught:
            self.run(source, [stages.GivesTables(listed=listed)], tmp_path / "out", ignore_failures=listed)
        error = caught.value
        assert (error.stage, error.file, error.row) == ("tables", None, None)
        assert error.returned == ("a list with a pyarrow.Table in it" if listed else "a pyarrow.Table")
        assert "it must return a task (such as a DocumentBatch), a list or an iterator of tasks, or None" in str(error)
        assert "DocumentBatch(data=…)" in str(error)
        assert " row " not in str(error)
        assert "ignore_failures" not in str(error)
        assert not list((tmp_path / "out").glob("*.jsonl"))

    def test_failing_setup(self, source: Path) -> None:
        with pytest.raises(StageFailedError, match=r"unready.*setup.*the weights are not there"):
            self.run(source, [stages.SetupFails()], None)

    def test_ignored_failures(self, source: Path, tmp_path: Path) -> None:
        middle = [stages.DropEveryThird(), stages.Fails((50, 110))]
        self.run(source, middle, tmp_path / "here", on=InProcess(), ignore_failures=True)
        result = self.run(source, middle, tmp_path / "there", ignore_failures=True)
        assert result.report.quarantined == 2
        assert contents(tmp_path / "here") == contents(tmp_path / "there")

    def test_dying_worker(self, source: Path, tmp_path: Path, notes: Path) -> None:
        if not self.survives_death:
            pytest.skip("the calling process would die")
        middle = [stages.DropEveryThird(), stages.Dies(notes, number=50, always=False)]
        (notes / "death-0").touch()
        self.run(source, middle, tmp_path / "here", on=InProcess())
        (notes / "death-0").unlink()
        self.run(source, middle, tmp_path / "there")
        assert len(list(notes.glob("death-*"))) == 1
        assert contents(tmp_path / "here") == contents(tmp_path / "there")
        # Not every executor can tell both.
        told = _stage_record(tmp_path / "there", "dies")
        assert told["crashes"] + told["retries"] >= 1

    def test_poisonous_document(self, source: Path, tmp_path: Path, notes: Path) -> None:
        if not (self.survives_death and self.finds_poison):
            pytest.skip("needs many worker processes")
        middle = [stages.DropEveryThird(), stages.Dies(notes, number=50, always=True)]
        result = self.run(source, middle, tmp_path / "out")
        by_name = {stage.name: stage for stage in result.report.stages}
        assert sum(by_name["dies"].quarantined.values()) == 1
        assert result.report.rows_written == len([n for n in range(FILES * ROWS) if n % 3]) - 1
        lines = [line for path in (tmp_path / "out").glob("*.jsonl") for line in path.read_bytes().splitlines()]
        kept = {json.loads(line)["n"] for line in lines}
        assert 50 not in kept
        assert verify(str(tmp_path / "out")).ok

    # --- planning ---

    def test_impossible_request(self, source: Path) -> None:
        with pytest.raises(ResourcesError):
            self.run(source, [stages.Shout().with_(resources=Resources(cpus=4096))], None)

    def test_unknown_setting(self) -> None:
        with pytest.raises(UnknownNameError, match="Did you mean 'ignore_failures'"):
            self.make_executor(ignore_failure=True)

    # --- code ---

    def test_stage_of_the_main_script(self, source: Path, tmp_path: Path) -> None:
        """A script that defines its own stage, runs it by the executor's name, and needs no import path for it."""
        if not self.in_other_processes:
            pytest.skip("nothing is sent anywhere")
        script = tmp_path / "script.py"
        executor = self.make_executor(**self.settings)
        script.write_text(
            textwrap.dedent(f"""
            import sys
            from gristmill.backends.registry import get_executor
            from gristmill.pipeline import Pipeline
            from gristmill.stages.base import ProcessingStage
            from gristmill.stages.text.io.reader import JsonlReader
            from gristmill.stages.text.io.writer import JsonlWriter
            from gristmill.tasks import DocumentBatch

            SUFFIX = "!"

            def marked(text):
                return text + SUFFIX

            class Mark(ProcessingStage):
                name = "mark"

                def process(self, task):
                    frame = task.to_pandas()
                    return DocumentBatch(data=frame.assign(text=frame["text"].map(marked)))

            if __name__ == "__main__":
                pipeline = Pipeline("script", stages=[
                    JsonlReader(sys.argv[1], files_per_partition=1), Mark(), JsonlWriter(sys.argv[2])])
                executor = get_executor({executor.name!r}, {executor.config!r})
                print(pipeline.run(executor=executor).report.rows_written)
            """)
        )
        out = tmp_path / "out"
        done = subprocess.run(
            [sys.executable, str(script), str(source), str(out)],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **self.environment()},
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert done.stdout.split()[-1] == str(FILES * ROWS)
        first = json.loads((out / "part-0.jsonl").read_text(encoding="utf-8").splitlines()[0])
        assert first["text"] == "text 0 0 äß!"
