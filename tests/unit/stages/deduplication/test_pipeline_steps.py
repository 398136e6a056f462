"""Deduplication as a stage of a pipeline: the same documents as by separate runs, and one record of all steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.backends.local import LocalExecutor
from gristmill.errors import GristmillError, InputChangedError, PlanningError, ResumeError, StageFailedError, UsageError
from gristmill.ledger.ask.ledger import Ledger
from gristmill.ledger.prove.verify import verify
from gristmill.ledger.record.layout import STEPS_FOLDER
from gristmill.ledger.record.quarantine import read_quarantine
from gristmill.ledger.record.run_record import read_run
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.deduplication import (
    ExactDeduplication,
    ExactDeduplicationWorkflow,
    FuzzyDeduplication,
    FuzzyDeduplicationWorkflow,
    SemanticDeduplication,
)
from gristmill.stages.text.filters import ScoreFilter, WordCountFilter
from gristmill.stages.text.io import DocumentReader, DocumentWriter
from gristmill.stages.text.io.reader import JsonlReader, ParquetReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.stages.text.modifiers import Modify, UrlRemover
from gristmill.stages.text.modules import AddId, DocumentSplitter
from gristmill.tasks import DocumentBatch
from tests.outputs import record_of

IN_PROCESS = LocalExecutor({"num_cpus": 0})
Stage = ProcessingStage[Any, Any]


def words(topic: int, count: int, *, other: int = 0) -> str:
    return " ".join([f"word{topic} number{place}" for place in range(count)] + [f"other{at}" for at in range(other)])


def documents(source: int, *, ids: bool = True) -> list[dict[str, Any]]:
    """Texts of which some are short, some equal to others, in this file or another, and some nearly so."""
    found: list[dict[str, Any]] = []
    for number in range(24):
        topic = number % 8 if number < 18 else 100 * source + number
        text = words(topic, 3 if number % 5 == 0 else 40, other=number % 3 if number > 12 else 0)
        record = {"id": f"{source}-{number}"} if ids else {}
        found.append({**record, "text": text, "n": number})
    return found


def write_input(folder: Path, *, ids: bool = True, files: int = 3) -> Path:
    folder.mkdir(exist_ok=True)
    for source in range(files):
        lines = [json.dumps(record) for record in documents(source, ids=ids)]
        (folder / f"part-{source}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def pipeline_of(source: Path, output: Path | str, *stages: Stage) -> Pipeline:
    return Pipeline("p", stages=[JsonlReader(str(source)), *stages, JsonlWriter(str(output))])


def run(pipeline: Pipeline, **options: Any) -> Any:
    return pipeline.run(options.pop("executor", IN_PROCESS), progress=False, **options)


def least(count: int, name: str = "word_count") -> Stage:
    return ScoreFilter(WordCountFilter(min_words=count)).with_(name=name)


def contents(folder: Path | str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(Path(folder).glob("*.jsonl"))}


def steps_of(output: Path) -> list[str]:
    folder = record_of(output) / STEPS_FOLDER
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_the_output_is_that_of_separate_runs(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    whole = pipeline_of(
        source, tmp_path / "out", least(10), ExactDeduplication(), least(20, "longer"), FuzzyDeduplication()
    )
    result = run(whole)

    run(pipeline_of(source, tmp_path / "1", least(10)))
    for kind, number in ((ExactDeduplicationWorkflow, 2), (FuzzyDeduplicationWorkflow, 4)):
        if number == 4:
            run(pipeline_of(tmp_path / "2", tmp_path / "3", least(20, "longer")))
        workflow = kind(
            input_path=str(tmp_path / str(number - 1)), output_path=str(tmp_path / str(number)), perform_removal=True
        )
        workflow.run(IN_PROCESS, progress=False)
    assert contents(tmp_path / "out") == contents(tmp_path / "4")

    stages = {stage.name: stage for stage in result.report.stages}
    assert list(stages) == [
        "jsonl_reader", "word_count", "ExactDeduplication", "longer", "FuzzyDeduplication", "jsonl_writer",
    ]  # fmt: skip
    rows = result.report.rows_read
    assert rows == 72
    for stage in list(stages.values())[1:]:
        assert stage.rows_in == rows
        rows = stage.rows_out
        assert stage.rows_in == stage.rows_out + sum(stage.dropped.values())
    assert stages["ExactDeduplication"].dropped["exact_duplicate"] > 0
    assert stages["FuzzyDeduplication"].dropped["near_duplicate"] > 0
    assert result.report.rows_written == rows == sum(data.count(b"\n") for data in contents(tmp_path / "out").values())
    assert stages["word_count"].calls > 0
    assert stages["FuzzyDeduplication"].busy_s > 0

    assert verify(tmp_path / "out").ok
    assert steps_of(tmp_path / "out") == []
    recorded = read_run(Ledger(tmp_path / "out").folder)
    assert recorded is not None
    assert [stage["stage"] for stage in recorded["stages"]] == list(stages)
    assert recorded["status"] == "done"


def test_every_document_can_be_followed_through_all_steps(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    run(pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication(), FuzzyDeduplication()))
    ledger = Ledger(tmp_path / "out")
    kept = {json.loads(line)["id"] for data in contents(tmp_path / "out").values() for line in data.splitlines()}
    for number in range(3):
        for record in documents(number):
            answer = ledger.why(record["id"])
            assert len(answer.documents) == 1
            assert answer.kept == (record["id"] in kept)
            history = answer.documents[0]
            assert history.sources == [str(source / f"part-{number}.jsonl")]
            assert history.row == record["n"]
            if history.status == "duplicate":
                assert history.id == record["id"]
                assert history.decisions[-1].survivor
    assert ledger.why("1-0").documents[0].decisions[0].stage == "word_count"
    assert ledger.why("1-1").documents[0].decisions[0].survivor == "0-1"


def test_documents_without_ids_are_called_by_their_place_in_the_input(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", ids=False)
    run(pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication()))
    ledger = Ledger(tmp_path / "out")
    history = ledger.why("part-2#1").documents[0]
    assert history.status == "duplicate"
    # Row 0 was dropped before, so that in the files of the step the survivor has another number.
    assert history.decisions[0].survivor == "part-0#1"
    assert ledger.why("part-0#1").kept
    assert verify(tmp_path / "out").ok


def test_a_deduplication_behind_the_reader_or_another_one_writes_no_documents_before(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    run(pipeline_of(source, tmp_path / "out", ExactDeduplication(), FuzzyDeduplication(), least(10)), keep_steps=True)
    assert not [name for name in steps_of(tmp_path / "out") if "documents" in name]
    assert verify(tmp_path / "out").ok
    run(pipeline_of(source, tmp_path / "two", least(10), ExactDeduplication(), FuzzyDeduplication()), keep_steps=True)
    assert [name for name in steps_of(tmp_path / "two") if "documents" in name] == ["documents-1"]
    report = verify(tmp_path / "two")
    assert report.ok
    assert report.steps > 3


class FailsOnce(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Fails on a partition while a file is there."""

    def __init__(self, name: str, switch: str, partition: str = "part-1") -> None:
        self.name = name
        self._switch = switch
        self._partition = partition

    def process(self, task: DocumentBatch) -> DocumentBatch:
        if Path(self._switch).exists() and task.partition_id == self._partition:
            raise ValueError("stopped")
        return task


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_run_that_stopped_in_any_step_is_resumed(tmp_path: Path, place: int) -> None:
    source = write_input(tmp_path / "in")
    switches = [tmp_path / f"switch-{number}" for number in range(3)]
    first, second, third = (FailsOnce(f"s{number}", str(path)) for number, path in enumerate(switches))

    def whole(output: Path) -> Pipeline:
        return pipeline_of(source, output, least(10), first, ExactDeduplication(), second, FuzzyDeduplication(), third)

    run(whole(tmp_path / "expected"))
    switches[place].touch()
    with pytest.raises(StageFailedError, match="stopped") as caught:
        run(whole(tmp_path / "out"))
    assert str(caught.value).count("--ignore-failures") == 1
    assert steps_of(tmp_path / "out")
    assert not verify(tmp_path / "out").ok
    switches[place].unlink()
    result = run(whole(tmp_path / "out"))
    assert result.report.partitions_done_before == (1 if place == 2 else 0)
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    one, other = (Ledger(tmp_path / name).entries() for name in ("out", "expected"))
    assert {key: entry.comparable() for key, entry in one.items()} == {
        key: entry.comparable() for key, entry in other.items()
    }
    assert verify(tmp_path / "out").ok
    again = run(whole(tmp_path / "out"))
    assert again.report.partitions_done_before == 3
    assert again.report.rows_written == result.report.rows_written


def test_another_input_is_refused_where_documents_were_compared(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    whole = pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication())
    run(whole)
    before = contents(tmp_path / "out")
    (source / "part-9.jsonl").write_text(json.dumps({"id": "new", "text": words(1, 40)}) + "\n")
    with pytest.raises(InputChangedError, match="start over with --fresh"):
        run(whole)
    assert contents(tmp_path / "out") == before
    run(whole, fresh=True)
    assert Ledger(tmp_path / "out").why("new").documents[0].decisions[0].survivor == "0-1"
    assert verify(tmp_path / "out").ok


def test_another_plan_is_refused(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    run(pipeline_of(source, tmp_path / "out", ExactDeduplication()))
    with pytest.raises(ResumeError, match="survivor changed"):
        run(pipeline_of(source, tmp_path / "out", ExactDeduplication(survivor="longest")))


def test_what_stages_change_and_quarantine_in_any_step_is_recorded(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    with open(source / "part-1.jsonl", "a") as file:
        file.write("not json\n")
        file.write(json.dumps({"id": "with-url", "text": words(99, 40) + " https://example.org/x"}) + "\n")
        file.write(json.dumps({"id": "fails", "text": "fails " + words(98, 40)}) + "\n")

    class Fails(ProcessingStage[DocumentBatch, DocumentBatch]):
        name = "fails"

        def process(self, task: DocumentBatch) -> DocumentBatch:
            if any(text.startswith("fails") for text in task.to_pandas()["text"]):
                raise ValueError("no")
            return task

    whole = pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication(), Modify(UrlRemover()), Fails())
    result = run(whole, ignore_failures=True, scores="all")
    assert result.report.quarantined == 2
    ledger = Ledger(tmp_path / "out")
    (change,) = ledger.why("with-url").documents[0].changes
    assert change.stage.startswith("modify") or "url" in change.stage.lower()
    assert change.characters < 0
    held = [(item.record.row, item.id, item.record.stage) for item in read_quarantine(tmp_path / "out")]
    assert held == [(24, None, "jsonl_reader"), (26, "fails", "fails")]
    assert ledger.why("fails").status == "quarantined"
    assert verify(tmp_path / "out").ok
    scores = ledger.scores()
    assert set(scores["stage"]) == {"word_count"}
    assert len(scores) == 74


def test_pieces_of_documents_are_compared_each_by_itself(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    texts = ["one two\n\nthree four", "five six\n\nthree four\n\nseven", "one two"]
    lines = [json.dumps({"id": f"d{number}", "text": text}) for number, text in enumerate(texts)]
    (source / "a.jsonl").write_text("\n".join(lines) + "\n")
    whole = pipeline_of(source, tmp_path / "out", DocumentSplitter(separator="\n\n"), ExactDeduplication())
    result = run(whole)
    found = [json.loads(line)["text"] for line in contents(tmp_path / "out")["a.jsonl"].splitlines()]
    assert found == ["one two", "three four", "five six", "seven"]
    assert result.report.rows_read == 3
    assert result.report.rows_written == 4
    assert Ledger(tmp_path / "out").why("d2").status == "duplicate"
    assert verify(tmp_path / "out").ok


def test_ids_that_a_stage_gives_are_known_to_the_record_of_later_steps(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in", ids=False, files=1)
    whole = pipeline_of(source, tmp_path / "out", AddId(id_field="id"), ExactDeduplication())
    run(whole)
    kept = [json.loads(line) for line in contents(tmp_path / "out")["part-0.jsonl"].splitlines()]
    assert Ledger(tmp_path / "out").why(kept[0]["id"]).kept
    assert verify(tmp_path / "out").ok


def test_ids_that_a_stage_replaces_stay_those_of_the_input(tmp_path: Path) -> None:
    class NewIds(ProcessingStage[DocumentBatch, DocumentBatch]):
        name = "new_ids"

        def process(self, task: DocumentBatch) -> DocumentBatch:
            frame = task.to_pandas()
            frame["id"] = "new-" + frame["id"]
            task.data = frame
            return task

    source = write_input(tmp_path / "in")
    run(pipeline_of(source, tmp_path / "out", NewIds(), ExactDeduplication(), least(10)))
    ledger = Ledger(tmp_path / "out")
    assert ledger.why("1-1").status == "duplicate"
    assert ledger.why("1-1").documents[0].decisions[0].survivor == "new-0-1"
    assert verify(tmp_path / "out").ok


def test_parquet_and_compressed_input(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(2):
        pq.write_table(pa.Table.from_pylist(documents(number)), source / f"part-{number}.parquet")
    stages = [ParquetReader(str(source)), least(10), ExactDeduplication(), least(20, "longer")]
    run(Pipeline("p", stages=[*stages, ParquetWriter(str(tmp_path / "out"))]), keep_steps=True)
    assert pq.read_table(tmp_path / "out" / "part-0.parquet").schema.field("n").type == pa.int64()
    assert verify(tmp_path / "out").ok
    step = tmp_path / "out.gristmill" / STEPS_FOLDER / "documents-1"
    assert list(step.glob("*.parquet"))

    import gzip

    packed = tmp_path / "gz"
    packed.mkdir()
    lines = "".join(json.dumps(record) + "\n" for record in documents(0))
    (packed / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    run(pipeline_of(packed, tmp_path / "plain", least(10), ExactDeduplication()), keep_steps=True)
    assert list((tmp_path / "plain.gristmill" / STEPS_FOLDER / "documents-1").glob("*.jsonl.zst"))
    assert verify(tmp_path / "plain").ok


def test_what_a_writer_writes_follows_the_input_of_the_whole_run(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(2):
        pq.write_table(pa.Table.from_pylist(documents(number)), source / f"part-{number}.parquet")
    stages = [DocumentReader(str(source), sample=0.7), least(10), ExactDeduplication()]
    run(Pipeline("p", stages=[*stages, DocumentWriter(str(tmp_path / "out"))]))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["part-0.parquet", "part-1.parquet"]
    assert verify(tmp_path / "out").ok
    ledger = Ledger(tmp_path / "out")
    statuses = [ledger.why(record["id"]).status for record in documents(0)]
    assert {"kept", "never seen"} <= set(statuses)


def test_an_object_store_holds_output_and_steps(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    run(pipeline_of(source, "memory://steps-out", least(10), ExactDeduplication(), FuzzyDeduplication()))
    assert verify("memory://steps-out").ok
    assert Ledger("memory://steps-out").why("1-1").status == "duplicate"


def test_documents_given_by_hand(tmp_path: Path) -> None:
    tasks = [DocumentBatch(data=pa.Table.from_pylist(documents(number))) for number in range(2)]
    pipeline = Pipeline("p", stages=[least(10), ExactDeduplication(), JsonlWriter(str(tmp_path / "out"))])
    result = run(pipeline, initial_tasks=tasks)
    assert result.report.rows_read == 48
    assert Ledger(tmp_path / "out").why("1-1").documents[0].decisions[0].survivor == "0-1"
    assert verify(tmp_path / "out").ok


@pytest.mark.parametrize("workers", [1, 2])
def test_worker_processes_give_the_same_bytes(tmp_path: Path, workers: int) -> None:
    source = write_input(tmp_path / "in")
    stages = [least(10), ExactDeduplication(), least(20, "longer").with_(num_workers=1), FuzzyDeduplication()]
    run(pipeline_of(source, tmp_path / "expected", *stages))
    run(pipeline_of(source, tmp_path / "out", *stages), executor=LocalExecutor({"num_cpus": workers}))
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")
    one, other = (
        {key: entry.comparable() for key, entry in Ledger(tmp_path / name).entries().items()}
        for name in ("out", "expected")
    )
    assert one == other


def test_a_plan_says_that_it_runs_in_steps(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    whole = pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication(), FuzzyDeduplication())
    text = whole.explain(IN_PROCESS)
    assert "Runs in steps, because ExactDeduplication and FuzzyDeduplication must compare all documents" in text
    assert not (tmp_path / "out").exists()


def test_what_cannot_work_is_said_before_the_run(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    with pytest.raises(PlanningError, match="Add a writer"):
        run(Pipeline("p", stages=[JsonlReader(str(source)), ExactDeduplication()]))
    with pytest.raises(PlanningError, match="no reader"):
        run(Pipeline("p", stages=[ExactDeduplication(), JsonlWriter(str(tmp_path / "out"))]))
    with pytest.raises(UsageError, match="threshold=2"):
        FuzzyDeduplication(threshold=2)
    with pytest.raises(UsageError, match="score_field"):
        ExactDeduplication(survivor="best")
    with pytest.raises(UsageError, match="eps"):
        SemanticDeduplication(eps=2.0)
    with pytest.raises(PlanningError, match="'body'"):
        run(pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication("body")))
    assert not (tmp_path / "out").exists()


def test_sources_are_preferred_where_files_can_be_told_apart(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    prefers = ExactDeduplication(survivor="priority", source_priority=["part-2.jsonl"])
    run(pipeline_of(source, tmp_path / "out", least(10), prefers))
    assert Ledger(tmp_path / "out").why("0-1").documents[0].decisions[0].survivor == "2-1"
    joined = [JsonlReader(str(source), files_per_partition=3), least(10), prefers]
    with pytest.raises(UsageError, match="several files are read as one partition"):
        run(Pipeline("p", stages=[*joined, JsonlWriter(str(tmp_path / "other"))]))


def test_a_replay_is_refused(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    whole = pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication())
    run(whole)
    with pytest.raises(ResumeError, match="compares all documents"):
        whole.replay(IN_PROCESS)


@pytest.mark.parametrize("salvage", [False, True])
def test_damage_in_the_input_is_known_to_the_record_of_the_last_step(tmp_path: Path, salvage: bool) -> None:
    import gzip

    source = write_input(tmp_path / "in", files=2)
    lines = "".join(json.dumps(record) + "\n" for record in documents(7) * 200)
    (source / "part-7.jsonl.gz").write_bytes(gzip.compress(lines.encode())[:-400])
    whole = pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication())
    result = run(whole, salvage=salvage, error_budget=None)
    report = verify(tmp_path / "out")
    assert not report.problems
    assert len(report.damaged) == 1
    assert result.report.quarantined == 1
    assert (Ledger(tmp_path / "out").why("7-1").status == "duplicate") == salvage


def test_listeners_are_told_about_every_step(tmp_path: Path) -> None:
    from gristmill.observe.events import RunFinished, RunStarted

    told: list[Any] = []
    source = write_input(tmp_path / "in")
    run(pipeline_of(source, tmp_path / "out", least(10), ExactDeduplication()), listeners=[told.append])
    names = [event.pipeline for event in told if isinstance(event, RunStarted)]
    assert names == ["p: step 1", "exact_deduplication: signatures", "exact_deduplication: groups", "p"]
    # One after the other: a display shows one run at a time.
    kinds = [type(event).__name__ for event in told if isinstance(event, RunStarted | RunFinished)]
    assert kinds == ["RunStarted", "RunFinished"] * 4


def test_documents_that_mean_the_same_by_embeddings_of_a_column(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(2):
        records = documents(number)
        for record in records:
            record["vector"] = [1.0 if record["n"] % 6 == at else 0.01 * number for at in range(6)]
        (source / f"{number}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    same = SemanticDeduplication(embedding_field="vector", eps=0.05, survivor="first")
    result = run(pipeline_of(source, tmp_path / "out", least(10), same, least(20, "longer")))
    assert result.report.stages[2].rows_out == 6
    assert Ledger(tmp_path / "out").why("1-1").documents[0].decisions[0].survivor == "0-1"
    assert verify(tmp_path / "out").ok


def test_a_sentence_model_is_looked_for_at_planning(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = write_input(tmp_path / "in")
    missing = SemanticDeduplication(model_identifier=str(tmp_path / "no-model"))
    with pytest.raises(GristmillError, match="no-model"):
        pipeline_of(source, tmp_path / "out", least(10), missing).explain(IN_PROCESS)


def test_why_tells_of_a_survivor_that_later_stages_dropped(tmp_path: Path) -> None:
    source = write_input(tmp_path / "in")
    run(pipeline_of(source, tmp_path / "out", ExactDeduplication(), least(10)))
    ledger = Ledger(tmp_path / "out")
    told = str(ledger.why("1-0"))
    assert "the survivor is '0-0'" in told
    assert "the survivor is not in the output either: dropped by stage 'word_count': too_few_words" in told
    assert "either" not in str(ledger.why("1-1"))
