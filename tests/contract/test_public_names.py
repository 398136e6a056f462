"""Names, parameters, their order and their defaults that scripts rely on (A1, A2, A3 and A6 of the public surface)."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from gristmill.errors import GristmillError
from gristmill.ledger.performance import StagePerfStats, StageTimer, TaskPerfUtils
from gristmill.pipeline import Pipeline, WorkflowBase, WorkflowRunResult
from gristmill.stages.base import CompositeStage, ProcessingStage, get_stage_class
from gristmill.stages.function_decorators import processing_stage
from gristmill.stages.resources import Resources
from gristmill.stages.text.filters import NonAlphaNumericFilter, ScoreFilter, WordCountFilter
from gristmill.stages.text.io.reader import FilePartitioningStage, JsonlReader, ParquetReader
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.stages.text.io.writer.megatron_tokenizer import MegatronTokenizerWriter
from gristmill.tasks import DocumentBatch, EmptyTask, FailedTask, FileGroupTask, NoneTask, Task
from tests.unit.pipeline.jobs import here

REQUIRED = inspect.Parameter.empty


def _positional(function: Any) -> dict[str, Any]:
    """Parameters that can be given by position, with their defaults."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p.default for p in parameters if p.kind in kinds and p.name != "self"}


SIGNATURES: list[tuple[Any, dict[str, Any]]] = [
    (Resources, {"cpus": 1.0, "gpu_memory_gb": 0.0, "gpus": 0.0}),
    (Pipeline, {"name": REQUIRED, "description": None, "stages": None, "config": None}),
    (Pipeline.run, {"executor": None, "initial_tasks": None, "checkpoint_path": None}),
    (WorkflowRunResult, {"workflow_name": REQUIRED, "pipeline_tasks": ..., "metadata": ...}),
    (
        FilePartitioningStage,
        {
            "file_paths": REQUIRED,
            "files_per_partition": None,
            "blocksize": None,
            "file_extensions": None,
            "storage_options": None,
            "limit": None,
        },
    ),
    *(
        (
            reader,
            {
                "file_paths": REQUIRED,
                "files_per_partition": None,
                "blocksize": None,
                "fields": None,
                "read_kwargs": None,
                "task_type": "document",
                "file_extensions": ...,
                "_generate_ids": False,
                "_assign_ids": False,
            },
        )
        for reader in (JsonlReader, ParquetReader)
    ),
    *(
        (writer, {"path": REQUIRED, "write_kwargs": ..., "fields": None, "mode": "ignore"})
        for writer in (JsonlWriter, ParquetWriter)
    ),
    (
        MegatronTokenizerWriter,
        {
            "path": REQUIRED,
            "file_extension": ...,
            "write_kwargs": ...,
            "name": "megatron_tokenizer_writer",
            "mode": "ignore",
            "append_mode_implemented": False,
            "model_identifier": None,
            "cache_dir": None,
            "hf_token": None,
            "text_field": "text",
            "tokenization_batch_size": 1000,
            "append_eod": False,
            "transformers_init_kwargs": ...,
        },
    ),
    (ProcessingStage.setup_on_node, {"node_info": None, "worker_metadata": None}),
    (ProcessingStage.setup, {"worker_metadata": None}),
    (ProcessingStage.process, {"task": REQUIRED}),
    (ProcessingStage.process_batch, {"tasks": REQUIRED}),
    (
        ProcessingStage.with_,
        {
            "name": None,
            "resources": None,
            "batch_size": None,
            "runtime_env": None,
            "ray_stage_spec": None,
            "xenna_stage_spec": None,
            "num_workers": ...,
        },
    ),
    (DocumentBatch, {"dataset_name": ..., "data": ..., "_stage_perf": ..., "_metadata": ...}),
    (FileGroupTask, {"dataset_name": ..., "data": ..., "_stage_perf": ..., "_metadata": ...}),
]


@pytest.mark.parametrize(("function", "expected"), SIGNATURES, ids=lambda value: getattr(value, "__qualname__", ""))
def test_parameters_stand_in_order_with_their_defaults(function: Any, expected: dict[str, Any]) -> None:
    found = _positional(function)
    assert list(found) == list(expected)
    for name, default in expected.items():
        if default is not ...:
            assert found[name] == default, name


def test_attributes_of_a_stage() -> None:
    expected = {
        "name": "ProcessingStage",
        "resources": Resources(cpus=1.0),
        "batch_size": 1,
        "runtime_env": None,
        "is_source_stage": False,
        "is_sink_stage": False,
        "is_resumable": True,
    }
    assert {name: getattr(ProcessingStage, name) for name in expected} == expected


class Plain(ProcessingStage[DocumentBatch, DocumentBatch]):
    name = "plain"

    def process(self, task: DocumentBatch) -> DocumentBatch:
        self._log_metric("seen", 1.0)
        with self._time_metric("clock"):
            pass
        return task


class Wide(Plain):
    name = "wide"

    def process(self, task: DocumentBatch) -> list[DocumentBatch]:  # type: ignore[override]
        return [task, task]

    def process_batch(self, tasks: list[DocumentBatch]) -> list[DocumentBatch]:
        return tasks

    def inputs(self) -> Any:
        return {DocumentBatch: (["data"], ["text"]), FileGroupTask: (["data"], [])}


def test_methods_of_a_stage() -> None:
    stage = Plain()
    assert stage.inputs() == stage.outputs() == ([], [])
    assert stage.num_workers() is None
    assert not stage.supports_batch_processing()
    assert Wide().supports_batch_processing()
    assert stage.get_config() == {
        "name": "plain", "resources": Resources(cpus=1.0), "batch_size": 1, "supports_batch_processing": False,
    }  # fmt: skip
    assert stage.xenna_stage_spec() == {}
    assert stage.ray_stage_spec() == {"is_fanout_stage": False}
    assert Wide().ray_stage_spec() == {"is_fanout_stage": True}
    batch = DocumentBatch(data=pa.table({"x": [1]}))
    assert Wide().input_spec_for_task(batch) == (["data"], ["text"])
    assert Wide().input_spec_for_task(FileGroupTask(data=[])) == (["data"], [])
    assert not Wide().validate_input(batch)
    assert stage.validate_input(batch)


def test_process_batch_calls_process_and_refuses_invalid_tasks() -> None:
    batch = DocumentBatch(data=pa.table({"text": ["a"]}))
    assert Plain().process_batch([batch, batch]) == [batch, batch]

    class Needs(Plain):
        name = "needs"

        def inputs(self) -> Any:
            return ["data"], ["url"]

    with pytest.raises(ValueError, match="failed validation for stage"):
        Needs().process_batch([batch])


def test_metrics_are_consumed_once() -> None:
    stage = Plain()
    stage.process(DocumentBatch(data=pa.table({"text": ["a"]})))
    figures = stage._consume_custom_metrics()
    assert figures["seen"] == 1.0
    assert figures["clock"] >= 0
    assert stage._consume_custom_metrics() == {}
    stage._log_metrics({"a": 1.0, "b": 2.0})
    stage._log_metrics({"a": 1.0})
    assert stage._consume_custom_metrics() == {"a": 2.0, "b": 2.0}


@pytest.mark.parametrize(
    "members",
    [
        {"_name": "x"},
        {"_resources": Resources()},
        {"_batch_size": 3},
        {"num_workers": 3},
        {"__annotations__": {"num_workers": int}},
        {"name": property(lambda self: "x")},
        {"resources": property(lambda self: Resources())},
        {"batch_size": property(lambda self: 1)},
        {"runtime_env": property(lambda self: None)},
    ],
    ids=lambda members: next(iter(members)),
)
def test_definitions_that_would_be_ignored_are_errors(members: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="Wrong"):
        type("Wrong", (ProcessingStage,), {"process": lambda self, task: task, **members})


def test_stage_classes_are_found_by_name() -> None:
    assert get_stage_class("Plain") is Plain
    assert get_stage_class("JsonlReader") is JsonlReader
    with pytest.raises(KeyError, match="Did you mean 'JsonlReader'"):
        get_stage_class("JsonlReder")
    with pytest.raises(KeyError):
        get_stage_class("ProcessingStage")


def test_with_copies_merges_and_resets() -> None:
    stage = Plain()
    changed = stage.with_(
        name="other",
        batch_size=4,
        runtime_env={"pip": ["x"]},
        ray_stage_spec={"max_workers": 2},
        xenna_stage_spec={"slots_per_actor": 1},
        num_workers=3,
    )
    assert (stage.name, stage.batch_size, stage.runtime_env) == ("plain", 1, None)
    assert (changed.name, changed.batch_size, changed.runtime_env) == ("other", 4, {"pip": ["x"]})
    assert changed.requested_workers() == 3
    assert changed.with_(num_workers=None).requested_workers() is None
    assert changed.with_(ray_stage_spec={"min_workers": 1}).merged_ray_stage_spec() == {
        "is_fanout_stage": False, "max_workers": 2, "min_workers": 1,
    }  # fmt: skip
    assert changed.merged_xenna_stage_spec() == {"slots_per_actor": 1}
    assert changed.with_(batch_size=None).batch_size == 4
    with pytest.raises(ValueError, match="num_workers"):
        stage.with_(xenna_stage_spec={"num_workers": 1})
    with pytest.raises(ValueError, match="num_workers"):
        stage.with_(num_workers=0)


def test_with_does_not_share_containers_that_the_copy_may_change() -> None:
    class Holder(Plain):
        name = "holder"

        def __init__(self) -> None:
            self.words = ["a"]

    stage = Holder()
    stage.with_(batch_size=2).words.append("b")  # type: ignore[attr-defined]
    assert stage.words == ["a"]


def test_composites_refuse_doubled_and_unknown_parts() -> None:
    class Doubled(CompositeStage[Any, Any]):
        name = "doubled"

        def decompose(self) -> list[ProcessingStage[Any, Any]]:
            return [Plain(), Plain()]

    with pytest.raises(ValueError, match="several parts"):
        Doubled().with_({"plain": {"batch_size": 2}})
    with pytest.raises(ValueError, match="no part"):
        JsonlReader("x").with_({"other": {}})


def test_the_decorator_hands_metadata_on_and_takes_none() -> None:
    @processing_stage(name="copy")
    def copy(task: DocumentBatch) -> DocumentBatch:
        return DocumentBatch(data=task.to_pyarrow())

    @processing_stage(name="nothing")
    def nothing(task: DocumentBatch) -> None:
        return None

    batch = DocumentBatch(data=pa.table({"text": ["a"]}), _metadata={"k": "v"}, _stage_perf=[StagePerfStats("before")])
    result = copy.process(batch)
    assert result._metadata == {"k": "v"}
    assert [stats.stage_name for stats in result._stage_perf] == ["before"]
    assert nothing.process(batch) is None


def test_the_decorator_registers_a_class_by_the_name_of_the_stage() -> None:
    def make(suffix: str) -> ProcessingStage[Any, Any]:
        @processing_stage(name="RegisteredByDecorator", resources={"cpus": 2.0}, batch_size=3)
        def add(task: DocumentBatch) -> DocumentBatch:
            return DocumentBatch(data=pa.table({"text": [f"{text}{suffix}" for text in task.to_pandas()["text"]]}))

        return add

    first = make("1")
    kind = get_stage_class("RegisteredByDecorator")
    assert type(first) is kind
    assert kind.__name__ == "RegisteredByDecorator"
    made = kind()  # type: ignore[call-arg]
    assert (made.name, made.resources, made.batch_size) == (first.name, first.resources, first.batch_size)
    batch = DocumentBatch(data=pa.table({"text": ["a"]}))
    assert made.process(batch).to_pandas()["text"].tolist() == ["a1"]
    second = make("2")
    assert get_stage_class("RegisteredByDecorator") is type(second)
    sent = cloudpickle.loads(cloudpickle.dumps(first))
    assert sent.process(batch).to_pandas()["text"].tolist() == ["a1"]
    assert (sent.resources, sent.batch_size) == (Resources(cpus=2.0), 3)
    assert first.process(batch).to_pandas()["text"].tolist() == ["a1"]


# --- tasks ---


def test_tasks() -> None:
    batch = DocumentBatch("set", pa.table({"text": ["a", "b"]}))
    assert batch.dataset_name == "set"
    assert batch.num_items == 2
    assert batch.get_columns() == ["text"]
    assert batch.get_deterministic_id() is None
    group = FileGroupTask(data=["b", "a"], reader_config={"k": 1})
    assert group.num_items == 2
    assert group.reader_config == {"k": 1}
    assert group.get_deterministic_id() == FileGroupTask(data=["a", "b"]).get_deterministic_id()
    assert len(group.get_deterministic_id()) == 12
    assert EmptyTask().task_id == "0"
    assert EmptyTask().num_items == 0
    assert NoneTask().num_items == FailedTask().num_items == 0
    for kind in (DocumentBatch, FileGroupTask, EmptyTask, NoneTask, FailedTask):
        assert issubclass(kind, Task)
    batch.add_stage_perf(StagePerfStats("s"))
    assert [stats.stage_name for stats in batch._stage_perf] == ["s"]
    with pytest.raises(TypeError):
        Task()  # type: ignore[abstract]


def test_validate_is_called_when_a_task_is_made() -> None:
    class Checked(Task[int]):
        @property
        def num_items(self) -> int:
            return 1

        def validate(self) -> bool:
            if self.data < 0:
                raise ValueError("negative")
            return True

    assert Checked(data=1).data == 1
    with pytest.raises(ValueError, match="negative"):
        Checked(data=-1)


# --- pipelines and performance ---


def test_workflow_results() -> None:
    result = WorkflowRunResult("w")
    result.add_pipeline_tasks("p", [EmptyTask()])
    result.extend_metadata({"a": 1})
    result.add_metadata("b", 2)
    assert result.get_metadata("a") == 1
    assert result.get_metadata("c") is None
    assert len(result.pipeline_tasks["p"]) == 1
    assert inspect.isabstract(WorkflowBase)


def test_performance_records() -> None:
    one = StagePerfStats("s", process_time=1.0, num_items_processed=2, custom_metrics={"k": 1.0})
    two = StagePerfStats("s", process_time=2.0, num_items_processed=3, custom_metrics={"k": 2.0})
    assert (one + two).process_time == 3.0
    assert sum([one, two]).num_items_processed == 5
    assert dict((one + two).items())["custom.k"] == 3.0
    task = EmptyTask()
    task._stage_perf = [one, two]
    collected = TaskPerfUtils.collect_stage_metrics([task])
    assert list(collected["s"]["process_time"]) == [1.0, 2.0]
    totals = TaskPerfUtils.aggregate_task_metrics([task], prefix="run")
    assert any(key.endswith("s_process_time_sum") and value == 3.0 for key, value in totals.items())
    assert TaskPerfUtils.get_aggregated_stage_stat([task], "s", "process_time") == 3.0
    assert set(one.to_dict()) == {
        *("stage_name", "process_time", "actor_idle_time", "input_data_size_mb", "num_items_processed"),
        "custom_metrics",
    }
    assert [name for name, _ in one.items()] == [*list(one.to_dict())[1:-1], "custom.k"]
    assert totals["run_s_custom.k_mean"] == 1.5
    shared = EmptyTask()
    shared._stage_perf = [one]
    result = WorkflowRunResult("w", pipeline_tasks={"p": [task, shared]})
    assert TaskPerfUtils.get_unique_stage_stat(result, "s", "num_items_processed", "p") == 5
    assert TaskPerfUtils.get_unique_stage_stat(result, "s", "custom.k", "other") == 0
    assert TaskPerfUtils.aggregate_task_metrics(result)["s_process_time_sum"] == 3.0
    one.reset()
    assert sum(value for _, value in one.items()) == 0
    timer = StageTimer(Plain())
    timer.reinit(2**20)
    with timer.time_process(2):
        pass
    name, stats = timer.log_stats()
    assert (name, stats.num_items_processed, stats.input_data_size_mb) == (Plain.name, 2, 1.0)


def test_tasks_carry_a_record_for_each_stage(tmp_path: Path) -> None:
    """Also for filters that run as one, and with the figures that a stage logged."""

    class Logged(ProcessingStage[DocumentBatch, DocumentBatch]):
        name = "logged"

        def process(self, task: DocumentBatch) -> list[DocumentBatch]:
            self._log_metric("seen", task.num_items)
            return [task.take(np.arange(2)), task.take(np.arange(2, 4))]

    documents = tmp_path / "a.jsonl"
    documents.write_text('{"text": "some words"}\n' * 4)
    filters = [ScoreFilter(WordCountFilter(min_words=1)), ScoreFilter(NonAlphaNumericFilter())]
    result = Pipeline("p", stages=[JsonlReader(str(documents)), *filters, Logged()]).run(here(), progress=False)
    names = ["jsonl_reader", "WordCountFilter", "NonAlphaNumericFilter", "logged"]
    assert [[record.stage_name for record in task._stage_perf] for task in result] == [names, names]
    found = TaskPerfUtils.collect_stage_metrics(result)
    assert found["logged"]["custom.seen"].tolist() == [4.0]
    assert [found[name]["num_items_processed"].sum() for name in names] == [4, 4, 4, 4]
    stages = [JsonlReader(str(documents)), *filters, JsonlWriter(str(tmp_path / "out"))]
    (written,) = Pipeline("p", stages=stages).run(here(), progress=False)
    assert [record.stage_name for record in written._stage_perf] == [*names[:3], "jsonl_writer"]


# --- readers and writers ---


def test_options_that_cannot_work_are_refused() -> None:
    for reader in (JsonlReader, ParquetReader):
        with pytest.raises((ValueError, NotImplementedError), match="document"):
            reader("x", task_type="image")
        with pytest.raises(ValueError, match="mutually exclusive"):
            reader("x", _generate_ids=True, _assign_ids=True)
        with pytest.raises(ValueError, match="blok_size"):
            reader("x", read_kwargs={"blok_size": 1})
    for writer in (JsonlWriter, ParquetWriter):
        with pytest.raises(ValueError, match="compresion"):
            writer("x", write_kwargs={"compresion": "gzip"})
        with pytest.raises(ValueError, match="mode"):
            writer("x", mode="replace")
        with pytest.raises(ValueError, match="lzma"):
            writer("x", compression="lzma")


def test_constructors_touch_nothing(tmp_path: Any) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.jsonl").write_text("{}")
    JsonlWriter(str(tmp_path / "out"), mode="overwrite")
    JsonlWriter(str(tmp_path / "new"))
    JsonlReader(str(tmp_path / "nowhere"))
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["old.jsonl", "out"]


def test_partitioning_gives_tasks(tmp_path: Any) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text("{}\n")
    stage = FilePartitioningStage(str(tmp_path), file_extensions=[".jsonl"])
    tasks = stage.process(EmptyTask())
    assert [task.data for task in tasks] == [[str(tmp_path / f"{number}.jsonl")] for number in range(3)]
    assert tasks[1]._metadata["partition_index"] == 1
    assert tasks[1]._metadata["total_partitions"] == 3
    assert tasks[1]._metadata["source_files"] == tasks[1].data
    assert stage.resources == Resources(cpus=0.5)
    assert stage.num_workers() == 1


def test_a_writer_alone_writes_one_batch(tmp_path: Any) -> None:
    for writer, kind in ((JsonlWriter, "jsonl"), (ParquetWriter, "parquet")):
        batch = DocumentBatch(data=pa.table({"text": ["a"]}), _metadata={"source_files": ["x"]})
        one, two = writer(str(tmp_path)).process(batch), writer(str(tmp_path)).process(batch)
        assert isinstance(one, FileGroupTask)
        assert one.data == two.data
        assert one._metadata["format"] == kind


def test_every_error_is_ours() -> None:
    for stage in (
        lambda: JsonlReader("x", task_type="y"),
        lambda: Resources(cpus=-1),
        lambda: Plain().with_(batch_size=0),
    ):
        with pytest.raises(GristmillError):
            stage()
