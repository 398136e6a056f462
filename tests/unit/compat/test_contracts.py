"""What users' stages, readers and writers rely on."""

from __future__ import annotations

import csv
import importlib
import json
import pickle
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gristmill
from gristmill.backends.local import LocalExecutor
from gristmill.backends.registry import as_executor
from gristmill.errors import NotSupportedError, PlanningError, StageDefinitionError
from gristmill.ledger.prove.verify import verify
from gristmill.pipeline import Pipeline
from gristmill.stages.base import ProcessingStage
from gristmill.stages.text.filters.fasttext_model import default_model_path
from gristmill.stages.text.io.reader import FilePartitioningStage, JsonlReaderStage, ParquetReaderStage
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.tasks import DocumentBatch, EmptyTask, FileGroupTask, SentinelTask, Task
from gristmill.tasks.pandas_io import index_tag
from tests.unit.pipeline.jobs import here

LINES = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    rows = [json.dumps({"id": f"d{n}", "text": f"text {n}"}) for n in range(LINES)]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(rows) + "\n")
    return tmp_path


class OpensFiles(ProcessingStage[FileGroupTask, DocumentBatch]):
    """A stage of a user that reads the files that it is given."""

    name = "opens_files"

    def process(self, task: FileGroupTask) -> DocumentBatch:
        rows = [json.loads(line) for path in task.data for line in Path(path).read_text().splitlines()]
        return DocumentBatch(data=pa.Table.from_pylist(rows))


# --- files and rows ---


def test_a_stage_that_opens_files_gets_each_row_once(folder: Path) -> None:
    """With a block size far below the size of the file, which a reader of ranges would split."""
    stages = [FilePartitioningStage(str(folder / "in"), blocksize=500), OpensFiles(), JsonlWriter(str(folder / "out"))]
    report = Pipeline("p", stages=stages).run(executor=here()).report
    assert (report.rows_read, report.rows_written, report.partitions) == (LINES, LINES, 1)
    assert verify(str(folder / "out")).problems == []


def test_a_reader_of_ranges_still_gets_ranges(folder: Path) -> None:
    stages = [FilePartitioningStage(str(folder / "in"), blocksize=500), JsonlReaderStage()]
    report = Pipeline("p", stages=stages).run(executor=here()).report
    assert report.rows_read == LINES
    assert report.partitions > 10


def test_tasks_made_by_hand_hold_whole_files(folder: Path) -> None:
    tasks = FilePartitioningStage(str(folder / "in"), blocksize=500).process(EmptyTask())
    assert [task.data for task in tasks] == [[str(folder / "in" / "a.jsonl")]]


def test_a_file_in_two_tasks_is_refused(folder: Path) -> None:
    twice = [FileGroupTask(data=[str(folder / "in" / "a.jsonl")]) for _ in range(2)]
    with pytest.raises(PlanningError, match="read more than once"):
        Pipeline("p", stages=[OpensFiles()]).run(executor=here(), initial_tasks=twice)


def test_partitioning_finds_what_the_next_stage_reads(folder: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": ["one"]}), folder / "in" / "b.parquet")
    found: list[str] = []

    class Names(ProcessingStage[FileGroupTask, FileGroupTask]):
        name = "names"

        def process(self, task: FileGroupTask) -> FileGroupTask:
            found.extend(Path(path).name for path in task.data)
            return task

    Pipeline("p", stages=[FilePartitioningStage(str(folder / "in")), Names()]).run(executor=here())
    assert found == ["a.jsonl", "b.parquet"]
    (folder / "in" / "a.jsonl").unlink()
    stages = [FilePartitioningStage(str(folder / "in")), ParquetReaderStage()]
    assert Pipeline("p", stages=stages).run(executor=here()).report.rows_read == 1


# --- definitions ---


@pytest.mark.parametrize("size", [0, -1, "8", True, 1.5])
def test_a_wrong_batch_size_is_refused_where_it_is_written(size: Any) -> None:
    with pytest.raises(StageDefinitionError, match="batch_size"):
        type("Wrong", (OpensFiles,), {"batch_size": size})


def test_a_wrong_batch_size_of_an_object_is_refused_when_planning(folder: Path) -> None:
    stage = OpensFiles()
    stage.batch_size = 0
    with pytest.raises(PlanningError, match="batch_size=0"):
        Pipeline("p", stages=[FilePartitioningStage(str(folder / "in")), stage]).run(executor=here())
    stage.batch_size = None
    done = Pipeline("p", stages=[FilePartitioningStage(str(folder / "in")), stage]).run(executor=here())
    assert done.report.rows_read == LINES


def test_tasks_can_be_dataclasses() -> None:
    @dataclass
    class Prompt(Task[list[str]]):
        prompt: str = ""
        extra: list[int] = field(default_factory=list)

        @property
        def num_items(self) -> int:
            return len(self.data)

        def validate(self) -> bool:
            assert self.data, "no data"
            return True

    @dataclass
    class Scored(DocumentBatch):
        level: int = 0

    made = Prompt(dataset_name="d", data=["a"], prompt="p")
    assert (made.prompt, made.num_items, made._metadata, made.task_id) == ("p", 1, {}, "")
    with pytest.raises(AssertionError, match="no data"):
        Prompt("d", [])
    batch = Scored(dataset_name="d", data=pa.table({"text": ["x"]}), level=3)
    assert (batch.level, batch.num_items, batch.with_column("n", pa.array([1])).get_columns()) == (3, 1, ["text", "n"])
    empty = EmptyTask(dataset_name="d", data=None)
    assert isinstance(empty, SentinelTask)
    assert empty.task_id == "0"


# --- by the old name ---


def test_data_is_a_frame(curator: None) -> None:
    from nemo_curator.tasks import DocumentBatch as Batch  # type: ignore[import-not-found]

    batch = Batch(dataset_name="d", data=pa.table({"text": ["x", "y"]}))
    frame = batch.data
    frame["n"] = [1, 2]
    assert type(frame).__name__ == "DataFrame"
    assert batch.data["n"].tolist() == [1, 2]


def test_a_frame_has_the_index_of_any_frame(curator: None, folder: Path) -> None:
    """Without a name of ours, which prints and `reset_index` would show, and which would differ every time."""
    import pandas as pd

    importlib.import_module("nemo_curator")

    one, other = (DocumentBatch("d", pa.table({"text": texts})) for texts in (["a", "b", "c"], ["d"]))
    frame = one.data
    assert "gristmill" not in frame.to_string() + frame.to_csv()
    again = frame[frame["text"] > "a"].reset_index()
    assert again.to_dict("list") == {"index": [1, 2], "text": ["b", "c"]}
    with_column = DocumentBatch("d", pa.table({"index": [7], "text": ["e"]})).data
    assert list(with_column.reset_index().columns) == ["level_0", "index", "text"]
    # Frames of different batches stay apart all the same: their rows are not taken for each other's.
    assert index_tag(frame) == index_tag(pickle.loads(pickle.dumps(frame)).copy())
    assert index_tag(frame) != index_tag(other.data)
    assert index_tag(pd.concat([frame, other.data])) is None


def test_old_parameters_are_mapped_or_named(curator: None, folder: Path) -> None:
    from nemo_curator.stages.text.filters import ScoreFilter  # type: ignore[import-not-found]
    from nemo_curator.stages.text.filters.heuristic import WordCountFilter  # type: ignore[import-not-found]
    from nemo_curator.stages.text.io.reader import JsonlReader, ParquetReader
    from nemo_curator.stages.text.io.writer import JsonlWriter as Writer
    from nemo_curator.stages.text.modules import AddId  # type: ignore[import-not-found]

    assert ScoreFilter(WordCountFilter(), name="words").name == "words"
    assert AddId("id", name="numbered").name == "numbered"
    with pytest.warns(UserWarning, match=r"'dtype_backend' has no effect"):
        reader = JsonlReader(str(folder), read_kwargs={"lines": True, "dtype_backend": "pyarrow"}, name="r")
    assert (reader.name, reader.read_kwargs) == ("r", {})
    assert ParquetReader(str(folder), read_kwargs={"columns": ["text"]}).fields == ["text"]
    with pytest.raises(NotSupportedError, match="nrows"):
        JsonlReader(str(folder), read_kwargs={"nrows": 5})
    with pytest.raises(NotSupportedError, match="orient"):
        Writer("out", write_kwargs={"orient": "split"})
    assert Writer("out", write_kwargs={"force_ascii": False}, file_extension="json").extension == ".json"


def test_readers_and_writers_of_users(curator: None, folder: Path) -> None:
    from nemo_curator.stages.text.io.reader.base import BaseReader  # type: ignore[import-not-found]
    from nemo_curator.stages.text.io.writer.base import BaseWriter  # type: ignore[import-not-found]

    @dataclass
    class LinesReader(BaseReader):
        name: str = "lines_reader"

        def read_data(self, file_paths: list[str], read_kwargs: Any, fields: Any) -> pa.Table:
            return pa.Table.from_pylist(
                [json.loads(line) for path in file_paths for line in Path(path).read_text().splitlines()]
            )

    @dataclass
    class CsvOut(BaseWriter):
        file_extension: str = "csv"
        name: str = "csv_out"

        def write_data(self, task: DocumentBatch, file_path: str) -> None:
            with self.fs.open(file_path, "w") as file:
                task.data.to_csv(file, index=False, columns=["id", "text"])

    stages = [
        FilePartitioningStage(str(folder / "in")),
        LinesReader(_generate_ids=True),
        CsvOut(path=str(folder / "out")),
    ]
    report = Pipeline("p", stages=stages).run(executor=here()).report
    assert report.rows_written == LINES
    (written,) = (folder / "out").glob("*.csv")
    assert len(list(csv.reader(written.read_text().splitlines()))) == LINES + 1
    assert verify(str(folder / "out")).problems == []


def test_stock_readers_and_writers_can_be_derived_as_dataclasses(curator: None, folder: Path) -> None:
    from nemo_curator.stages.text.io.reader import JsonlReader
    from nemo_curator.stages.text.io.writer import JsonlWriter as Writer
    from nemo_curator.stages.text.modules import AddId

    @dataclass
    class First(JsonlReader):
        rows: int = 5
        name: str = "first"

        def __post_init__(self) -> None:
            self.limit, self.max_documents = None, self.rows
            super().__post_init__()

    @dataclass
    class Numbered(AddId):
        places: int = 3

    @dataclass
    class Lines(Writer):
        file_extension: str = "ndjson"
        note: str = ""

    def stages() -> list[Any]:
        return [
            First(file_paths=str(folder / "in")),
            Numbered("number", name="numbered"),
            Lines(str(folder / "out"), fields=["number"], note="n"),
        ]

    first, numbered, lines = stages()
    assert (first.name, first.max_documents, numbered.name, numbered.places) == ("first", 5, "numbered", 3)
    assert (lines.name, lines.note, lines.mode, lines.fields) == ("jsonl_writer", "n", "ignore", ("number",))
    assert repr(lines).endswith("name='jsonl_writer', file_extension='ndjson', note='n')")
    report = Pipeline("p", stages=stages()).run(executor=LocalExecutor({"num_cpus": 1})).report
    assert (report.rows_written, [file.suffix for file in (folder / "out").iterdir()]) == (5, [".ndjson"])
    again = Pipeline("p", stages=stages()).run(executor=LocalExecutor({"num_cpus": 1})).report
    assert again.partitions_done_before == 1
    assert verify(str(folder / "out")).problems == []
    with pytest.raises(TypeError, match="path"):
        Lines()  # type: ignore[call-arg]
    with pytest.raises(NotSupportedError, match="extension determines the format"):
        Lines(str(folder / "other"), file_extension="csv")


def test_methods_of_stock_readers_and_writers_can_be_overridden(curator: None, folder: Path) -> None:
    """In workers, too: each class is unpickled there."""
    from nemo_curator.stages.text.io.reader.jsonl import JsonlReaderStage as Stage
    from nemo_curator.stages.text.io.writer.jsonl import JsonlWriter as Writer
    from nemo_curator.stages.text.io.writer.parquet import ParquetWriter

    @dataclass
    class Shouted(Stage):
        name: str = "shouted"

        def read_data(self, paths: list[str], read_kwargs: Any = None, fields: Any = None) -> Any:
            frame = super().read_data(paths, read_kwargs, fields)
            return frame.assign(text=frame["text"].str.upper())

    @dataclass
    class Plain(Writer):
        def write_data(self, task: DocumentBatch, file_path: str) -> None:
            task.to_pandas()[self.fields].to_json(file_path, orient="records", lines=True, **self.write_kwargs)

    @dataclass
    class Checked(ParquetWriter):
        def write_data(self, task: DocumentBatch, file_path: str) -> None:
            super().write_data(task, file_path)
            assert self.fs.exists(file_path)

    @dataclass
    class BySource(Writer):
        name: str = "by_source"

        def process(self, task: DocumentBatch) -> FileGroupTask:
            (source,) = task._metadata["source_files"]
            stem = self.fs.sep.join([self._fs_path, f"of={Path(source).stem}", task.task_id.replace("/", "-")])
            self.write_data(task, f"{stem}.{self.get_file_extension()}")
            return FileGroupTask(task.dataset_name, [stem], task._stage_perf, {**task._metadata})

    def run(*stages: Any) -> Any:
        return Pipeline("p", stages=list(stages)).run(executor=LocalExecutor({"num_cpus": 1}))

    read = [FilePartitioningStage(str(folder / "in"), blocksize="2kB"), Shouted(fields=["id", "text"])]
    out = [str(folder / name) for name in ("plain", "checked", "of")]
    report = run(*read, Plain(out[0], fields=["text"], write_kwargs={"force_ascii": True})).report
    (written,) = Path(out[0]).iterdir()
    assert report.rows_written == LINES
    assert written.read_text().splitlines()[0] == '{"text":"TEXT 0"}'
    assert run(*read, Checked(out[1])).report.rows_written == LINES
    assert verify(out[0]).problems == verify(out[1]).problems == []
    assert len(run(gristmill.JsonlReader(str(folder / "in")), BySource(out[2]))) == 1
    (found,) = Path(out[2]).glob("of=*/*.jsonl")
    assert len(found.read_text().splitlines()) == LINES
    with pytest.raises(FileExistsError):
        run(gristmill.JsonlReader(str(folder / "in")), BySource(out[2], mode="error"))
    (source,) = (folder / "in").iterdir()
    source.write_text(source.read_text() + "{\n")
    with pytest.raises(Exception, match=f"row {LINES} cannot be read"):
        run(*read, Writer(str(folder / "never")))


def test_paths_of_earlier_releases_lead_to_the_same_classes(curator: None) -> None:
    from nemo_curator.stages.text import filters, modifiers, modules  # type: ignore[import-not-found]
    from nemo_curator.stages.text.modules import modifier, score_filter  # type: ignore[import-not-found]

    assert modules.ScoreFilter is score_filter.ScoreFilter is filters.ScoreFilter
    assert modules.Modify is modifier.Modify is modifiers.Modify


def test_a_writer_writes_single_files_for_scripts(curator: None, folder: Path) -> None:
    from nemo_curator.stages.text.io.writer.jsonl import JsonlWriter as Jsonl  # type: ignore[import-not-found]
    from nemo_curator.stages.text.io.writer.parquet import ParquetWriter  # type: ignore[import-not-found]

    batch = DocumentBatch("d", pa.table({"text": ["one", "two"]}))
    Jsonl(str(folder / "a"), write_kwargs={"force_ascii": False}).write_data(batch, str(folder / "0.jsonl"))
    ParquetWriter(str(folder / "b")).write_data(batch, str(folder / "0.parquet"))
    assert (folder / "0.jsonl").read_text() == '{"text":"one"}\n{"text":"two"}\n'
    assert pq.read_table(folder / "0.parquet").to_pydict() == {"text": ["one", "two"]}


@pytest.mark.parametrize("method", ["process", "write_data"])
def test_methods_of_a_writer_that_runs_would_not_call_are_refused(method: str) -> None:
    with pytest.raises(StageDefinitionError, match=rf"Mine defines {method}\(\), which runs do not call"):
        type("Mine", (JsonlWriter,), {method: lambda *_: None})


class Unnamed(ProcessingStage[DocumentBatch, DocumentBatch]):
    def process(self, task: DocumentBatch) -> DocumentBatch:
        return task


class NamedInside(Unnamed):
    def __init__(self) -> None:
        self._name = "inside"


def test_stages_may_have_no_name_or_the_same(curator: None, folder: Path) -> None:
    importlib.import_module("nemo_curator")
    pipeline = Pipeline("p", stages=[FilePartitioningStage(str(folder / "in")), OpensFiles()])
    for stage in (Unnamed(), NamedInside(), Unnamed(), NamedInside()):
        pipeline.add_stage(stage)
    report = pipeline.run(executor=here()).report
    names = [stage.name for stage in report.stages]
    assert names == ["opens_files", "Unnamed", "inside", "Unnamed_2", "inside_2"]
    assert {stage.rows_out for stage in report.stages} == {LINES}


def test_a_pipeline_can_be_told_where_to_resume(curator: None, folder: Path) -> None:
    """By the call that its development versions had, and with tasks by their first name."""
    tasks = importlib.import_module("nemo_curator.tasks")
    assert tasks._EmptyTask is EmptyTask
    stages = [FilePartitioningStage(str(folder / "in")), OpensFiles(), JsonlWriter(str(folder / "out"))]
    pipeline: Any = Pipeline("p", stages=stages)
    pipeline.enable_resumability(str(folder / "checkpoint"))
    assert pipeline.run(executor=here()).report.rows_written == LINES
    (again,) = pipeline.run(executor=here())
    assert again._stage_perf == []  # nothing ran


def test_a_cluster_that_is_there_is_the_default(curator: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    import nemo_curator  # type: ignore[import-not-found] # noqa: F401

    assert type(as_executor(None)).__name__ == "LocalExecutor"
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert type(as_executor(None)).__name__ == "RayDataExecutor"


def test_fasttext_predicts_lists_with_probabilities(curator: None) -> None:
    """The package that the extra `langid` brings returns labels alone."""
    fasttext = pytest.importorskip("fasttext")
    importlib.import_module("nemo_curator")
    model = fasttext.load_model(str(default_model_path()))
    texts = ["hello world, how are you", "guten Tag, wie geht es dir"]
    labels, probabilities = model.predict(texts, k=2)
    assert [len(row) for row in labels] == [2, 2]
    assert [row[0] for row in labels] == ["__label__en", "__label__de"]
    for text, names, values in zip(texts, labels, probabilities, strict=True):
        alone, numbers = model.predict(text, k=2)
        assert (list(alone), numbers.tolist()) == (names, pytest.approx(values.tolist()))
    assert probabilities[0].dtype == np.float32
    assert model.predict([]) == ([], [])
    assert {"__label__en", "__label__de"} < set(model.labels) == set(model.get_labels())


def test_nothing_of_gristmill_imports_fasttext() -> None:
    source = Path(gristmill.__file__).parent
    imports = re.compile(r"^\s*(import|from) fasttext\b", re.MULTILINE)
    users = [path for path in source.rglob("*.py") if imports.search(path.read_text(encoding="utf-8"))]
    assert users == []
