"""The seeds' snippets on models and classifiers, with the package's name exchanged (checklist 1-73, 125-128)."""

from __future__ import annotations

import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("PYTORCH_JIT", "0")
pytest.importorskip("torch")
pytest.importorskip("transformers")

from gristmill.backends.local import LocalExecutor
from gristmill.errors import StageFailedError
from gristmill.pipeline import Pipeline
from gristmill.stages.base import CompositeStage, ProcessingStage
from gristmill.stages.resources import Resources
from tests.unit.stages.text.models.tiny import (
    LABELS,
    batch_of,
    deberta_config,
    make_classifier,
    make_sequence_classifier,
    run,
    texts,
)


def parameters(function: Any) -> list[tuple[str, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in found if p.name != "self" and p.kind is p.POSITIONAL_OR_KEYWORD]


def test_model_stage_has_the_published_signature_and_contract() -> None:
    from gristmill.stages.text.models.model import ModelStage

    assert issubclass(ModelStage, ProcessingStage)
    assert parameters(ModelStage.__init__) == [
        ("model_identifier", inspect.Parameter.empty),
        ("cache_dir", None),
        ("hf_token", None),
        ("model_inference_batch_size", 256),
        ("has_seq_order", True),
        ("padding_side", "right"),
        ("unpack_inference_batch", False),
        ("autocast", True),
    ]
    stage = ModelStage("a/b", "cache", None, 8, False, "left", True, False)
    assert stage.resources == Resources(cpus=1.0, gpus=1.0)
    assert stage.inputs() == (["data"], ["input_ids", "attention_mask"])
    assert ModelStage("a/b").inputs() == (["data"], ["input_ids", "attention_mask", "_curator_seq_order"])


def test_the_custom_model_stage_of_the_seed_works(tmp_path: Path) -> None:
    import numpy as np
    import torch
    from transformers import AutoModelForSequenceClassification

    from gristmill.backends.base import WorkerMetadata
    from gristmill.stages.text.models.model import ModelStage
    from gristmill.stages.text.models.tokenizer import TokenizerStage

    class ClassifierStage(ModelStage):
        def __init__(self, model_identifier: str, label_field: str = "label", **kwargs):  # type: ignore[no-untyped-def]
            super().__init__(model_identifier=model_identifier, unpack_inference_batch=True, **kwargs)
            self.label_field = label_field
            self.place: Any = "cuda"

        def outputs(self):  # type: ignore[no-untyped-def]
            return ["data"], [self.label_field]

        def setup(self, _: WorkerMetadata | None = None) -> None:
            self.model = AutoModelForSequenceClassification.from_pretrained(
                self.model_identifier, cache_dir=self.cache_dir, local_files_only=True
            )
            self.model.eval().to(self.place)  # the line of the seed, with another word for "cuda" where there is none

        def process_model_output(self, outputs, model_input_batch=None):  # type: ignore[no-untyped-def]
            logits = outputs.logits.cpu().numpy()
            return {"predictions": np.argmax(logits, axis=1)}

        def collect_outputs(self, processed_outputs):  # type: ignore[no-untyped-def]
            return {"predictions": np.concatenate([o["predictions"] for o in processed_outputs])}

        def create_output_dataframe(self, df_cpu, collected_output):  # type: ignore[no-untyped-def]
            return df_cpu.assign(**{self.label_field: collected_output["predictions"]})

    folder = make_sequence_classifier(tmp_path / "model")
    stage = ClassifierStage(str(folder), model_inference_batch_size=4)
    if not torch.cuda.is_available():
        with pytest.raises(StageFailedError) as caught:
            Pipeline("seed", stages=[TokenizerStage(str(folder)), stage]).run(
                executor=LocalExecutor(config={"num_cpus": 0}), initial_tasks=[batch_of(texts(2))]
            )
        said = str(caught.value)
        assert "no GPU can be used here (Torch not compiled with CUDA enabled" in said or "NVIDIA" in said
        assert f"{__file__}:{inspect.getsourcelines(ClassifierStage.setup)[1] + 4}: self.model.eval()" in said
        assert "Write .to(self.device) instead" in said
        stage.place = stage.device
    out = run([TokenizerStage(str(folder)), stage], batch_of(texts(10)))
    assert out.to_pandas()["label"].isin([0, 1, 2]).all()
    assert out.to_pandas()["id"].tolist() == list(range(10))


def test_the_classifier_stage_has_the_published_signature() -> None:
    from gristmill.stages.text.classifiers.base import ClassifierModelStage, Deberta
    from gristmill.stages.text.models.model import ModelStage

    assert issubclass(ClassifierModelStage, ModelStage)
    assert parameters(ClassifierModelStage.__init__) == [
        ("model_identifier", inspect.Parameter.empty),
        ("cache_dir", None),
        ("label_field", "preds"),
        ("score_field", None),
        ("model_inference_batch_size", 256),
        ("has_seq_order", True),
        ("padding_side", "right"),
        ("autocast", True),
    ]
    from huggingface_hub import PyTorchModelHubMixin
    from torch import nn

    assert issubclass(Deberta, nn.Module)
    assert issubclass(Deberta, PyTorchModelHubMixin)
    assert list(inspect.signature(Deberta.__init__).parameters)[:2] == ["self", "config"]


def test_the_network_is_first_token_dropout_linear_and_softmax() -> None:
    import torch

    from gristmill.stages.text.classifiers.base import Deberta

    torch.manual_seed(0)
    network = Deberta({"base_config": deberta_config().to_dict(), "fc_dropout": 0.5, "id2label": {"0": "a", "1": "b"}})
    network.eval()
    batch = {"input_ids": torch.tensor([[1, 7, 2], [1, 2, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    with torch.no_grad():
        first = network.model(**batch).last_hidden_state[:, 0]
        expected = torch.softmax(first @ network.fc.weight.T + network.fc.bias, dim=1)
        assert torch.allclose(network(batch), expected, atol=1e-6)


def test_labels_are_text_and_scores_lists_only_if_asked_for(tmp_path: Path) -> None:
    from gristmill.stages.text.classifiers.base import DistributedDataClassifier

    folder = str(make_classifier(tmp_path / "quality"))
    plain = run(DistributedDataClassifier(model_identifier=folder).decompose(), batch_of(texts(3)))
    assert plain.get_columns() == ["text", "id", "preds"]
    scored = run(DistributedDataClassifier(model_identifier=folder, score_field="p").decompose(), batch_of(texts(3)))
    rows = scored.to_pandas()
    assert all(isinstance(label, str) for label in rows["preds"])
    assert rows["p"].map(len).tolist() == [len(LABELS)] * 3
    assert [LABELS[max(range(len(p)), key=p.__getitem__)] for p in rows["p"].map(list)] == rows["preds"].tolist()


def test_the_embedding_stage_is_a_model_stage() -> None:
    from gristmill.stages.text.embedders.base import EmbeddingModelStage
    from gristmill.stages.text.models.model import ModelStage

    assert issubclass(EmbeddingModelStage, ModelStage)


def test_the_composite_is_the_published_dataclass() -> None:
    from gristmill.stages.text.classifiers.base import DistributedDataClassifier

    assert issubclass(DistributedDataClassifier, CompositeStage)
    found = [(f.name, f.default) for f in dataclasses.fields(DistributedDataClassifier)]
    assert found[:12] == [
        ("model_identifier", dataclasses.MISSING),
        ("cache_dir", None),
        ("label_field", "preds"),
        ("score_field", None),
        ("text_field", "text"),
        ("filter_by", None),
        ("max_chars", None),
        ("max_seq_length", None),
        ("padding_side", "right"),
        ("sort_by_length", True),
        ("model_inference_batch_size", 256),
        ("autocast", True),
    ]
    assert all(f.kw_only for f in dataclasses.fields(DistributedDataClassifier))


def test_the_examples_of_the_seed_construct() -> None:
    from gristmill.stages.text.classifiers.base import ClassifierModelStage, DistributedDataClassifier
    from gristmill.stages.text.filters import Filter
    from gristmill.stages.text.models.tokenizer import TokenizerStage

    classifier = DistributedDataClassifier(
        model_identifier="nvidia/quality-classifier-deberta",
        label_field="quality_pred",
        text_field="text",
        max_chars=6000,
        max_seq_length=1024,
        model_inference_batch_size=256,
    )
    assert [type(stage) for stage in classifier.decompose()] == [TokenizerStage, ClassifierModelStage]
    classifier = DistributedDataClassifier(
        model_identifier="nvidia/quality-classifier-deberta",
        label_field="quality_pred",
        score_field="quality_prob",
        filter_by=["High", "Medium"],
        max_chars=6000,
        max_seq_length=1024,
    )
    stages = classifier.decompose()
    assert [type(stage) for stage in stages[:2]] == [TokenizerStage, ClassifierModelStage]
    assert [isinstance(stage, Filter) for stage in stages[2:]] == [True]
    assert classifier.filter_by_category("High")
    assert not classifier.filter_by_category("Low")


def test_the_subclass_of_the_seed_works_and_filters(tmp_path: Path) -> None:
    from gristmill.stages.text.classifiers.base import DistributedDataClassifier

    folder = make_classifier(tmp_path / "my-deberta-classifier")

    class MyCustomClassifier(DistributedDataClassifier):
        def __init__(self, cache_dir=None, label_field="my_pred", **kwargs):  # type: ignore[no-untyped-def]
            super().__init__(
                model_identifier=str(folder),
                cache_dir=cache_dir,
                label_field=label_field,
                max_chars=3000,
                max_seq_length=512,
                **kwargs,
            )

    values = texts(20)
    every = run(MyCustomClassifier(score_field="prob").decompose(), batch_of(values)).to_pandas()
    assert set(every["my_pred"]) <= set(LABELS)
    assert every["prob"].map(sum).sub(1).abs().max() < 1e-5
    kept = run(MyCustomClassifier(filter_by=["Low"]).decompose(), batch_of(values)).to_pandas()
    assert kept["id"].tolist() == every.loc[every["my_pred"] == "Low", "id"].tolist()
    assert 0 < len(kept) < len(every)


def test_the_quality_classifier_of_the_guide() -> None:
    from gristmill.stages.text.classifiers import ContentTypeClassifier, DomainClassifier, QualityClassifier
    from gristmill.stages.text.classifiers.base import DistributedDataClassifier

    classifier = QualityClassifier(model_inference_batch_size=64, max_chars=3000)
    assert (classifier.model_inference_batch_size, classifier.max_chars) == (64, 3000)
    assert (QualityClassifier().model_inference_batch_size, QualityClassifier().max_chars) == (256, 6000)
    assert classifier.batch_size == 1
    for kind in (QualityClassifier, DomainClassifier, ContentTypeClassifier):
        assert issubclass(kind, DistributedDataClassifier)


def test_importing_classifiers_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys; from gristmill.stages.text.classifiers import QualityClassifier, AegisClassifier;"
        "from gristmill.stages.text.embedders import EmbeddingCreatorStage; QualityClassifier().decompose();"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules or 'pandas' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
