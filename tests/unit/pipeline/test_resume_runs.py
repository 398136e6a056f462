"""Running again: what is done is skipped, what changed is redone or refused, and the messages say what to do."""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gristmill.errors import OutputError, ResumeError, UsageError
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.manifest import Manifest
from gristmill.ledger.record.plan_record import plan_digest
from gristmill.observe.events import PartitionCommitted
from gristmill.pipeline import Pipeline
from gristmill.pipeline.describe import describe_plan
from gristmill.recipes.loader import find_recipe, load_recipe
from gristmill.stages.base import ProcessingStage
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import JsonlReader, JsonlWriter
from gristmill.stages.text.modifiers import Modify, UrlRemover
from gristmill.storage.atomic import AtomicFile
from gristmill.tasks import DocumentBatch
from tests.other_engine import only_in_one_process
from tests.outputs import files_of
from tests.unit.pipeline.jobs import here, read_lines, read_rows, run_json, write_lines


def _input(folder: Path, *, files: int = 3) -> None:
    for number in range(files):
        rows = [{"id": f"{number}-{row}", "text": "word " * row} for row in range(6)]
        write_lines(folder / "in" / f"{number}.jsonl", rows)


def _job(folder: Path, *stages: Any, limit: int | None = None, name: str = "job") -> Pipeline:
    reader = JsonlReader(str(folder / "in"), files_per_partition=1, limit=limit)
    middle = stages or (ScoreFilter(WordCountFilter(min_words=3)),)
    return Pipeline(name, stages=[reader, *middle, JsonlWriter(str(folder / "out"))])


def _committed(pipeline: Pipeline, **options: Any) -> list[str]:
    """The partitions that this run committed."""
    events: list[Any] = []
    pipeline.run(executor=here(), listeners=[events.append], **options)
    return [event.partition_id for event in events if isinstance(event, PartitionCommitted)]


def test_nothing_is_done_twice(tmp_path: Path) -> None:
    _input(tmp_path)
    assert _committed(_job(tmp_path)) == ["0", "1", "2"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jsonl")}
    assert _committed(_job(tmp_path)) == []
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jsonl")} == before
    assert run_json(tmp_path / "out")["partitions_done_before"] == 3
    verify(str(tmp_path / "out")).raise_for_problems()


def test_the_plan_tells_what_is_done_and_changes_nothing(tmp_path: Path) -> None:
    _input(tmp_path, files=2)
    assert "done;" not in _job(tmp_path).explain(here())
    _committed(_job(tmp_path))
    assert "2 of 2 partitions are done; nothing is left to run." in _job(tmp_path).explain(here())
    for name in ("2", "3"):
        write_lines(tmp_path / "in" / f"{name}.jsonl", [{"id": name, "text": "three words here"}])
    before = {path: path.stat().st_mtime_ns for path in files_of(tmp_path / "out").values()}
    shown = _job(tmp_path).explain(here()).splitlines()
    assert shown[-1] == "2 of 4 partitions are done; a run would process 2."
    assert {path: path.stat().st_mtime_ns for path in files_of(tmp_path / "out").values()} == before
    os.utime(tmp_path / "in" / "0.jsonl", (0, 0))
    (tmp_path / "out" / "1.jsonl").unlink()
    shown = _job(tmp_path).explain(here()).splitlines()
    assert shown[-2] == "0 of 4 partitions are done; a run would process 4."
    assert shown[-1] == "To be redone: 0 (0.jsonl was modified since), and 1 more."
    assert _committed(_job(tmp_path)) == ["0", "1", "2", "3"]
    (tmp_path / "out" / "1.jsonl").unlink()
    shown = _job(tmp_path).explain(here()).splitlines()
    assert shown[-1] == "To be redone: 1 (1.jsonl is missing from the output)."
    assert _committed(_job(tmp_path)) == ["1"]


def test_the_plan_says_why_a_run_would_refuse_as_the_run_does(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path), scores="all")

    def refused(pipeline: Pipeline, **options: Any) -> str:
        with pytest.raises((ResumeError, OutputError)) as caught:
            pipeline.run(executor=here(), **options)
        shown = pipeline.explain(here(), **options)
        assert shown.endswith(f"A run would refuse: {caught.value}")
        return shown

    other = ScoreFilter(WordCountFilter(min_words=4))
    assert "changed from 3 to 4" in refused(_job(tmp_path, other), scores="all")
    assert "scores changed" in refused(_job(tmp_path))
    assert "not among the 2 partitions" in refused(_job(tmp_path, limit=2), scores="all")
    stages = [JsonlReader(str(tmp_path / "in")), JsonlWriter(str(tmp_path / "out"), mode="error")]
    assert "mode='error'" in refused(Pipeline("job", stages=stages))
    inside = [JsonlReader(str(tmp_path / "in")), JsonlWriter(str(tmp_path / "in" / "out"))]
    assert "is inside the input folder" in refused(Pipeline("job", stages=inside))
    stages[1] = JsonlWriter(str(tmp_path / "out"), mode="overwrite")
    assert "refuse" not in Pipeline("job", stages=stages).explain(here())
    assert "3 of 3 partitions are done" in _job(tmp_path).explain(here(), scores="all")


def test_a_changed_input_is_done_again(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    write_lines(tmp_path / "in" / "1.jsonl", [{"id": "new", "text": "a new text here"}])
    assert _committed(_job(tmp_path)) == ["1"]
    assert [row["id"] for row in read_rows(tmp_path / "out")].count("new") == 1
    assert "1-4" not in [row["id"] for row in read_rows(tmp_path / "out")]
    verify(str(tmp_path / "out")).raise_for_problems()


def test_the_same_size_at_another_time_is_a_change(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    path = tmp_path / "in" / "2.jsonl"
    path.write_text(path.read_text().replace("word", "work"))
    os.utime(path, ns=(1, 1))
    assert _committed(_job(tmp_path)) == ["2"]


def test_a_new_input_is_added_in_its_place(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    write_lines(tmp_path / "in" / "0a.jsonl", [{"id": "between", "text": "one two three"}])
    assert _committed(_job(tmp_path)) == ["0a"]
    assert [row["id"] for row in read_rows(tmp_path / "out")][3] == "between"
    verify(str(tmp_path / "out")).raise_for_problems()


def test_a_damaged_output_is_done_again(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    expected = (tmp_path / "out" / "1.jsonl").read_bytes()
    (tmp_path / "out" / "1.jsonl").write_bytes(expected[:-4])
    (tmp_path / "out.gristmill" / "index" / "2.ids").unlink()
    assert sorted(_committed(_job(tmp_path))) == ["1", "2"]
    assert (tmp_path / "out" / "1.jsonl").read_bytes() == expected
    verify(str(tmp_path / "out")).raise_for_problems()


def test_a_vanished_input_is_an_error_that_helps(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    (tmp_path / "in" / "1.jsonl").unlink()
    with pytest.raises(ResumeError) as caught:
        _job(tmp_path).run(executor=here())
    message = str(caught.value)
    assert "1 of 3 finished partitions" in message
    assert "no longer exist" in message
    assert str(tmp_path / "in" / "1.jsonl") in message
    assert "--fresh" in message
    assert "write to another folder" in message
    assert caught.value.partitions == ["1"]
    assert (tmp_path / "out" / "1.jsonl").exists(), "nothing may be removed by a refused run"
    assert sorted(_committed(_job(tmp_path), fresh=True)) == ["0", "2"]
    assert not (tmp_path / "out" / "1.jsonl").exists()
    verify(str(tmp_path / "out")).raise_for_problems()


def test_a_smaller_limit_is_an_error_that_names_it(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    with pytest.raises(ResumeError, match="limit") as caught:
        _job(tmp_path, limit=2).run(executor=here())
    assert "still exist" in str(caught.value)
    assert _committed(_job(tmp_path, limit=5)) == []


def test_a_greater_limit_goes_on(tmp_path: Path) -> None:
    _input(tmp_path)
    assert _committed(_job(tmp_path, limit=1)) == ["0"]
    assert _committed(_job(tmp_path)) == ["1", "2"]


# --- the plan ---


def test_a_changed_parameter_is_an_error_that_names_it(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    with pytest.raises(ResumeError) as caught:
        _job(tmp_path, ScoreFilter(WordCountFilter(min_words=4))).run(executor=here())
    message = str(caught.value)
    assert "WordCountFilter" in message
    assert "from 3 to 4" in message
    assert "--fresh" in message
    assert "fresh=True" in message
    assert len(read_rows(tmp_path / "out")) == 9, "a refused run leaves the output alone"
    assert sorted(_committed(_job(tmp_path, ScoreFilter(WordCountFilter(min_words=4))), fresh=True)) == ["0", "1", "2"]
    assert len(read_rows(tmp_path / "out")) == 6
    verify(str(tmp_path / "out")).raise_for_problems()


def test_changed_user_code_is_noticed(tmp_path: Path) -> None:
    def stage(version: int) -> Any:
        if version == 1:

            @processing_stage(name="mine")
            def mine(batch: DocumentBatch) -> DocumentBatch:
                return batch
        else:

            @processing_stage(name="mine")
            def mine(batch: DocumentBatch) -> DocumentBatch:
                return batch.slice(0, 1)

        return mine

    _input(tmp_path)
    _committed(_job(tmp_path, stage(1)))
    assert _committed(_job(tmp_path, stage(1))) == []
    with pytest.raises(ResumeError, match="mine"):
        _job(tmp_path, stage(2)).run(executor=here())


def _described_by_version_0_1(*stages: Any, **settings: Any) -> dict[str, Any]:
    """A plan without a format, and with digests of code that were made otherwise."""
    text = json.dumps(describe_plan(*stages, **settings), default=str)
    plan: dict[str, Any] = json.loads(re.sub(r'("tests[^"]*": )"[0-9a-f]{16}"', r'\1"0"', text))
    assert text.count("tests.") == 0 or '"0"' in json.dumps(plan)
    del plan["format"]
    return plan


def test_output_of_version_0_1_is_resumed_and_the_code_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @processing_stage(name="mine")
    def mine(batch: DocumentBatch) -> DocumentBatch:
        return batch

    _input(tmp_path)
    words = ScoreFilter(WordCountFilter(min_words=3))
    with monkeypatch.context() as patch:
        patch.setattr("gristmill.pipeline.run.describe_plan", _described_by_version_0_1)
        _committed(_job(tmp_path, mine, words))
    with pytest.raises(ResumeError, match="changed from 3 to 4"):
        _job(tmp_path, mine, ScoreFilter(WordCountFilter(min_words=4))).run(executor=here())
    assert "3 of 3 partitions are done" in _job(tmp_path, mine, words).explain(here())
    again = _job(tmp_path, mine, words).run(executor=here()).report
    assert again.partitions_done_before == 3
    assert "does not say whether your code has changed" in " ".join(again.notes)
    verify(str(tmp_path / "out")).raise_for_problems()
    once_more = _job(tmp_path, mine, words).run(executor=here()).report
    assert (once_more.partitions_done_before, once_more.notes) == (3, ())


def test_recipes_of_version_0_1_have_no_code_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _input(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("gristmill.pipeline.run.describe_plan", _described_by_version_0_1)
        _committed(_job(tmp_path))
    again = _job(tmp_path).run(executor=here()).report
    assert (again.partitions_done_before, again.notes) == (3, ())


@pytest.mark.parametrize("changed", [None, "lang", "ratio"])
def test_the_english_cascade_of_version_0_1_is_resumed(tmp_path: Path, changed: str | None) -> None:
    """The record is one that version 0.1 wrote; filters have declared their statistics by class since then."""
    _input(tmp_path)
    places = {"input_path": str(tmp_path / "in"), "output_path": str(tmp_path / "out")}
    pipeline = load_recipe(find_recipe("english"), variables=places).pipeline()
    assert len(_committed(pipeline)) == 3
    plan = json.loads((Path(__file__).parent / "plans" / "english_0_1.json").read_text())
    filters = {stage["name"]: stage["parameters"].get("filter_obj", [{}])[0] for stage in plan["stages"]}
    if changed == "lang":
        filters["repeating_top_3grams"]["_statistic"][3] = "jieba"
    if changed == "ratio":
        filters["numbers_ratio"]["upper"] = 0.2
    (tmp_path / "out.gristmill" / "plan.json").write_text(json.dumps(plan))
    for entry in Manifest(str(tmp_path / "out")).ordered():
        Manifest(str(tmp_path / "out")).add(replace(entry, plan=plan_digest(plan)))
    if changed is None:
        assert _committed(pipeline) == []
        return
    with pytest.raises(ResumeError, match="jieba" if changed == "lang" else r"changed from 0\.2 to 0\.15"):
        pipeline.run(executor=here())


def test_settings_of_the_record_are_part_of_the_plan(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    with pytest.raises(ResumeError, match="id_field"):
        _job(tmp_path).run(executor=here(), id_field="key")
    with pytest.raises(ResumeError, match="scores"):
        _job(tmp_path).run(executor=here(), scores="all")


def test_stages_added_at_the_end_can_work_on_what_is_there(tmp_path: Path) -> None:
    """Following the advice in the message leads to the same output as a run from scratch."""
    _input(tmp_path)
    words, urls = ScoreFilter(WordCountFilter(min_words=3)), Modify(UrlRemover())
    _committed(_job(tmp_path, words))
    with pytest.raises(ResumeError) as caught:
        _job(tmp_path, words, urls).run(executor=here())
    message = str(caught.value)
    assert "run just the new stages with this output as their input" in message
    assert f"{urls.name!r} was added" in message
    rest = Pipeline("rest", stages=[JsonlReader(str(tmp_path / "out")), urls, JsonlWriter(str(tmp_path / "rest"))])
    rest.run(executor=here())
    _job(tmp_path, words, urls).run(executor=here(), fresh=True)
    assert read_rows(tmp_path / "rest") == read_rows(tmp_path / "out")


def test_changed_later_stages_can_work_on_what_is_there(tmp_path: Path) -> None:
    _input(tmp_path)

    def stages(most: int) -> list[Any]:
        return [Modify(UrlRemover()), ScoreFilter(WordCountFilter(min_words=2)), ScoreFilter(_most(most))]

    _committed(_job(tmp_path, *stages(5)))
    with pytest.raises(ResumeError) as caught:
        _job(tmp_path, *stages(4)).run(executor=here())
    message = str(caught.value)
    name = stages(4)[-1].name
    assert f"only {name!r} changed" in message
    assert f"run a pipeline of just {name!r} with this output as its input" in message
    rest = Pipeline(
        "rest", stages=[JsonlReader(str(tmp_path / "out")), stages(4)[-1], JsonlWriter(str(tmp_path / "rest"))]
    )
    rest.run(executor=here())
    _job(tmp_path, *stages(4)).run(executor=here(), fresh=True)
    assert read_rows(tmp_path / "rest") == read_rows(tmp_path / "out")


def _most(words: int) -> WordCountFilter:
    made = WordCountFilter(min_words=0, max_words=words)
    made._name = "few_words"
    return made


class Meanwhile(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Lets another pipeline run to its end in the same folder, at the first batch or at the last one."""

    name = "meanwhile"

    def __init__(self, other: Any, at: str) -> None:
        self._other = other
        self.at = at

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if self.at in task.column("id").to_pylist():
            self._other()
        return task


@only_in_one_process
@pytest.mark.parametrize("at", ["0-0", "2-0"])
def test_another_pipeline_in_the_same_folder_is_noticed(tmp_path: Path, at: str) -> None:
    """At the first batch nothing is committed that could stop it, so it takes over; at the last one there is."""
    _input(tmp_path)
    refused = []

    def other() -> None:
        try:
            _job(tmp_path, ScoreFilter(WordCountFilter(min_words=4))).run(executor=here())
        except ResumeError as error:
            refused.append(str(error))

    job = _job(tmp_path, Meanwhile(other, at))
    if at == "0-0":
        with pytest.raises(ResumeError, match=r"Another pipeline started to write to .*, so nothing of 0 is committed"):
            job.run(executor=here())
        assert refused == []
        assert run_json(tmp_path / "out")["status"] == "done"
    else:
        job.run(executor=here())
        assert "was written by another plan" in refused[0]
    verify(str(tmp_path / "out")).raise_for_problems()


# --- the interface ---


def test_checkpoint_path_is_accepted_and_needs_nothing(tmp_path: Path) -> None:
    _input(tmp_path)
    result = _job(tmp_path).run(here(), None, str(tmp_path / "checkpoints"))
    assert result.report.rows_written == 9
    again = _job(tmp_path).run(executor=here(), checkpoint_path=str(tmp_path / "elsewhere"))
    assert again.report.partitions_done_before == 3
    assert not (tmp_path / "checkpoints").exists()


def test_the_name_of_a_pipeline_may_change(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    assert _committed(_job(tmp_path, name="renamed")) == []


def test_a_moved_output_goes_on(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path, limit=2))
    for name in ("out", "out.gristmill"):
        (tmp_path / name).rename(tmp_path / name.replace("out", "moved"))
    pipeline = Pipeline("job", stages=[*_job(tmp_path).stages[:-1], JsonlWriter(str(tmp_path / "moved"))])
    assert _committed(pipeline) == ["2"]


def test_an_unreadable_plan_is_not_trusted(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    (tmp_path / "out.gristmill" / "plan.json").write_text("{")
    with pytest.raises(Exception, match=r"plan\.json is damaged.*--fresh"):
        _job(tmp_path).run(executor=here())


# --- alarms ---


def test_an_input_that_shrank_raises_an_alarm(tmp_path: Path) -> None:
    _input(tmp_path)
    _committed(_job(tmp_path))
    assert _job(tmp_path).run(executor=here()).report.alarms == (), "a run that skips everything reads no less"
    write_lines(tmp_path / "in" / "1.jsonl", [{"id": "1", "text": "one two three"}])
    result = _job(tmp_path).run(executor=here())
    assert [alarm for alarm in result.report.alarms if "shrank since the last run" in alarm]
    assert _job(tmp_path).run(executor=here()).report.alarms == ()
    (tmp_path / "in" / "2.jsonl").unlink()
    result = _job(tmp_path).run(executor=here(), fresh=True)
    assert [alarm for alarm in result.report.alarms if "shrank since the last run" in alarm]


def test_a_failed_run_in_between_does_not_hide_that_the_input_shrank(tmp_path: Path) -> None:
    @processing_stage(name="moody")
    def moody(batch: DocumentBatch) -> DocumentBatch:
        if (tmp_path / "fail").exists():
            raise ValueError("not today")
        return batch

    _input(tmp_path)
    _committed(_job(tmp_path, moody))
    write_lines(tmp_path / "in" / "1.jsonl", [{"id": "1", "text": "one two three"}])
    (tmp_path / "fail").touch()
    with pytest.raises(Exception, match="not today"):
        _job(tmp_path, moody).run(executor=here())
    (tmp_path / "fail").unlink()
    result = _job(tmp_path, moody).run(executor=here())
    assert [alarm for alarm in result.report.alarms if "shrank since the last run" in alarm]


def test_idle_and_greedy_stages_raise_alarms_in_report_and_record(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": n, "text": "word"} for n in range(10_050)])
    idle = _most(100)
    result = _job(tmp_path, ScoreFilter(idle), ScoreFilter(WordCountFilter(min_words=2))).run(executor=here())
    found = "\n".join(result.report.alarms)
    assert "'few_words' had no effect on 10050 rows" in found
    assert "'WordCountFilter' dropped 100.0% of 10050 rows, mostly as 'too_few_words'" in found
    assert run_json(tmp_path / "out")["alarms"] == list(result.report.alarms)
    assert found in str(result.report)


def test_the_share_that_may_be_dropped_is_a_parameter(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": n, "text": "word " * (n % 2 + 1)} for n in range(200)])
    job = _job(tmp_path, ScoreFilter(WordCountFilter(min_words=2)))
    assert job.run(executor=here()).report.alarms == ()
    (alarm,) = job.run(executor=here(), fresh=True, alarm_share=0.4).report.alarms
    assert "'WordCountFilter' dropped 50.0% of 200 rows" in alarm
    assert "dropping more than 40% is usually a mistake" in alarm
    assert job.run(executor=here(), fresh=True, alarm_share=None).report.alarms == ()
    with pytest.raises(UsageError, match=r"alarm_share=40: must be a share in \[0, 1\]"):
        job.run(executor=here(), alarm_share=40)


def test_alarms_are_shown_on_the_command_line(tmp_path: Path) -> None:
    from click.testing import CliRunner

    from gristmill.cli.main import cli

    write_lines(tmp_path / "in" / "a.jsonl", [{"id": n, "text": "word"} for n in range(200)])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        json.dumps({"name": "few", "stages": [
            {"JsonlReader": {"file_paths": str(tmp_path / "in")}},
            {"WordCountFilter": {"min_words": 2}},
            {"JsonlWriter": {"path": str(tmp_path / "out")}},
        ]})
    )  # fmt: skip
    done = CliRunner().invoke(cli, shlex.split(f"run {shlex.quote(str(recipe))} --workers 0"))
    assert "Note: Stage 'WordCountFilter' dropped 100.0% of 200 rows" in done.output, done.output


@only_in_one_process
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_disk_or_quota_that_is_used_up_says_what_to_do_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for number in range(3):
        write_lines(tmp_path / "in" / f"{number}.jsonl", [{"id": f"{number}-{row}", "text": "x"} for row in range(5)])
    job = Pipeline("job", stages=[JsonlReader(str(tmp_path / "in")), JsonlWriter(str(tmp_path / "out"))])
    write = AtomicFile.write
    calls: list[bool] = []

    def full(self: AtomicFile, data: Any) -> Any:
        calls.append(self.path.endswith(".jsonl"))
        if calls[-1] and sum(calls) == 2:
            raise OSError(code, os.strerror(code))
        return write(self, data)

    with monkeypatch.context() as patch:
        patch.setattr(AtomicFile, "write", full)
        with pytest.raises(OutputError, match="make room and run the same command again") as caught:
            job.run(executor=here())
    assert caught.value.errno == code
    assert len(read_lines(tmp_path / "out")) == 5
    assert job.run(executor=here()).report.partitions_done_before == 1
    assert len(read_lines(tmp_path / "out")) == 15
    assert verify(str(tmp_path / "out")).ok
