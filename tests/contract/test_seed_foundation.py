"""The seed documents hold here: resources, the memory guide and streaming, with the package's name replaced.

Numbers in the names of tests are those of the checklist. What needs worker processes, GPUs or a cluster to be seen is
tested with the executors; here are the promises that the calling process can prove.
"""

from __future__ import annotations

import gc
import importlib
import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from gristmill.backends.base import BaseExecutor, NodeInfo, WorkerMetadata
from gristmill.backends.local import LocalExecutor
from gristmill.backends.registry import as_executor, executor_names
from gristmill.errors import ResourcesError, UsageError
from gristmill.pipeline import Pipeline
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.core import ProcessingStage as CoreStage
from gristmill.stages.function_definitions import processing_stage
from gristmill.stages.resources import Resources
from gristmill.stages.text.io import JsonlReader, ParquetReader
from gristmill.stages.text.io.reader import FilePartitioningStage
from gristmill.stages.text.io.writer import JsonlWriter, ParquetWriter
from gristmill.tasks import DocumentBatch, EmptyTask
from tests.unit.pipeline.jobs import here, read_rows, write_lines

SEED_STAGES = textwrap.dedent(
    """
    from gristmill.stages.core import ProcessingStage
    from gristmill.stages.function_definitions import processing_stage
    from gristmill.stages.resources import Resources
    from gristmill.tasks import DocumentBatch

    class TokenizerStage(ProcessingStage[DocumentBatch, DocumentBatch]):
        name: str = "TokenizerStage"
        resources: Resources = Resources(cpus=1.0)  # CPU-only, no GPU needed

        def __init__(self):
            super().__init__()

        def process(self, task):
            frame = task.to_pandas()
            return DocumentBatch(data=frame.assign(tokens=frame["text"].str.split().str.len()))

    class ModelStage(ProcessingStage[DocumentBatch, DocumentBatch]):
        name: str = "ModelStage"

        def __init__(self, model_path: str):
            super().__init__()
            self.model_path = model_path

        def process(self, task):
            return task

    @processing_stage(name="custom_filter", resources=Resources(cpus=1))
    def custom_filter_stage(task: DocumentBatch) -> DocumentBatch:
        frame = task.to_pandas()
        return DocumentBatch(data=frame[frame["tokens"] > 1])

    model_stage = ModelStage(model_path="path/to/model").with_(resources=Resources(gpus=1))
    quarter = ModelStage(model_path="path/to/model").with_(resources=Resources(gpus=0.25))
    memory = ModelStage(model_path="path/to/model").with_(resources=Resources(gpu_memory_gb=10))
    """
)

SEED_PIPELINE = textwrap.dedent(
    """
    from gristmill.pipeline import Pipeline
    from gristmill.stages.text.io import JsonlReader
    from gristmill.stages.text.io.writer import JsonlWriter

    pipeline = Pipeline(
        name="my_pipeline",
        description="Process text documents"
    )
    pipeline.add_stage(JsonlReader(file_paths="input/"))

    # Add text processing stages
    for stage in STAGES:
        pipeline.add_stage(stage)

    pipeline.add_stage(JsonlWriter(path="output/"))

    # Execute the pipeline
    pipeline.run()
    """
)


def _seed_names() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "seed"}
    exec(compile(SEED_STAGES, "seed", "exec", dont_inherit=True), names)
    return names


def _documents(folder: Path) -> list[dict[str, Any]]:
    rows = [{"id": number, "text": "word " * number} for number in range(4)]
    write_lines(folder / "input" / "a.jsonl", rows)
    return rows


# --- imports: 74, 75, 76, 90, 91, 92, 118 ---


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("stages.core", "ProcessingStage"),
        ("stages.core", "CompositeStage"),
        ("stages.function_definitions", "processing_stage"),
        ("stages.function_decorators", "processing_stage"),
        ("stages.resources", "Resources"),
        ("stages.base", "ProcessingStage"),
        ("tasks", "DocumentBatch"),
        ("pipeline", "Pipeline"),
        ("stages.text.io", "JsonlReader"),
        ("stages.text.io", "ParquetReader"),
        ("stages.text.io", "JsonlWriter"),
        ("stages.text.io", "ParquetWriter"),
        ("stages.text.io.reader", "JsonlReader"),
        ("stages.text.io.reader", "ParquetReader"),
        ("stages.text.io.writer", "JsonlWriter"),
        ("stages.text.io.writer", "ParquetWriter"),
        ("backends.base", "WorkerMetadata"),
        ("backends.base", "NodeInfo"),
    ],
)
def test_074_to_118_names_are_where_the_seeds_import_them(module: str, name: str) -> None:
    assert hasattr(importlib.import_module(f"gristmill.{module}"), name)


def test_074_the_alias_is_the_same_class() -> None:
    assert CoreStage is ProcessingStage


# --- resources: 77 to 89, 95 to 98 ---


def test_077_078_079_classes_declare_resources_as_attributes() -> None:
    names = _seed_names()
    stage = names["TokenizerStage"]()
    assert stage.name == "TokenizerStage"
    assert stage.resources == Resources(cpus=1.0)
    assert names["ModelStage"]("x").resources == Resources(cpus=1.0)


def test_080_a_function_becomes_a_stage() -> None:
    stage = _seed_names()["custom_filter_stage"]
    assert isinstance(stage, ProcessingStage)
    assert (stage.name, stage.resources) == ("custom_filter", Resources(cpus=1))
    with pytest.raises(ValueError, match="exactly one parameter"):
        processing_stage(name="two")(lambda task, more: task)
    with pytest.raises(ValueError, match="exactly one parameter"):
        processing_stage(name="none")(lambda: None)
    by_dictionary = processing_stage(name="d", resources={"cpus": 2.0}, batch_size=3)(lambda task: task)
    assert by_dictionary.resources == Resources(cpus=2.0)
    assert by_dictionary.batch_size == 3


def test_081_with_returns_a_changed_copy() -> None:
    names = _seed_names()
    plain = names["ModelStage"]("path")
    changed = plain.with_(resources=Resources(gpus=1))
    assert changed is not plain
    assert changed.resources.gpus == 1
    assert plain.resources.gpus == 0
    assert changed.model_path == "path"
    assert names["model_stage"].resources == Resources(gpus=1)
    with pytest.raises(UsageError, match="Resources"):
        plain.with_(resources={"cpus": 2})


def test_082_106_declared_resources_reach_the_plan(tmp_path: Path) -> None:
    _documents(tmp_path)
    names = _seed_names()
    pipeline = Pipeline(
        "p",
        stages=[
            JsonlReader(str(tmp_path / "input")),
            names["TokenizerStage"]().with_(resources=Resources(cpus=2)),
            names["quarter"],
            JsonlWriter(str(tmp_path / "output")),
        ],
    )
    text = pipeline.explain(LocalExecutor(config={"num_cpus": 4, "num_gpus": 1}))
    assert "each 2 CPUs" in text
    assert "0.25 GPUs" in text


def test_083_gpu_stages_are_refused_where_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    _documents(tmp_path)
    stages = [JsonlReader(str(tmp_path / "input")), _seed_names()["model_stage"]]
    with pytest.raises(ResourcesError, match=r"ModelStage.*GPU"):
        Pipeline("p", stages=stages).run(executor=here())


def test_085_086_shares_and_memory_of_gpus() -> None:
    assert Resources(gpus=0.25).requires_gpu
    assert Resources(gpus=0.25).gpus == 0.25
    small = Resources(gpu_memory_gb=1)
    assert small.requires_gpu
    assert 0 < small.gpus_on(24) < 0.1
    assert Resources(gpu_memory_gb=10).gpus_on(20) == 0.5
    with pytest.raises(UsageError, match="does not fit"):
        Resources(gpu_memory_gb=80).gpus_on(24)


def test_087_115_stages_have_defaults() -> None:
    assert ProcessingStage.resources == Resources(cpus=1.0)
    for part in [*JsonlReader("x").decompose(), JsonlWriter("y")]:
        assert 0 < part.resources.cpus <= 1
        assert not part.resources.requires_gpu


def test_088_performance_of_stages_is_recorded(tmp_path: Path) -> None:
    _documents(tmp_path)
    stages = [JsonlReader(str(tmp_path / "input")), _seed_names()["TokenizerStage"]()]
    result = Pipeline("p", stages=stages).run(executor=here())
    stats = {record.stage_name: record for record in result[0]._stage_perf}
    assert stats["TokenizerStage"].process_time > 0
    assert stats["TokenizerStage"].num_items_processed == 4
    assert all(stage.busy_s >= 0 and stage.calls == 1 for stage in result.report.stages)


def test_095_096_097_forms_of_resources() -> None:
    assert Resources(cpus=2.0).requires_gpu is False
    assert Resources(cpus=4.0, gpu_memory_gb=8.0).requires_gpu
    assert Resources(cpus=8.0, gpus=2.0).gpus == 2.0
    for wrong in ({"gpus": 1, "gpu_memory_gb": 1}, {"cpus": -1}, {"gpus": 1.5}, {"cpus": "2"}, {"cpus": float("nan")}):
        with pytest.raises(ValueError, match="Resources"):
            Resources(**wrong)
    with pytest.raises(AttributeError):
        Resources().cpus = 2  # type: ignore[misc]
    assert Resources(2.0, 0.0, 1.0) == Resources(cpus=2.0, gpus=1.0)


def test_098_nothing_is_looked_up_when_resources_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 1 / 0)
    assert hash(Resources(gpu_memory_gb=10, cpus=64)) == hash(Resources(cpus=64, gpu_memory_gb=10))


# --- pipelines: 89, 90, 93, 94, 99, 105 ---


def test_089_093_094_the_guides_pipeline_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = _documents(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"STAGES": []}
    exec(compile(SEED_PIPELINE, "seed", "exec", dont_inherit=True), names)
    assert read_rows(tmp_path / "output") == rows


def test_077_to_094_the_seeds_stages_run_in_the_guides_pipeline(tmp_path: Path) -> None:
    rows = _documents(tmp_path)
    seed = _seed_names()
    pipeline = Pipeline(name="p", description="d")
    pipeline.add_stage(JsonlReader(file_paths=str(tmp_path / "input")))
    pipeline.add_stage(seed["TokenizerStage"]()).add_stage(seed["custom_filter_stage"])
    pipeline.add_stage(JsonlWriter(path=str(tmp_path / "output")))
    result = pipeline.run(executor=here())
    assert read_rows(tmp_path / "output") == [{**row, "tokens": row["id"]} for row in rows if row["id"] > 1]
    assert result.report.stages[2].dropped == {"custom_filter": 2}


def test_105_there_are_several_executors_and_the_local_one_is_the_default() -> None:
    assert {"local", "ray_data", "xenna"} <= set(executor_names())
    assert isinstance(as_executor(None), LocalExecutor)
    assert isinstance(as_executor("local"), BaseExecutor)


# --- workers: 107, 108, 109 ---


def test_107_108_hooks_get_what_the_seeds_pass(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Hooks(ProcessingStage[DocumentBatch, DocumentBatch]):
        name = "hooks"

        def setup_on_node(
            self, node_info: NodeInfo | None = None, worker_metadata: WorkerMetadata | None = None
        ) -> None:
            seen.append(("node", type(node_info), type(worker_metadata)))

        def setup(self, _: WorkerMetadata | None = None) -> None:
            seen.append(("setup", type(_)))

        def process(self, task: DocumentBatch) -> DocumentBatch:
            seen.append(("process",))
            return task

        def teardown(self) -> None:
            seen.append(("teardown",))

    _documents(tmp_path)
    Pipeline("p", stages=[JsonlReader(str(tmp_path / "input")), Hooks()]).run(executor=here())
    assert seen == [("node", NodeInfo, WorkerMetadata), ("setup", WorkerMetadata), ("process",), ("teardown",)]


def test_109_112_154_batch_size_decides_how_many_tasks_a_call_gets() -> None:
    sizes: list[int] = []

    class WordCountStage(ProcessingStage[DocumentBatch, DocumentBatch]):
        name = "WordCountStage"

        def process(self, task: DocumentBatch) -> DocumentBatch:
            return task

        def process_batch(self, tasks: list[DocumentBatch]) -> list[DocumentBatch]:
            sizes.append(len(tasks))
            return tasks

    import pyarrow as pa

    word_count_stage = WordCountStage().with_(batch_size=3)
    tasks = [DocumentBatch(data=pa.table({"text": [str(number)]})) for number in range(7)]
    result = Pipeline("p", stages=[word_count_stage]).run(executor=here(), initial_tasks=tasks)
    assert sizes == [3, 3, 1]
    assert len(result) == 7
    assert WordCountStage().with_(batch_size=128).batch_size == 128
    with pytest.raises(UsageError, match="batch_size"):
        WordCountStage().with_(batch_size=0)


# --- memory: 111, 119, 143 ---


def test_111_119_partitions_stream_through(tmp_path: Path) -> None:
    alive: list[int] = []
    rows = [{"id": number, "text": "x" * 100} for number in range(2000)]
    write_lines(tmp_path / "input" / "a.jsonl", rows)

    @processing_stage(name="watch")
    def watch(batch: DocumentBatch) -> DocumentBatch:
        alive.append(batch.num_items)
        return batch

    small = JsonlReader(str(tmp_path / "input"), blocksize="16KB", read_kwargs={"batch_bytes": "16KB"})
    Pipeline("p", stages=[small, watch, JsonlWriter(str(tmp_path / "small"))]).run(executor=here())
    pieces = list(alive)
    alive.clear()
    Pipeline("p", stages=[JsonlReader(str(tmp_path / "input")), watch, JsonlWriter(str(tmp_path / "large"))]).run(
        executor=here()
    )
    assert len(pieces) > 5
    assert max(pieces) < 400
    assert sum(pieces) == 2000
    assert alive == [2000]
    assert read_rows(tmp_path / "small") == read_rows(tmp_path / "large") == rows


def test_143_stages_may_collect_garbage(tmp_path: Path) -> None:
    rows = _documents(tmp_path)

    @processing_stage(name="tidy")
    def tidy(batch: DocumentBatch) -> DocumentBatch:
        frame = batch.to_pandas()
        result = DocumentBatch(data=frame.copy())
        del frame, batch
        gc.collect()
        return result

    stages = [JsonlReader(str(tmp_path / "input")), tidy, JsonlWriter(str(tmp_path / "output"))]
    Pipeline("p", stages=stages).run(executor=here())
    assert read_rows(tmp_path / "output") == rows


# --- readers: 116, 117, 120 ---


@pytest.mark.parametrize("reader", [JsonlReader, ParquetReader])
def test_116_117_files_per_partition_or_blocksize(reader: Any, recwarn: pytest.WarningsRecorder) -> None:
    assert reader(file_paths="jsonl_input/", files_per_partition=50).files_per_partition == 50
    assert reader(file_paths="jsonl_input/", blocksize="1GB").blocksize == "1GB"
    assert not recwarn.list  # the guide's own example must not warn
    with pytest.raises(ValueError, match="exclusive"):
        reader(file_paths="jsonl_input/", files_per_partition=50, blocksize="1GB")


def test_116_files_are_grouped(tmp_path: Path) -> None:
    for number in range(7):
        write_lines(tmp_path / "input" / f"{number}.jsonl", [{"id": number}])
    stages = [JsonlReader(str(tmp_path / "input"), files_per_partition=3), JsonlWriter(str(tmp_path / "output"))]
    result = Pipeline("p", stages=stages).run(executor=here())
    assert len(result) == 3
    assert [row["id"] for row in read_rows(tmp_path / "output")] == list(range(7))


def test_120_blocksize_does_split_a_large_file(tmp_path: Path) -> None:
    rows = [{"id": number, "text": "x" * 50} for number in range(300)]
    write_lines(tmp_path / "input" / "a.jsonl", rows)
    stages = [JsonlReader(str(tmp_path / "input"), blocksize=2000), JsonlWriter(str(tmp_path / "output"))]
    result = Pipeline("p", stages=stages).run(executor=here())
    assert len(result) > 5
    assert read_rows(tmp_path / "output") == rows


# --- composites ---


def test_composites_take_both_forms_of_with() -> None:
    reader = JsonlReader("x")
    slower = reader.with_({"jsonl_reader": {"resources": Resources(cpus=2)}})
    assert [part.resources.cpus for part in slower.decompose_and_apply_with()] == [0.5, 2]
    everywhere = reader.with_(resources=Resources(cpus=3))
    assert [part.resources.cpus for part in everywhere.decompose_and_apply_with()] == [3, 3]
    assert [part.resources.cpus for part in reader.decompose_and_apply_with()] == [0.5, 1]
    with pytest.raises(ValueError, match="no part named"):
        reader.with_({"jsonl_raeder": {}})
    with pytest.raises(TypeError):
        reader.process(None)  # type: ignore[arg-type]


def test_composites_answer_for_their_parts() -> None:
    class Two(CompositeStage[DocumentBatch, DocumentBatch]):
        name = "two"

        def decompose(self) -> list[ProcessingStage[Any, Any]]:
            names = _seed_names()
            return [names["TokenizerStage"](), names["custom_filter_stage"]]

    assert Two().inputs() == ([], [])
    assert Two().outputs() == ([], [])
    assert (
        json.dumps(Two().with_({"TokenizerStage": {"name": "tokens"}}).decompose_and_apply_with()[0].name) == '"tokens"'
    )


# --- errors that callers of the existing API catch ---


def test_values_that_are_not_offered_raise_what_callers_catch(tmp_path: Path) -> None:
    for reader in (JsonlReader, ParquetReader):
        with pytest.raises(NotImplementedError):
            reader("in/", task_type="image")
    for writer in (JsonlWriter, ParquetWriter):
        with pytest.raises(NotImplementedError):
            writer(str(tmp_path), mode="append")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="mode must be one of"):
            writer(str(tmp_path), mode="sideways")  # type: ignore[arg-type]


def test_a_writer_that_must_not_find_output_raises_file_exists(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "one"}\n')

    def job() -> Pipeline:
        writer = JsonlWriter(str(tmp_path / "out"), mode="error")
        return Pipeline("job", stages=[JsonlReader(str(tmp_path / "in.jsonl")), writer])

    job().run(executor=LocalExecutor(config={"num_cpus": 0}))
    with pytest.raises(FileExistsError, match="already holds the output of a run"):
        job().run(executor=LocalExecutor(config={"num_cpus": 0}))


def test_file_partitioning_says_where_a_group_stands(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "one"}\n')
    groups = list(FilePartitioningStage(str(tmp_path), files_per_partition=2).process(EmptyTask()))
    assert [task._metadata["partition_index"] for task in groups] == [0, 1]
    assert [task._metadata["total_partitions"] for task in groups] == [2, 2]
    assert [len(task._metadata["source_files"]) for task in groups] == [2, 1]
