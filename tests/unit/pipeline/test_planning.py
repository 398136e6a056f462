"""What the planner refuses, what it leaves alone, and what it says about a plan."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.errors import (
    MissingColumnError,
    OutputError,
    OutputExistsError,
    PlanningError,
    ResourcesError,
    StageDefinitionError,
    UsageError,
)
from gristmill.pipeline import Pipeline
from gristmill.pipeline.planner import draft, expand
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.deduplication import ExactDeduplicationWorkflow
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.resources import Resources
from gristmill.stages.text.classifiers import LinearClassifier
from gristmill.stages.text.filters import Score, ScoreFilter, WordCountFilter
from gristmill.stages.text.filters.published.stages import GopherQuality
from gristmill.stages.text.io import JsonlReader, JsonlWriter, ParquetReader, ParquetWriter
from gristmill.stages.text.modifiers import Modify, Slicer, UrlRemover
from gristmill.stages.text.modules.add_id import AddId
from gristmill.storage import parquet_blocks
from gristmill.tasks import DocumentBatch, EmptyTask
from tests.unit.pipeline.jobs import here, write_lines


class Tag(ProcessingStage[DocumentBatch, DocumentBatch]):
    """Adds a column."""

    name = "tag"

    def __init__(self, column: str = "tag") -> None:
        self.column = column
        self.seen = 0

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], [self.column]

    def process(self, task: DocumentBatch) -> DocumentBatch:
        self.seen += 1
        frame = task.to_pandas()
        return DocumentBatch(data=frame.assign(**{self.column: "x"}))


class Pair(CompositeStage[DocumentBatch, DocumentBatch]):
    name = "pair"

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [Tag("a").with_(name="first"), Tag("b").with_(name="second")]


class Outer(CompositeStage[DocumentBatch, DocumentBatch]):
    name = "outer"

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [Pair(), Single()]


class Single(CompositeStage[DocumentBatch, DocumentBatch]):
    name = "single"

    def decompose(self) -> list[ProcessingStage[Any, Any]]:
        return [Tag("c").with_(name="third")]


def _job(folder: Path, *stages: Any) -> Pipeline:
    write_lines(folder / "in" / "a.jsonl", [{"id": 1, "text": "one"}])
    return Pipeline("job", stages=[JsonlReader(str(folder / "in")), *stages, JsonlWriter(str(folder / "out"))])


def test_composites_of_any_depth_are_expanded() -> None:
    assert [stage.name for stage in expand([Outer()])] == ["first", "second", "third"]
    assert [stage.name for stage in expand([Single()])] == ["third"]


def test_parts_of_a_composite_that_is_used_twice_are_told_apart() -> None:
    assert [stage.name for stage in expand([Pair(), Pair(), Outer()])] == [
        *("first", "second", "first_2", "second_2", "first_3", "second_3", "third"),
    ]


def test_a_composite_that_contains_itself_is_refused() -> None:
    class Endless(CompositeStage[Any, Any]):
        name = "endless"

        def decompose(self) -> list[ProcessingStage[Any, Any]]:
            return [Endless()]

    with pytest.raises(PlanningError, match="contains itself"):
        expand([Endless()])


def test_a_composite_without_parts_is_refused() -> None:
    class Hollow(CompositeStage[Any, Any]):
        name = "hollow"

        def decompose(self) -> list[ProcessingStage[Any, Any]]:
            return []

    with pytest.raises(PlanningError, match="no parts"):
        expand([Hollow()])


def test_with_changes_parts_by_name_and_all_parts_by_keyword() -> None:
    by_name = Pair().with_({"first": {"batch_size": 7}})
    assert [stage.batch_size for stage in expand([by_name])] == [7, 1]
    everywhere = Outer().with_(resources=Resources(cpus=2), batch_size=3)
    assert [(stage.resources.cpus, stage.batch_size) for stage in expand([everywhere])] == [(2, 3)] * 3
    nested = Outer().with_({"pair": {"batch_size": 5}})
    assert [stage.batch_size for stage in expand([nested])] == [5, 5, 1]
    renamed = Pair().with_(name="other")
    assert renamed.name == "other"
    assert Pair().name == "pair"
    assert [stage.batch_size for stage in expand([Pair()])] == [1, 1]


def test_with_refuses_unknown_parts_and_settings() -> None:
    with pytest.raises(UsageError, match="Did you mean 'first'"):
        Pair().with_({"frist": {"batch_size": 7}})
    with pytest.raises(TypeError):
        Pair().with_(batchsize=7)
    with pytest.raises(TypeError):
        Pair().with_({"first": {"batchsize": 7}})


def test_stages_with_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanningError, match=r"'tag'.*with_\(name='tag_2'\)"):
        _job(tmp_path, Tag(), Tag("other")).run(executor=here())


def test_an_empty_pipeline_is_refused() -> None:
    with pytest.raises(PlanningError, match="no stages"):
        Pipeline("nothing").run()
    with pytest.raises(PlanningError, match="no stages"):
        Pipeline("nothing").build()


def test_a_pipeline_without_a_reader_is_refused() -> None:
    with pytest.raises(PlanningError, match="initial_tasks"):
        Pipeline("job", stages=[Tag()]).run(executor=here())


def test_readers_come_first_and_writers_last(tmp_path: Path) -> None:
    reader, writer = JsonlReader(str(tmp_path)), JsonlWriter(str(tmp_path / "out"))
    with pytest.raises(
        PlanningError, match=r"A reader must be the first stage: JsonlReader \('jsonl_reader'\) was found after 'tag'"
    ):
        draft([Tag(), reader], has_initial_tasks=True)
    with pytest.raises(PlanningError, match=r"after 'jsonl_reader'.*file_paths=\[…, …\] to one reader"):
        draft([reader, reader], has_initial_tasks=False)
    with pytest.raises(PlanningError, match="must come last"):
        draft([reader, writer, Tag()], has_initial_tasks=False)
    with pytest.raises(PlanningError, match="one of the two"):
        Pipeline("job", stages=[reader]).run(initial_tasks=[EmptyTask()])


def shout(batch: DocumentBatch) -> DocumentBatch:
    return batch


def test_add_stage_shows_the_line_to_write(tmp_path: Path) -> None:
    pipeline: Any = Pipeline(name="x")
    least = 80

    def message(add: Callable[[], object]) -> str:
        with pytest.raises(StageDefinitionError) as caught:
            add()
        return str(caught.value)

    assert message(lambda: pipeline.add_stage(WordCountFilter(min_words=least, max_words=900))) == (
        "add_stage() takes a stage, but got the filter WordCountFilter. Write: "
        "add_stage(ScoreFilter(WordCountFilter(min_words=least, max_words=900))) (from gristmill import ScoreFilter)"
    )
    found = message(
        lambda: pipeline.add_stage(Tag("é")).add_stage(
            stage=UrlRemover(),
        )
    )
    assert found.endswith(
        "got the modifier UrlRemover. Write: add_stage(Modify(UrlRemover())) (from gristmill import Modify)"
    )
    for add in (
        lambda: Pipeline("x", stages=[WordCountFilter(min_words=3)]),  # type: ignore[list-item]
        lambda: eval(
            "pipeline.add_stage(WordCountFilter(3))", {"pipeline": pipeline, "WordCountFilter": WordCountFilter}
        ),
    ):
        assert "Write: add_stage(ScoreFilter(WordCountFilter(…)))" in message(add)
    assert (
        "got the class WordCountFilter, not an instance of it. Write: add_stage(ScoreFilter(WordCountFilter(…)))"
        in (message(lambda: pipeline.add_stage(WordCountFilter)))
    )
    assert message(lambda: pipeline.add_stage(Tag)).endswith("not an instance of it. Write: add_stage(Tag(…))")
    assert "Write @processing_stage(name='shout') above its definition" in message(lambda: pipeline.add_stage(shout))
    assert "got a lambda. Define a function with @processing_stage" in message(lambda: pipeline.add_stage(lambda b: b))
    workflow = ExactDeduplicationWorkflow(input_path="in", output_path=str(tmp_path), text_field="text")
    assert "Call its run() before or after this pipeline" in message(lambda: pipeline.add_stage(workflow))
    assert message(lambda: pipeline.add_stage("tag")).endswith("(a ProcessingStage object), not str: 'tag'.")
    assert len(pipeline.stages) == 1  # the one that was a stage
    assert pipeline.add_stage(Tag()) is pipeline


def test_a_missing_column_is_named_with_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(MissingColumnError) as caught:
        _job(tmp_path, Modify(str.upper, input_fields="txt")).run(executor=here())
    error = caught.value
    assert error.column == "txt"
    assert error.available == ["id", "text"]
    assert "Did you mean 'text'" in str(error)
    assert not (tmp_path / "out").exists()


def test_a_column_that_an_earlier_stage_gives_is_there(tmp_path: Path) -> None:
    result = _job(tmp_path, Tag("note"), Modify(str.upper, input_fields="note")).run(executor=here())
    assert result.report.rows_written == 1


def test_a_column_removed_by_fields_of_the_reader_is_missing(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": 1, "text": "one"}])
    stages = [JsonlReader(str(tmp_path / "in"), fields=["id"]), Modify(str.upper), JsonlWriter(str(tmp_path / "out"))]
    with pytest.raises(MissingColumnError, match="'text'"):
        Pipeline("job", stages=stages).run(executor=here())


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        (Resources(gpus=1_000), "GPU"),
        (Resources(gpu_memory_gb=100_000), "GPU"),
        (Resources(cpus=100_000), "100000 CPUs"),
    ],
)
def test_resources_that_nobody_has_are_refused(tmp_path: Path, resources: Resources, words: str) -> None:
    with pytest.raises(ResourcesError, match=words):
        _job(tmp_path, Tag().with_(resources=resources)).run()
    assert not (tmp_path / "out").exists()


def test_the_callers_stages_are_never_changed(tmp_path: Path) -> None:
    tag, modify = Tag(), Modify(str.upper)
    before = copy.deepcopy(vars(tag)), dict(vars(modify))
    pipeline = _job(tmp_path, tag, modify)
    reader, writer = pipeline.stages[0], pipeline.stages[-1]
    ends = dict(vars(reader)), dict(vars(writer))
    pipeline.explain()
    pipeline.run(executor=here())
    pipeline.run(executor=here(), fresh=True)
    assert (vars(tag), vars(modify)) == before
    assert (vars(reader), vars(writer)) == ends
    assert pipeline.stages == [reader, tag, modify, writer]


def test_a_stage_can_be_in_two_pipelines(tmp_path: Path) -> None:
    tag = Tag()
    one, two = _job(tmp_path / "1", tag), _job(tmp_path / "2", Modify(str.upper), tag)
    assert one.run(executor=here()).report.rows_written == 1
    assert two.run(executor=here()).report.rows_written == 1
    last = tmp_path / "3"
    write_lines(last / "in" / "a.jsonl", [{"id": 1, "text": "one"}])
    tasks = Pipeline("three", stages=[JsonlReader(str(last / "in")), tag]).run(executor=here())
    assert tasks[0].get_columns() == ["id", "text", "tag"]


def test_describe_names_stages_and_columns(tmp_path: Path) -> None:
    text = _job(tmp_path, Modify(str.upper), Tag()).describe()
    assert text.splitlines()[0] == "Pipeline: job"
    for words in ("jsonl_reader (JsonlReader)", "(Modify)", "reads: text", "tag (Tag)", "writes: tag", "jsonl_writer"):
        assert words in text


def test_describe_works_for_stages_that_open_nothing(tmp_path: Path) -> None:
    assert "nowhere" not in Pipeline("p", "about it", [JsonlReader("nowhere/"), Outer()]).describe()
    assert "Description: about it" in Pipeline("p", "about it").describe()


def test_explain_shows_segments_workers_and_resources(tmp_path: Path) -> None:
    own = Tag().with_(name="own", num_workers=2, resources=Resources(cpus=2))
    text = _job(tmp_path, Modify(str.upper), own).explain()
    assert "Segment 1" in text
    assert "Segment 2" in text
    assert "Segment 3" in text
    assert "2 workers, each 2 CPUs" in text
    assert "1 partition," in text
    assert str(tmp_path / "out") in text
    assert not (tmp_path / "out").exists()


def test_adjacent_stages_with_equal_needs_share_a_segment(tmp_path: Path) -> None:
    text = _job(tmp_path, Tag("a").with_(name="a"), Tag("b").with_(name="b")).explain()
    assert text.count("Segment") == 1


def test_unknown_executors_are_named(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="Did you mean 'local'"):
        _job(tmp_path).run(executor="locall")
    with pytest.raises(UsageError, match="executor"):
        _job(tmp_path).run(executor=3)  # type: ignore[arg-type]


def test_functions_become_stages_once_and_stay_callable(tmp_path: Path) -> None:
    @processing_stage(name="upper")
    def upper(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        return DocumentBatch(data=frame.assign(text=frame["text"].str.upper()))

    assert upper(DocumentBatch(data=__import__("pandas").DataFrame({"text": ["a"]}))).to_pandas()["text"][0] == "A"
    _job(tmp_path, upper).run(executor=here())
    assert (tmp_path / "out" / "a.jsonl").read_text() == '{"id": 1, "text": "ONE"}\n'


@pytest.mark.parametrize("cut", [{}, {"blocksize": "2KB"}, {"files_per_partition": 2}])
def test_planning_opens_each_parquet_file_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: dict[str, Any]
) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        table = pa.table({"id": list(range(200)), "text": [f"text {number} {row}" for row in range(200)]})
        pq.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=20)
    (tmp_path / "in" / "broken.parquet").write_bytes(b"PAR1 and nothing else PAR1")
    opened: Counter[str] = Counter()
    open_parquet = parquet_blocks.open_parquet

    def counting(path: str, **options: Any) -> Any:
        opened[Path(path).name] += 1
        return open_parquet(path, **options)

    monkeypatch.setattr(parquet_blocks, "open_parquet", counting)
    stages = [ParquetReader(str(tmp_path / "in"), **cut), Tag(), ParquetWriter(str(tmp_path / "out"))]
    shown = Pipeline("job", stages=stages).explain(here())
    assert ("Input: 4 partitions" in shown) == (not cut)
    assert opened == {"0.parquet": 1, "1.parquet": 1, "2.parquet": 1, "broken.parquet": 1}


def _copy(folder: Path, mode: Any = "ignore", output: str = "out") -> Pipeline:
    return Pipeline("job", stages=[JsonlReader(str(folder / "in")), JsonlWriter(str(folder / output), mode=mode)])


def test_files_that_no_run_has_written_are_not_replaced(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": 1, "text": "new"}])
    write_lines(tmp_path / "out" / "a.jsonl", [{"id": 1, "text": "mine"}])
    mine = (tmp_path / "out" / "a.jsonl").read_bytes()
    with pytest.raises(OutputExistsError, match=r"holds 'a\.jsonl', not written by a run"):
        _copy(tmp_path).run(executor=here(), fresh=True)
    assert (tmp_path / "out" / "a.jsonl").read_bytes() == mine
    assert _copy(tmp_path, "overwrite").run(executor=here()).report.rows_written == 1
    assert b"new" in (tmp_path / "out" / "a.jsonl").read_bytes()


def test_a_writer_that_wants_an_empty_folder_gets_one(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": 1, "text": "new"}])
    write_lines(tmp_path / "out" / "other.jsonl", [{"id": 1, "text": "mine"}])
    with pytest.raises(OutputExistsError, match=r"out is not empty \('other\.jsonl'\)"):
        _copy(tmp_path, "error").run(executor=here())
    assert _copy(tmp_path, "error", "new").run(executor=here()).report.rows_written == 1


def test_an_output_above_the_input_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": 1, "text": "new"}])
    with pytest.raises(OutputError, match=r"holds the input file .*a\.jsonl"):
        _copy(tmp_path, output=".").run(executor=here())


@pytest.mark.parametrize(
    "make", [lambda fields: JsonlReader("in/", fields=fields), lambda f: JsonlWriter("out/", fields=f)]
)
def test_one_text_is_no_list_of_fields(make: Any) -> None:
    with pytest.raises(UsageError, match=r"pass a list of column names: fields=\['id'\]"):
        make("id")


@pytest.mark.parametrize("paths", [None, 5])
def test_what_is_no_path_is_refused(paths: Any) -> None:
    with pytest.raises(UsageError, match=rf"file_paths={paths}: must be a file, folder"):
        JsonlReader(paths)


# --- columns that stages write, and columns that hold no text ---


def _notes(tmp_path: Path, *stages: Any) -> str:
    return Pipeline("notes", stages=[JsonlReader(str(tmp_path / "in")), *stages]).explain(here())


def test_a_column_of_the_input_that_a_stage_would_replace_is_named(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "one two", "words": "many", "tag": "a", "title": "b"}])
    replaced = "writes column {!r}, which the input already has: the input values are overwritten"
    words = ScoreFilter(WordCountFilter(min_words=0), score_field="words")
    assert f"{words.name} {replaced.format('words')}" in _notes(tmp_path, words)
    assert f"slicer {replaced.format('title')}" in _notes(
        tmp_path, Modify(Slicer(right=1), output_fields="title").with_(name="slicer")
    )

    class TagOfText(Tag):
        def inputs(self) -> tuple[list[str], list[str]]:
            return ["data"], ["text"]

    assert f"tag {replaced.format('tag')}" in _notes(tmp_path, TagOfText())
    for quiet in (Tag(), Modify(Slicer(right=1)), ScoreFilter(WordCountFilter(), score_field="new"), TagOfText("new")):
        assert "replaced" not in _notes(tmp_path, quiet)
    result = Pipeline("notes", stages=[JsonlReader(str(tmp_path / "in")), words]).run(here())
    assert any(replaced.format("words") in note for note in result.report.notes)


def test_results_never_replace_a_text(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"id": "1", "text": "one two", "title": "a b c"}])
    scored = Score(WordCountFilter(), score_field="text", text_field="title").with_(name="scored")
    reading = ScoreFilter(WordCountFilter(min_words=1))
    labelled = LinearClassifier(model_path="shipped:text_kind", label_field="text", text_field="title")
    numbered = AddId("text", overwrite=True).with_(name="numbered")
    for stages in ([scored, reading], [reading, scored], [labelled, reading], [numbered, reading]):
        with pytest.raises(PlanningError, match="column 'text' holds text, which the stage's results would overwrite"):
            _notes(tmp_path, *stages)
    # Nobody reads the column as text: a note will do.
    assert "scored writes column 'text'" in _notes(tmp_path, scored)


@pytest.mark.parametrize(
    ("value", "holds"),
    [(["a", "b"], "lists"), ({"a": 1}, "objects"), (5, "numbers"), (2.5, "numbers"), (True, "truth values")],
)
def test_a_column_without_text_is_refused_where_text_is_read(tmp_path: Path, value: Any, holds: str) -> None:
    rows = [{"id": "1", "text": value, "mixed": value}, {"id": "2", "text": None, "mixed": "text"}]
    write_lines(tmp_path / "in" / "a.jsonl", rows)
    words = ScoreFilter(WordCountFilter(min_words=0))
    with pytest.raises(PlanningError, match=rf"column 'text' \(text_field\) holds {holds} in 2 records: use"):
        _notes(tmp_path, words)
    _notes(tmp_path, ScoreFilter(WordCountFilter(min_words=0), text_field="mixed"))
    _notes(tmp_path, Modify(str), words)  # which makes it text
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table({"text": [value]}), tmp_path / "parquet" / "a.parquet")
    for stage in (words, GopherQuality(), LinearClassifier(model_path="shipped:text_kind")):
        with pytest.raises(PlanningError, match=r"column 'text' \(text_field\) holds \S+.* in the footers of 1 files"):
            Pipeline("p", stages=[ParquetReader(str(tmp_path / "parquet")), stage]).explain(here())


@pytest.mark.parametrize("limit", [0, -1.0, float("nan"), float("inf")])
def test_a_time_limit_that_limits_nothing_is_refused(tmp_path: Path, limit: float) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "one"}])
    with pytest.raises(PlanningError, match=rf"'tag' has time_limit_s={limit}; it must be above 0, and finite"):
        _notes(tmp_path, Tag().with_(time_limit_s=limit))


def test_infinite_numbers_in_a_users_stage_are_recorded(tmp_path: Path) -> None:
    write_lines(tmp_path / "in" / "a.jsonl", [{"text": "one"}])
    stage = Tag()
    vars(stage)["bounds"] = {"most": float("inf"), "none": float("nan")}
    stages = [JsonlReader(str(tmp_path / "in")), stage, JsonlWriter(str(tmp_path / "out"))]
    assert Pipeline("p", stages=stages).run(here()).report.rows_written == 1
    assert Pipeline("p", stages=stages).run(here()).report.partitions_done_before == 1
