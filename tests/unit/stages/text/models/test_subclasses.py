"""What users write on top of the model stages, as the published pages describe it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from gristmill.backends.local import LocalExecutor
from gristmill.errors import MissingColumnError, StageDefinitionError, UsageError
from gristmill.pipeline import Pipeline
from gristmill.stages.text.classifiers.base import ClassifierModelStage, DistributedDataClassifier
from gristmill.stages.text.embedders import EmbeddingCreatorStage
from gristmill.stages.text.embedders.base import EmbeddingModelStage
from gristmill.stages.text.io.reader import JsonlReader
from gristmill.stages.text.io.writer import JsonlWriter
from gristmill.stages.text.models import ModelStage, TokenizerStage, devices
from gristmill.tasks import DocumentBatch
from tests.unit.stages.text.models.tiny import batch_of, make_classifier, make_sequence_classifier, run, texts


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_classifier(tmp_path_factory.mktemp("models") / "quality")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_sequence_classifier(tmp_path_factory.mktemp("models") / "plain")


class Labels(ModelStage):
    """The classifier of the published page, with `_setup` as it is named there: without any parameter."""

    def __init__(self, model_identifier: str, **options: Any) -> None:
        super().__init__(model_identifier, unpack_inference_batch=True, **options)

    def outputs(self) -> tuple[list[str], list[str]]:
        return ["data"], ["label"]

    def _setup(self) -> None:
        self.model = AutoModelForSequenceClassification.from_pretrained(str(self.model_path)).eval()

    def process_model_output(self, outputs: Any, model_input_batch: Any = None) -> dict[str, Any]:
        return {"predictions": np.argmax(outputs.logits.cpu().numpy(), axis=1)}

    def create_output_dataframe(self, df_cpu: Any, collected_output: Any) -> Any:
        return df_cpu.assign(label=collected_output["predictions"])


class Marked(ClassifierModelStage):
    """Adds a column of its own around the published work."""

    def process(self, batch: DocumentBatch) -> DocumentBatch | None:
        result = super().process(batch)
        return result and result.with_column("own", pa.array(range(result.num_items)))


# --- hooks ---


def test_setup_of_a_subclass_needs_no_parameter(plain: Path) -> None:
    out = run([TokenizerStage(str(plain)), Labels(str(plain))], batch_of(texts(5)))
    assert out.get_columns() == ["text", "id", "input_ids", "attention_mask", "label"]


@pytest.mark.parametrize("kind", [ClassifierModelStage, EmbeddingModelStage])
def test_a_setup_of_ones_own_takes_the_place_of_the_published_one(kind: Any, model: Path) -> None:
    asked: list[bool] = []

    class Mine(kind):
        def _setup(self, local_files_only: bool = True) -> None:
            asked.append(local_files_only)

    stage = Mine(str(model))
    stage.setup_on_node()
    stage.setup()
    assert asked == [False, True]
    assert stage.model is None


def test_a_process_of_ones_own_is_called_also_where_tokens_could_be_shared(model: Path, tmp_path: Path) -> None:
    @dataclass(kw_only=True, eq=False, repr=False)
    class WithMark(DistributedDataClassifier):
        def model_stage(self) -> Any:
            return Marked(self.model_identifier, label_field=self.label_field)

    stages = [
        WithMark(model_identifier=str(model), label_field="a"),
        DistributedDataClassifier(model_identifier=str(model), label_field="b"),
    ]
    tasks = Pipeline("p", stages=stages).run(LocalExecutor({"num_cpus": 0}), initial_tasks=[batch_of(texts(4))])
    assert sorted(tasks[0].get_columns()) == ["a", "b", "id", "own", "text"]


def test_numpy_can_read_outputs_where_bfloat16_is_faster(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "faster_type", lambda _: torch.bfloat16)
    seen = []

    class Watched(Labels):
        def _model_forward(self, model_input_batch: Any) -> Any:
            outputs = super()._model_forward(model_input_batch)
            seen.append(outputs.logits.dtype)
            return outputs

    run([TokenizerStage(str(plain)), Watched(str(plain))], batch_of(texts(5)))
    assert seen == [torch.bfloat16]


def test_outputs_of_every_form_are_widened() -> None:
    narrow = torch.ones(2, dtype=torch.bfloat16)
    assert devices.widened(narrow).dtype is torch.float32
    assert devices.widened(torch.ones(2, dtype=torch.float16)).dtype is torch.float16
    assert devices.widened((narrow, [narrow], None))[1][0].dtype is torch.float32
    assert devices.widened({"a": {"b": narrow}})["a"]["b"].dtype is torch.float32


def test_an_embedder_can_be_asked_for_one_output(model: Path) -> None:
    stage = EmbeddingModelStage(str(model), pooling="last_token")
    hidden = torch.rand(2, 3, 4)
    expected = torch.nn.functional.normalize(hidden[:, -1], dim=1)
    assert torch.equal(stage.process_model_output((hidden,)), expected)


# --- names and settings ---


def test_a_subclass_may_have_a_name_and_set_its_token(model: Path) -> None:
    class Named(Labels):
        name = "mine"

        def __init__(self, model_identifier: str, hf_token: str) -> None:
            super().__init__(model_identifier)
            self.hf_token = hf_token

    stage = Named("org/quality", "hf_secret")
    assert (stage.name, stage.hf_token) == ("mine", "hf_secret")
    assert "hf_secret" not in repr(vars(stage))

    @dataclass(kw_only=True, eq=False, repr=False)
    class NamedClassifier(DistributedDataClassifier):
        name: str = "mine"

    assert NamedClassifier(model_identifier=str(model)).name == "mine"
    assert NamedClassifier(model_identifier=str(model), name="other").name == "other"
    assert Labels("org/quality").name == "quality_model"
    assert DistributedDataClassifier(model_identifier=str(model)).name == "quality_classifier"


@pytest.mark.parametrize(
    "options",
    [{"max_chars": 0}, {"max_seq_length": -1}, {"model_inference_batch_size": 0}, {"padding_side": "middle"}],
)
def test_options_are_refused_where_they_are_given(options: dict[str, Any]) -> None:
    (name,) = options
    for kind in (DistributedDataClassifier, EmbeddingCreatorStage):
        with pytest.raises(UsageError, match=name):
            kind(model_identifier="org/model", **options)


def test_whole_numbers_of_numpy_are_taken(model: Path, tmp_path: Path) -> None:
    three = np.int64(3)
    classifier = DistributedDataClassifier(
        model_identifier=str(model), max_chars=three, max_seq_length=three, model_inference_batch_size=three
    )
    (tmp_path / "in.jsonl").write_text('{"text": "the"}\n')
    stages = [JsonlReader(str(tmp_path / "in.jsonl")), classifier, JsonlWriter(str(tmp_path / "out"))]
    assert Pipeline("p", stages=stages).run(LocalExecutor({"num_cpus": 0})).report.rows_written == 1


def test_an_unknown_pooling_is_refused_where_it_is_given() -> None:
    with pytest.raises(UsageError, match=r"embedding_pooling='cls'.*mean_pooling"):
        EmbeddingCreatorStage(model_identifier="org/model", embedding_pooling="cls")  # type: ignore[arg-type]


# --- batches ---


def test_a_batch_without_rows_gets_the_declared_columns(model: Path, plain: Path) -> None:
    classifier = DistributedDataClassifier(model_identifier=str(model), score_field="p", filter_by=["High"])
    empty = run(classifier.decompose(), batch_of([]))
    assert empty.num_items == 0
    assert empty.get_columns() == ["text", "id", "preds", "p"]
    embedder = EmbeddingCreatorStage(model_identifier=str(plain), use_sentence_transformer=False)
    assert run(embedder.decompose(), batch_of([])).get_columns() == ["text", "id", "embeddings"]
    custom = run([TokenizerStage(str(plain)), Labels(str(plain))], batch_of([]))
    assert custom.get_columns() == ["text", "id", "input_ids", "attention_mask", "label"]


def test_existing_tokens_that_are_sorted_come_back_in_the_order_of_the_texts(model: Path) -> None:
    values = texts(8)
    tokens = run([TokenizerStage(str(model))], batch_of(values))
    assert tokens.column("id").to_pylist() != list(range(8))
    classifier = DistributedDataClassifier(model_identifier=str(model), use_existing_tokens=True)
    out = run(classifier.decompose(), tokens)
    assert out.column("id").to_pylist() == list(range(8))
    assert out.get_columns() == ["text", "id", "preds"]


def test_a_stage_that_works_on_frames_cuts_existing_tokens_too(model: Path) -> None:
    class OnFrames(ClassifierModelStage):
        def create_output_dataframe(self, df_cpu: Any, collected_output: Any) -> Any:
            return super().create_output_dataframe(df_cpu, collected_output)

    values = texts(20)
    tokens = run([TokenizerStage(str(model))], batch_of(values))
    scores = [
        run([kind(str(model), score_field="p", max_seq_length=8)], tokens).to_pyarrow().column("p")
        for kind in (ClassifierModelStage, OnFrames)
    ]
    assert np.allclose(*(np.array(column.to_pylist()) for column in scores), atol=1e-6)
    assert all(column.type.value_type == pa.float32() for column in scores)


def test_documents_that_do_not_fit_are_told_apart_also_in_a_frame_whose_index_repeats(plain: Path) -> None:
    class Small(Labels):
        def _model_forward(self, model_input_batch: Any) -> Any:
            if model_input_batch["input_ids"].shape[1] > 20:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return super()._model_forward(model_input_batch)

    values = ["the", "a " * 40, "of", "to " * 10]
    tokens = run([TokenizerStage(str(plain), sort_by_length=False)], batch_of(values))
    frame = tokens.to_pandas().set_index(pd.Index([0, 1, 1, 0]))
    out = run([Small(str(plain), has_seq_order=False)], DocumentBatch(data=frame))
    assert out.to_pandas()["id"].tolist() == [0, 2, 3]


# --- mistakes ---


def test_a_batch_without_tokens_is_refused_with_the_way_out(model: Path, plain: Path) -> None:
    for stage in (Labels(str(plain)), ClassifierModelStage(str(model))):
        stage.setup()
        with pytest.raises(MissingColumnError, match="Put a TokenizerStage before it\\."):
            stage.process(batch_of(["the"]))
        unsorted = run([TokenizerStage(str(plain), sort_by_length=False)], batch_of(["the"]))
        with pytest.raises(MissingColumnError, match="sort_by_length=True, or set has_seq_order=False"):
            stage.process(unsorted)


def test_tokens_of_ones_own_may_be_missing_but_must_have_masks_of_their_length(model: Path, plain: Path) -> None:
    ids = [[1, 4, 2], None, [1, 4, 2], []]
    given = batch_of(["the", "", "", ""], input_ids=ids, attention_mask=[[1, 1, 1], None, [0, 0, 0], []])
    for stage in (Labels(str(plain), has_seq_order=False), ClassifierModelStage(str(model), has_seq_order=False)):
        labels = run([stage], given).to_pandas()[stage.outputs()[1][0]].tolist()
        assert len(labels) == 4
        assert labels[1] == labels[3]
    short = batch_of(["the"], input_ids=[[1, 4, 2]], attention_mask=[[1, 1]])
    with pytest.raises(UsageError, match="Row 0 has 3 values in 'input_ids' and 2 in 'attention_mask'"):
        run([ClassifierModelStage(str(model), has_seq_order=False)], short)


def test_a_stage_that_is_not_set_up_says_so(model: Path) -> None:
    tokens = run([TokenizerStage(str(model))], batch_of(["the"]))
    with pytest.raises(UsageError, match="'quality_model' has no model yet: call its setup"):
        ClassifierModelStage(str(model)).process(tokens)


def test_a_frame_that_lost_its_order_is_refused(plain: Path) -> None:
    class OnlyNew(Labels):
        def create_output_dataframe(self, df_cpu: Any, collected_output: Any) -> Any:
            return pd.DataFrame({"label": collected_output["predictions"]})

    with pytest.raises(StageDefinitionError, match="returns 'label': it must add to the columns of the frame"):
        run([TokenizerStage(str(plain)), OnlyNew(str(plain))], batch_of(["the"]))


def test_planning_tells_of_results_that_are_lost(model: Path, tmp_path: Path) -> None:
    def notes(*classifiers: DistributedDataClassifier) -> list[str]:
        (tmp_path / "in.jsonl").write_text('{"text": "the", "preds": "old", "other": 1}\n')
        stages = [JsonlReader(str(tmp_path / "in.jsonl")), *classifiers, JsonlWriter(str(tmp_path / "out"))]
        run = Pipeline("p", stages=stages).run(LocalExecutor({"num_cpus": 0}), fresh=True)
        return [note for note in run.report.notes if "GPU" not in note]

    def classifier(**options: Any) -> DistributedDataClassifier:
        return DistributedDataClassifier(model_identifier=str(model), **options)

    (of_input,) = notes(classifier())
    assert of_input.startswith("quality_model writes column 'preds', which the input already has")
    assert notes(classifier(label_field="a"), classifier(label_field="b")) == []
    (of_stage,) = notes(classifier(label_field="a"), classifier(label_field="a"))
    assert "overwrites column 'a', written by quality_model before any stage reads it" in of_stage
    read = classifier(label_field="a", filter_by=["High", "Medium", "Low"])
    assert notes(read, classifier(label_field="a")) == [], "the filter has read them"
